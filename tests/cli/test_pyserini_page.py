"""The Python code of docs/exchange.md, in a separate process, because a process can start Java only once."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "exchange.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_pyserini_searches_an_export_as_the_page_says(
    lmk: Callable[..., Any], minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8")
    records = re.findall(r"^```json\n(.*?)^```$", notes, re.DOTALL | re.MULTILINE)[0]
    (tmp_path / "notes.jsonl").write_text(records, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lmk("encode", "notes.jsonl", "-m", "minilm", "-o", "notes-vectors")
    lmk("export", "notes-vectors", "--to", "pyserini", "-o", "notes-pyserini")
    shown = re.findall(
        r"^```py\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", PAGE, re.DOTALL | re.MULTILINE
    )
    [(code, printed)] = [each for each in shown if "FaissSearcher" in each[0]]
    env = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.stdout == printed, run.stderr
