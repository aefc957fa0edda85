"""examples/papers/loco_train.py: lmk train reads its folders, and no test document is in them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmkcli.training.data.examples import Examples
from lmkcli.training.data.sources import parse_source, read_sources
from tests import tiny

ROOT = Path(__file__).resolve().parents[1]
SCROLLS = ("summ_screen_fd", "gov_report", "qmsum")
LONGBENCH = ("multifieldqa", "2wikimqa", "passage_retrieval")
DOCS, TESTED = 45, 5


def text(number: int) -> str:
    return f"Document {number}: {tiny.sentence(number, 8)}"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Small files of the datasets: in qmsum, two questions about each document."""
    folder = tmp_path / "sources"
    for name in SCROLLS:
        (folder / name).mkdir(parents=True)
        asked = "What was said?\n\n" if name == "qmsum" else ""
        lines = [
            {"input": asked + text(n // (2 if asked else 1)), "output": f"Summary {n}"}
            for n in range(DOCS)
        ]
        tiny.write_jsonl(folder / name / "train.jsonl", lines)
    papers = {
        str(n): {
            "title": f"Title {n}",
            "abstract": f"Abstract {n}",
            "full_text": [{"section_name": "Introduction", "paragraphs": [text(n), "End."]}],
        }
        for n in range(DOCS)
    }
    papers["empty"] = {"title": "No text", "abstract": "None", "full_text": []}
    (folder / "qasper-train-v0.3.json").write_text(json.dumps(papers))
    for name in ("data", "documents"):
        (folder / name).mkdir()
    for name in LONGBENCH:
        file = name + ("_e" if name == "2wikimqa" else "_en_e")
        lines = [{"input": f"Question {n}", "context": text(n)} for n in range(DOCS)]
        tiny.write_jsonl(folder / "data" / f"{file}.jsonl", lines)
        tested = [{"pid": str(n), "passage": text(n)} for n in range(TESTED)]
        tiny.write_jsonl(folder / "documents" / f"{name}_test.jsonl", tested)
    return folder


def run(sources: Path, made: Path) -> "subprocess.CompletedProcess[str]":
    script = ROOT / "examples" / "papers" / "loco_train.py"
    words = [sys.executable, str(script), str(sources), str(made)]
    return subprocess.run(words, capture_output=True, text=True)


def examples(folder: Path) -> Examples:
    return read_sources([parse_source(f"{folder}:train,per-query=32")])[0]


def test_each_query_has_its_document_and_32_others(sources: Path, tmp_path: Path) -> None:
    done = run(sources, tmp_path / "made")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {*SCROLLS, *LONGBENCH, "qasper_title", "qasper_abstract"}
    for name in names:
        folder = tmp_path / "made" / name
        judged = [
            line.split("\t") for line in (folder / "qrels/train.tsv").read_text().splitlines()[1:]
        ]
        texts = {
            row["_id"]: row["text"]
            for file in ("corpus", "queries")
            for row in map(json.loads, (folder / f"{file}.jsonl").open())
        }
        asked = {query for query, _, _ in judged}
        assert len(asked) == DOCS - (TESTED if name in LONGBENCH else 0)
        few = len([each for each in texts if each[0] == "d"]) - 1
        for query in asked:
            grades = {doc: grade for q, doc, grade in judged if q == query}
            (answer,) = [texts[doc] for doc, grade in grades.items() if grade == "1"]
            number = int(texts[query].split()[-1])
            wanted = text(number // 2 if name == "qmsum" else number)
            assert answer == (f"Introduction: {wanted} End." if "qasper" in name else wanted)
            assert list(grades.values()).count("0") == min(32, few)
        assert len(examples(folder)) == len(asked)


def test_test_documents_that_are_not_found_are_an_error(sources: Path, tmp_path: Path) -> None:
    shutil.copy(sources / "data" / "2wikimqa_e.jsonl", sources / "data" / "multifieldqa_en_e.jsonl")
    with (sources / "documents" / "multifieldqa_test.jsonl").open("a") as file:
        file.write(json.dumps({"pid": "x", "passage": "Another text"}) + "\n")
    done = run(sources, tmp_path / "made")
    assert done.returncode == 1
    assert "lacks 1 of the 6 documents" in done.stderr
    assert not (tmp_path / "made" / "multifieldqa").exists()
