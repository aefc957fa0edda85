"""Memory and start-up do not grow with the collection. Each is measured in a separate process."""

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
SETUP = """
import json, re, sys
from pathlib import Path
from lmkcli.encoding.forecast import forecast
from lmkcli.encoding.shard_run import run_encode, run_tokenize
from lmkcli.encoding.jobs import plan
from lmkcli.errors import Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings

from lmkcli.spec.values import WHOLE, Shard

def number(file, name):
    return int(re.search(rf"^{name}:\\s*(\\d+)", Path("/proc/self", file).read_text(), re.M)[1])

def peak():
    return 1024 * number("status", "VmHWM")

source, model, output = sys.argv[1:]
job = lambda shard: plan(source, RecipeOptions(model=model), EncodeSettings(dtype="fp32"), shard)
"""
SHARD = """
start, seen = number("io", "rchar"), []
stopping = lambda: bool(seen) and seen[-1] > 100_000
try:
    run_encode(job(Shard(19, 20)), Path(output), Report(lambda done, *_: seen.append(done), stopping))
except Stopped:
    print(json.dumps({"tokens": seen[-1], "read": number("io", "rchar") - start, "peak": peak()}))
"""
MANY = """
peaks = []

def note(done, *_):
    if not peaks and done > FIRST:
        peaks.append(peak())

STEP
print(json.dumps(peak() - peaks[0]))
"""
STEPS = {  # the forecast reports documents, the others tokens
    "encode": ("20_000", "assert forecast(job(WHOLE), note).docs == 100_000"),
    "tokenize": ("20_000 * 12", "run_tokenize(job(WHOLE), Path(output), Report(note))"),
}


def output_of(code: str, *words: object) -> dict[str, int] | int:
    """Run SETUP and `code` in a Python process. Returns the JSON that it prints."""
    command = [sys.executable, "-c", SETUP + code, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def line(number: int, text: str) -> str:
    return f'{{"_id":"d{number}","text":"{text}"}}\n'


def test_one_shard_of_a_collection_of_5_gb_starts_at_once_in_little_memory(
    tiny_model: Models, tmp_path: Path
) -> None:
    """The file is 4.75 GB long before this shard. It is a hole, so that it takes no disk space."""
    source, size = tmp_path / "c.jsonl", 5000 * MB
    texts = [tiny.sentence(i, 350) for i in range(400)]
    with open(source, "w") as file:
        file.write(line(0, "the first"))
        file.seek(size // 20 * 19 - 1)
        file.write("\n")
        number = 0
        while file.tell() < size:
            file.writelines(line(number := number + 1, text) for text in texts)
    found = output_of(SHARD, source, tiny_model("bert"), tmp_path / "v")
    assert found["tokens"] > 100_000
    assert found["read"] < 250 * MB  # most of it are imports
    assert found["peak"] < 1000 * MB


@pytest.mark.parametrize("verb", STEPS)
def test_many_short_documents(tiny_model: Models, tmp_path: Path, verb: str) -> None:
    """After 20,000 documents all buffers are full; each further document adds at most half a kilobyte.

    A list of their texts or token rows would take more, so 100,000 documents are enough to find one.
    """
    source = tmp_path / "c.jsonl"
    texts = [tiny.sentence(i, 12) for i in range(1000)]
    with open(source, "w") as file:
        file.writelines(line(number, texts[number % 1000]) for number in range(100_000))
    first, step = STEPS[verb]
    code = MANY.replace("FIRST", first).replace("STEP", step)
    grown = output_of(code, source, tiny_model("bert"), tmp_path / "t")
    assert grown < 50 * MB
