"""The scripts of tables that no grid makes run completely, with tiny models and collections."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny
from tests.plugins.grid.twins import narrow, twin

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ROOT / "examples" / "papers"
SMALLER = {  # in the script of Table 7 and its recipe
    "8192": "64", "32768": "128", "6000": "4", "= 5000": "= 4", "= 2048": "= 64",
    "batch-size = 32": "batch-size = 4", "save-every = 500": "save-every = 2", '"bf16"': '"fp32"',
}  # fmt: skip


def run(folder: Path, *words: str) -> str:
    """The output of a command; `lmk` in scripts is the one of this checkout."""
    programs = folder / "bin"
    programs.mkdir()
    lmk = programs / "lmk"
    lmk.write_text(f'#!/bin/sh\nexec {sys.executable} -m lmkcli.cli.main "$@"\n')
    lmk.chmod(0o755)
    paths = {"PYTHONPATH": str(ROOT), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=folder, env=os.environ | paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def smaller(text: str) -> str:
    for old, new in SMALLER.items():
        text = text.replace(old, new)
    return text


@pytest.mark.slow
def test_table_7_prints_the_accuracies_and_figure_4(tmp_path: Path) -> None:
    for name in ("c4", "wikipedia", "bookcorpus", "c4-validation"):
        tiny.collection(tmp_path / name, docs=40, queries=1)
    tiny.wordpiece().save_pretrained(tmp_path / "google-bert" / "bert-base-uncased")
    examples = tmp_path / "examples"
    (examples / "papers").mkdir(parents=True)
    recipe = (ROOT / "examples" / "m2bert-pretrain.toml").read_text(encoding="utf-8")
    (examples / "m2bert-pretrain.toml").write_text(smaller(recipe))
    script = (PAPERS / "m2bert-table7.sh").read_text(encoding="utf-8")
    for length in (8192, 32768):
        shape = narrow(json.loads((PAPERS / f"m2bert-{length}.json").read_text()))
        small = {"max_position_embeddings": length // 128, "long_conv_l_max": length // 128}
        shape |= {"num_hidden_layers": 2} | (small if length == 8192 else dict.fromkeys(small, 128))
        (examples / "papers" / f"m2bert-{smaller(str(length))}.json").write_text(json.dumps(shape))
    (tmp_path / "table7.sh").write_text(smaller(script))
    printed = run(tmp_path, "sh", "table7.sh", "results")
    rows = [line for line in printed.splitlines() if re.fullmatch(r"\w+-start [\d.e-]+", line)]
    assert [row.split()[0] for row in rows] == ["warm-start", "cold-start"]
    results = tmp_path / "results"
    for row, name in zip(rows, ("warm", "cold"), strict=True):
        log = [json.loads(line) for line in (results / name / "log.jsonl").read_text().splitlines()]
        assert float(row.split()[1]) == [e["accuracy"] for e in log if "accuracy" in e][-1]
        assert [each["dev"].keys() for each in log if "dev" in each][-1] == {"c4-validation/"}
        record = json.loads((results / name / "manifest.json").read_text())
        settings = json.dumps(record)
        assert '"dev_mask": 0.15' in settings
        assert '"mask": 0.3' in settings
        assert ("init_from" in json.dumps(record["identity"])) == (name == "warm")
    assert "<svg" in (results / "figure4.svg").read_text()


@pytest.mark.slow
def test_table_24_groups_the_queries_of_table_15(tmp_path: Path) -> None:
    file = twin(PAPERS / "m2bert-table15.toml", tmp_path)
    tiny.save(tmp_path / "google-bert" / "bert-base-uncased", "bert")
    words = [sys.executable, "-m", "lmkcli.cli.main", "grid", file.name, "-o", "results"]
    path = {"PYTHONPATH": str(ROOT)}
    subprocess.run(words, cwd=tmp_path, env=os.environ | path, check=True, capture_output=True)
    script = str(PAPERS / "m2bert_table24.py")
    printed = run(tmp_path, sys.executable, script, "results", "--bins", "0,9,10,11,12,13,14,16")
    table = printed.splitlines()
    assert len(table[0].split("[")) > 2  # several groups
    names = [row.rsplit(None, len(table[0].split("[")) - 1)[0] for row in table[2:13]]
    assert len(set(names)) == 11  # the rows of Table 15
    assert {"BM25", "BAAI/bge-large-en-v1.5", "BAAI/bge-large-en-v1.5 16"} <= set(names)
