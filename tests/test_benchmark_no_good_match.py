"""benchmarks/no_good_match.py on few documents: the note appears for foreign questions, not for answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUBJECTS = {
    "kitchen": [
        "sourdough starter dough",
        "green tea water",
        "onion soup broth",
        "apple cake oven",
    ],
    "garage": ["bicycle wheel puncture", "engine oil filter", "brake pads disc", "battery charger"],
}


def beir_folder(folder: Path, texts: list[str]) -> Path:
    """A collection whose questions repeat the words of their answers."""
    (folder / "qrels").mkdir(parents=True)
    docs = [{"_id": f"d{n}", "title": "", "text": f"{text}. " * 3} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts)]
    for name, records in (("corpus", docs), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    lines = [f"q{n}\td{n}\t1\n" for n in range(len(texts))]
    (folder / "qrels" / "test.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *lines]))
    return folder


def test_the_shares_of_the_note(tmp_path: Path) -> None:
    folders = [beir_folder(tmp_path / name, texts) for name, texts in SUBJECTS.items()]
    words = [*map(str, folders), "-o", str(tmp_path / "work"), "--models", "words"]
    done = subprocess.run(
        [sys.executable, "benchmarks/no_good_match.py", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *_, kitchen, garage = done.stdout.splitlines()
    found, without = "0.0 % of 4", "100.0 % of 4"
    assert kitchen == f"| words | kitchen | {found} | {without} | - | {without} |"
    assert garage == f"| words | garage | {found} | {without} | {without} | - |"
