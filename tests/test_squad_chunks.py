"""examples/papers/squad_chunks.py: the relevant chunk contains the start of the answer, at every size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = "Rivers carry  water from the mountains to the sea, and the sea feeds the clouds above them."
ANSWERS = ("Rivers", "the mountains", "sea, and", "them.")


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    asked = [
        {
            "id": f"q{n}",
            "question": f"Question {n}?",
            "answers": [{"text": answer, "answer_start": TEXT.index(answer)}],
        }
        for n, answer in enumerate(ANSWERS)
    ]
    unanswerable = {"id": "none", "question": "Why?", "answers": []}
    paragraphs = [
        {"context": "Nothing here.", "qas": []},
        {"context": TEXT, "qas": [*asked, unanswerable]},
    ]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "Water", "paragraphs": paragraphs}]}))
    return path


def test_each_answer_starts_in_its_relevant_chunk(squad: Path, tmp_path: Path) -> None:
    script = ROOT / "examples" / "papers" / "squad_chunks.py"
    sizes = (1, 3, 100)
    words = [sys.executable, script, squad, tmp_path / "made", *sizes]
    subprocess.run(list(map(str, words)), check=True)
    for size in sizes:
        folder = tmp_path / "made" / str(size)
        rows = [json.loads(line) for line in (folder / "corpus.jsonl").open()]
        chunks = {row["_id"]: row["chunks"] for row in rows}
        assert " ".join(" ".join(chunks["p1"]).split()) == " ".join(TEXT.split())
        assert len(chunks["p1"]) == -(-len(TEXT.split()) // size)
        lines = (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]
        judged = {line.split("\t")[0]: line.split("\t")[1] for line in lines}
        assert judged.keys() == {f"q{n}" for n in range(len(ANSWERS))}
        for n, answer in enumerate(ANSWERS):
            doc, _, number = judged[f"q{n}"].partition("#")
            assert answer.split()[0] in chunks[doc][int(number)]
