"""Memory and start-up do not grow with the collection. Each is measured in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="measured by Linux's /proc"),
]
Models = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]
MB = 1_000_000
BEGIN = """
import json, re, sys
from pathlib import Path
from lmkcli.encoding.forecast import forecast
from lmkcli.encoding.jobs import run_encode, run_tokenize
from lmkcli.encoding.planning import plan
from lmkcli.errors import Stopped
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings

def number(file, name):
    return int(re.search(rf"^{name}:\\s*(\\d+)", Path("/proc/self", file).read_text(), re.M)[1])

def peak():
    return 1024 * number("status", "VmHWM")

source, model, output = sys.argv[1:]
job = lambda shard: plan(source, RecipeOptions(model=model), EncodeSettings(dtype="fp32"), shard)
"""
SHARD = """
begin, seen = number("io", "rchar"), []
stopping = lambda: bool(seen) and seen[-1] > 100_000
try:
    run_encode(job("19/20"), Path(output), Report(lambda done, *_: seen.append(done), stopping))
except Stopped:
    print(json.dumps({"tokens": seen[-1], "read": number("io", "rchar") - begin, "peak": peak()}))
"""
MANY = """
peaks = []

def note(done, *_):
    if not peaks and done > FIRST:
        peaks.append(peak())

STEP
print(json.dumps(peak() - peaks[0]))
"""
STEPS = {  # the first tell of documents, the others of tokens
    "encode": ("20_000", 'assert forecast(job("0/1"), note).docs == 100_000'),
    "tokenize": ("20_000 * 12", 'run_tokenize(job("0/1"), Path(output), Report(note))'),
}


def told(code: str, *words: object) -> dict[str, int] | int:
    """What a Python process prints, which begins with BEGIN."""
    command = [sys.executable, "-c", BEGIN + code, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def line(number: int, text: str) -> str:
    return f'{{"_id":"d{number}","text":"{text}"}}\n'


def test_one_shard_of_a_collection_of_5_gb_starts_at_once_and_stays_small(
    tiny_model: Models, tmp_path: Path
) -> None:
    """Whoever read what lies before this shard would read 4.75 GB; a hole, so that it costs no disk."""
    source, size = tmp_path / "c.jsonl", 5000 * MB
    texts = [tiny.sentence(i, 350) for i in range(400)]
    with open(source, "w") as file:
        file.write(line(0, "the first"))
        file.seek(size // 20 * 19 - 1)
        file.write("\n")
        number = 0
        while file.tell() < size:
            file.writelines(line(number := number + 1, text) for text in texts)
    found = told(SHARD, source, tiny_model("bert"), tmp_path / "v")
    assert found["tokens"] > 100_000
    assert found["read"] < 250 * MB  # imports are the most of it
    assert found["peak"] < 1000 * MB


@pytest.mark.parametrize("verb", STEPS)
def test_many_short_documents(tiny_model: Models, tmp_path: Path, verb: str) -> None:
    """From 20,000 documents on, when all buffers are full, about half a kilobyte for each at most.

    A list of their texts or token rows takes more, so that 100,000 show what a million would.
    """
    source = tmp_path / "c.jsonl"
    texts = [tiny.sentence(i, 12) for i in range(1000)]
    with open(source, "w") as file:
        file.writelines(line(number, texts[number % 1000]) for number in range(100_000))
    first, step = STEPS[verb]
    code = MANY.replace("FIRST", first).replace("STEP", step)
    grown = told(code, source, tiny_model("bert"), tmp_path / "t")
    assert grown < 50 * MB
