"""Passages of an index for LangChain: python examples/langchain_retriever.py [MODEL]"""

import sys
from pathlib import Path

import lmkcli
from lmkcli.integrations.langchain import LangChainRetriever

KITCHEN = Path(__file__).parent / "kitchen"


def main(model: str = "minilm") -> None:
    """Print the passages that answer a question, with their places."""
    index = lmkcli.index(KITCHEN, model, unit="chunk", gran="sentence", dtype="fp32")
    retriever = LangChainRetriever(index=index, k=2)
    for passage in retriever.invoke("why is my drink bitter"):
        place = passage.metadata
        characters = f"{place['start_index']}-{place['end_index']}"
        print(f"{place['source']} {characters}: {passage.page_content}")


if __name__ == "__main__":
    main(*sys.argv[1:])
