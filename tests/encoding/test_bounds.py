"""Memory and start-up do not grow with the collection. Peaks are those of processes of their own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import tiny

pytestmark = pytest.mark.slow
Models = Callable[[str], Path]
GB = 1_000_000_000
ROOT = Path(__file__).resolve().parents[2]
SHARD = """
import json, sys, time
from pathlib import Path
from lmkcli.errors import Stopped
from lmkcli.encoding.jobs import run_encode
from lmkcli.encoding.planning import plan
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings

source, model, output = sys.argv[1:]
begin, calls = time.monotonic(), []
try:
    job = plan(source, RecipeOptions(model), EncodeSettings(dtype="fp32"), "19/20")
    run_encode(job, Path(output), Report(lambda *_: calls.append(time.monotonic() - begin),
                                         lambda: bool(calls) and calls[-1] > 20))
except Stopped:
    print(json.dumps({"first": calls[0], "last": calls[-1]}))
"""


# A process counts as its own peak what its parent held when it was forked, so that this suite would
# be measured; the child of a small process is not.
MEASURE = """
import os, subprocess, sys

process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss * 1024, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def measured(*words: object) -> tuple[int, str]:
    """Peak memory in bytes of a Python process, and what it printed."""
    command = [sys.executable, "-c", MEASURE, sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1]), done.stdout


def line(number: int, text: str) -> str:
    return f'{{"_id":"d{number}","text":"{text}"}}\n'


def test_one_shard_of_a_collection_of_5_gb_starts_at_once_and_stays_small(
    tiny_model: Models, tmp_path: Path
) -> None:
    """Whoever read what lies before this shard would read 4.75 GB; a hole, so that it costs no disk."""
    source, begin = tmp_path / "c.jsonl", 5 * GB // 20 * 19
    texts = [tiny.sentence(i, 350) for i in range(400)]
    with open(source, "w") as file:
        file.write(line(0, "the first"))
        file.seek(begin - 1)
        file.write("\n")
        number, left = 1, 5 * GB - begin
        while left > 0:
            left -= file.write(line(number, texts[number % 400]))
            number += 1
    peak, printed = measured("-c", SHARD, source, tiny_model("bert"), tmp_path / "v")
    seconds = json.loads(printed)
    assert seconds["first"] < 20 < seconds["last"]
    assert peak < GB


@pytest.mark.parametrize("verb", ["encode", "tokenize"])
def test_a_million_short_documents(tiny_model: Models, tmp_path: Path, verb: str) -> None:
    source = tmp_path / "c.jsonl"
    texts = [tiny.sentence(i, 12) for i in range(1000)]
    with open(source, "w") as file:
        file.writelines(line(number, texts[number % 1000]) for number in range(1_000_000))
    words: list[Any] = {"encode": ["--dry-run"], "tokenize": ["-o", tmp_path / "t"]}[verb]
    lmk = ["-m", "lmkcli.cli.main", "-q", verb, source, "-m", tiny_model("bert"), "--json"]
    peak, printed = measured(*lmk, *words)
    assert json.loads(printed)["documents"] == 1_000_000
    assert peak < 1.5 * GB
