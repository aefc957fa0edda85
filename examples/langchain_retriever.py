"""An index as a retriever of LangChain: python examples/langchain_retriever.py [MODEL]"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

import lmkcli

KITCHEN = str(Path(__file__).parent / "kitchen")
FP32 = lmkcli.EncodeSettings(dtype="fp32")


class LmkRetriever(BaseRetriever):
    """Retrieve the best documents of an index that `lmkcli.open_index` opened."""

    index: Any
    k: int = 3

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            Document(
                id=hit.id, page_content=hit.text, metadata={"title": hit.title, "score": hit.score}
            )
            for hit in self.index.search(query, k=self.k)
        ]


def main(model: str = "minilm") -> None:
    """Print the documents that answer a question."""
    with TemporaryDirectory() as folder:
        lmkcli.encode_collection(KITCHEN, Path(folder), model, settings=FP32)
        retriever = LmkRetriever(index=lmkcli.open_index(folder), k=2)
        for document in retriever.invoke("why is my drink bitter"):
            print(f"{document.id}: {document.metadata['title']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
