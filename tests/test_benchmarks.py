"""Benchmarks measure what there is: small runs of them, and their calls as mypy sees them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).resolve().parents[1]
LINES = {
    "encode.py --texts 8 --repeats 1 --batches 8 --dtypes fp32": "lmk fp32",
    "exact.py --rows 3000 --queries 4 --k 10 --repeats 1": "lmk",
    "lists.py --rows 3000 --queries 4 --k 10 --kind IVF16,Flat --repeats 1": "CPU",
    "tite.py --texts 2 --dtype fp32 --repeats 1": "TITE without pooling",
    "m2bert.py --lengths 128 --rounds 1 --dtype fp32": "ModernBERT",
    "overhead.py --source stdlib/functions,package=json --repeats 1": "overhead",
    "int8.py --threads 1 --lengths 80 --positions 300 --repeats 1 --ways linear": "oneDNN int8",
    "serve.py --work . --passages 500 --clients 4 --seconds 2 --rounds 1": "errors: 0",
    "serve_hostile.py --seconds 5 --share 0.3 --longest 60": "exit code 75",
    "pipeline.py --passages 200 --repeats 1": "lmk encode, text, lmk@16: outside",
    "gpu.py --device cpu --scale 0.0001 --repeats 1 --only search": "x 768, k 100: lmk",
    "gpu.py --device cpu --scale 0.0001 --only train": "batch 2: sentence-transformers",
    "train.py -m minilm --steps 1 --rounds 1 --batch 4 --dtype fp32": "lmk",
}
DRIFT = (
    "call-arg",
    "attr-defined",
    "name-defined",
)  # what a renamed or changed function leaves behind
# Modules in which a script replaces an import: overhead.py adds a clock, tite.py and side.py a variant.
WRAPPED = ("lmkcli.encoding.shard_run", "lmkcli.plugins.tite.model", "lmkcli.training.data.inputs")


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_benchmark_prints_its_figures(line: str, tmp_path: Path) -> None:
    script, *words = line.split()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert LINES[line] in done.stdout


@pytest.mark.slow  # a minute without mypy's cache
def test_scripts_call_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    scripts = [
        str(path)
        for folder in ("benchmarks", "docs", "examples")
        for path in Path(folder).rglob("*.py")
    ]
    out, _, _ = api.run(["--strict", "--no-error-summary", *scripts])
    told = [line for line in out.splitlines() if any(f"[{code}]" in line for code in DRIFT)]
    assert [line for line in told if not any(module in line for module in WRAPPED)] == []
    for module in WRAPPED:
        assert any(module in line for line in told)  # so that it would have been seen
