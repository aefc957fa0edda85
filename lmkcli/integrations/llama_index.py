"""An index as a retriever of LlamaIndex (extra `llama-index`).

LlamaIndexRetriever("vectors", k=4).retrieve("…") returns passages as nodes of LlamaIndex.
"""

from collections.abc import Sequence
from pathlib import Path

from lmkcli.errors import MissingExtra
from lmkcli.integrations.retrieved import Retrieved, opened, retrieve
from lmkcli.operations.search import OpenIndex

try:
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import (
        NodeRelationship,
        NodeWithScore,
        QueryBundle,
        RelatedNodeInfo,
        TextNode,
    )
except ModuleNotFoundError as error:
    raise MissingExtra("llama-index-core", "llama-index", "the retriever of LlamaIndex") from error


class LlamaIndexRetriever(BaseRetriever):
    """Retrieve the k best passages of an index, or documents if chunks have no vectors of their own.

    `index` is a path, or the result of `lmkcli.open_index` or `lmkcli.index`. A node has the characters of
    its passage in the text of the document (`start_char_idx`, `end_char_idx`), its document as the source
    node (`ref_doc_id`), and the other facts of the hit as metadata. `where` has conditions that all returned
    documents fulfil, such as "year>2000".
    """

    def __init__(
        self, index: OpenIndex | str | Path, k: int = 4, where: str | Sequence[str] = ()
    ) -> None:
        self._index, self._k, self._where = opened(index), k, where
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = retrieve(self._index, query_bundle.query_str, self._k, self._where)
        return [NodeWithScore(node=_node(each), score=each.score) for each in found]


def _node(found: Retrieved) -> TextNode:
    facts = {name: value for name, value in found.metadata.items() if name not in ("begin", "end")}
    return TextNode(
        id_=found.id,
        text=found.text,
        metadata=facts,
        excluded_embed_metadata_keys=list(facts),
        excluded_llm_metadata_keys=[
            name for name in facts if name not in ("id", "title", "heading")
        ],
        start_char_idx=found.metadata.get("begin"),
        end_char_idx=found.metadata.get("end"),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=found.document)},
    )
