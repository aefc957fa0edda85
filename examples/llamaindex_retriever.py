"""Passages of an index for LlamaIndex: python examples/llamaindex_retriever.py [MODEL]"""

import sys
from pathlib import Path

from llama_index.core.schema import TextNode

import lmkcli
from lmkcli.integrations.llama_index import LlamaIndexRetriever

KITCHEN = Path(__file__).parent / "kitchen"


def main(model: str = "minilm") -> None:
    """Print the passages that answer a question, with their places."""
    index = lmkcli.index(KITCHEN, model, unit="chunk", gran="sentence", dtype="fp32")
    retriever = LlamaIndexRetriever(index, k=2)
    for found in retriever.retrieve("why is my drink bitter"):
        node = found.node
        assert isinstance(node, TextNode)
        print(f"{node.ref_doc_id} {node.start_char_idx}-{node.end_char_idx}: {found.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
