"""An index as a retriever of LlamaIndex: python examples/llamaindex_retriever.py [MODEL]"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

import lmkcli

KITCHEN = str(Path(__file__).parent / "kitchen")
FP32 = lmkcli.EncodeSettings(dtype="fp32")


class LmkRetriever(BaseRetriever):
    """Retrieve the best documents of an index that `lmkcli.open_index` opened."""

    def __init__(self, index: lmkcli.OpenIndex, k: int = 3) -> None:
        self._index = index
        self._k = k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(id_=hit.id, text=hit.text, metadata={"title": hit.title}),
                score=hit.score,
            )
            for hit in self._index.search(query_bundle.query_str, k=self._k)
        ]


def main(model: str = "minilm") -> None:
    """Print the documents that answer a question."""
    with TemporaryDirectory() as folder:
        lmkcli.encode_collection(KITCHEN, Path(folder), model, settings=FP32)
        retriever = LmkRetriever(lmkcli.open_index(folder), k=2)
        for found in retriever.retrieve("why is my drink bitter"):
            print(f"{found.node_id}: {found.node.metadata['title']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
