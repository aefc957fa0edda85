"""Retrievers of LangChain and LlamaIndex, with the real packages."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lmkcli

DOCS = [
    {
        "id": "tea",
        "title": "Green tea",
        "text": "Boil the water. Steep the leaves at eighty degrees.",
    },
    {"id": "bike", "title": "Flat tyre", "text": "Take the wheel off. Find the hole under water."},
]
QUESTION = "where is the hole in my tyre?"
PASSAGE = "Find the hole under water."


@pytest.fixture(scope="module")
def chunks(minilm: Path) -> lmkcli.OpenIndex:
    return lmkcli.index(DOCS, minilm, unit="chunk", gran="sentence")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    output = tmp_path_factory.mktemp("retrievers") / "vectors"
    return lmkcli.Encode(DOCS, model=minilm, output=output).run().output


def test_langchain_gets_passages_with_their_places(chunks: lmkcli.OpenIndex) -> None:
    pytest.importorskip("langchain_core")
    from lmkcli.integrations.langchain import LangChainRetriever

    retriever = LangChainRetriever(index=chunks, k=1)
    (found,) = retriever.invoke(QUESTION)
    assert (found.page_content, found.id) == (PASSAGE, "bike#1")
    facts = found.metadata
    assert (facts["source"], facts["title"], facts["rank"]) == ("bike", "Flat tyre", 1)
    text = DOCS[1]["text"]
    assert text[facts["start_index"] : facts["end_index"]] == PASSAGE
    assert asyncio.run(retriever.ainvoke(QUESTION)) == [found]
    assert retriever.batch([QUESTION, QUESTION]) == [[found], [found]]


def test_langchain_opens_a_path_and_returns_documents_without_chunks(documents: Path) -> None:
    pytest.importorskip("langchain_core")
    from lmkcli.integrations.langchain import LangChainRetriever

    found = LangChainRetriever(index=documents).invoke(QUESTION)
    assert [each.id for each in found] == ["bike", "tea"]
    assert found[0].page_content == DOCS[1]["text"]
    chain = LangChainRetriever(index=str(documents), k=1) | (
        lambda docs: docs[0].metadata["source"]
    )
    assert chain.invoke(QUESTION) == "bike"


def test_llama_index_gets_passages_with_their_places(chunks: lmkcli.OpenIndex) -> None:
    pytest.importorskip("llama_index.core")
    from lmkcli.integrations.llama_index import LlamaIndexRetriever

    retriever = LlamaIndexRetriever(chunks, k=1)
    (found,) = retriever.retrieve(QUESTION)
    node = found.node
    assert (found.text, found.node_id, node.ref_doc_id) == (PASSAGE, "bike#1", "bike")
    assert DOCS[1]["text"][node.start_char_idx : node.end_char_idx] == PASSAGE
    assert found.score == pytest.approx(chunks.search(QUESTION, k=1)[0].score)
    assert node.metadata["title"] == "Flat tyre"
    assert asyncio.run(retriever.aretrieve(QUESTION))[0].node_id == "bike#1"


def test_llama_index_opens_a_path(documents: Path) -> None:
    pytest.importorskip("llama_index.core")
    from lmkcli.integrations.llama_index import LlamaIndexRetriever

    found = LlamaIndexRetriever(documents).retrieve(QUESTION)
    assert [each.node_id for each in found] == ["bike", "tea"]


@pytest.fixture(scope="module")
def dated() -> lmkcli.OpenIndex:
    rows = [{"id": f"y{year}", "text": "green tea", "year": year} for year in range(2019, 2025)]
    return lmkcli.index(rows, kind="bm25")


def test_langchain_filters_and_refuses_what_it_does_not_know(dated: lmkcli.OpenIndex) -> None:
    pytest.importorskip("langchain_core")
    from lmkcli.integrations.langchain import LangChainRetriever

    def years(found: list[Any]) -> set[str]:
        return {each.id for each in found}

    retriever = LangChainRetriever(index=dated, k=2, where="year>2022")
    assert years(retriever.invoke("tea")) == {"y2023", "y2024"}
    assert len(retriever.invoke("tea", k=1)) == 1
    only = ["year>2019", "year<2021"]
    assert years(retriever.invoke("tea", where=only)) == {"y2020"}
    assert years(asyncio.run(retriever.ainvoke("tea", where=only))) == {"y2020"}
    assert len(asyncio.run(retriever.ainvoke("tea"))) == 2
    with pytest.raises(ValueError, match="filter"):
        LangChainRetriever(index=dated, filter={"year": 2024})
    with pytest.raises(TypeError, match="filter"):
        retriever.invoke("tea", filter={"year": 2024})


def test_llama_index_filters(dated: lmkcli.OpenIndex) -> None:
    pytest.importorskip("llama_index.core")
    from lmkcli.integrations.llama_index import LlamaIndexRetriever

    retriever = LlamaIndexRetriever(dated, where=["year>2022", "year!=2024"])
    assert [each.node_id for each in retriever.retrieve("tea")] == ["y2023"]


@pytest.mark.parametrize("module", ["langchain", "llama_index"])
def test_a_missing_package_is_named(module: str, tmp_path: Path) -> None:
    block = f"import sys; sys.modules['{module}_core'] = sys.modules['{module}'] = None; "
    code = f"{block}import lmkcli.integrations.{module}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    extra = module.replace("_", "-")
    assert f'pip install "lmkcli[{extra}]"' in done.stderr
