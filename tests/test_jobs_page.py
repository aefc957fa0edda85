"""A loop over shards, and the crontab of docs/jobs.md, run as printed."""

import fcntl
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.vectors.stored import Vectors
from tests import tiny
from tests.forkserver import ForkServer

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
Models = Callable[[str], Path]


def block(language: str, word: str) -> str:
    """The only fenced block of the page that contains a word."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (one,) = [text for text in found if word in text]
    return str(one)


# A process for each GPU, as people start them.
LOOP = """
for i in 0 1; do
  CUDA_VISIBLE_DEVICES=$i lmk encode "$COLLECTION" -m "$MODEL" -o "$VECTORS" --shard $i/2 &
done
wait
lmk show "$VECTORS"
"""


def shell(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", text], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_a_loop_over_shards_is_shown_and_repeated(
    forkserver: ForkServer, tiny_model: Models, tmp_path: Path
) -> None:
    records = [{"_id": f"d{i}", "text": tiny.sentence(i, 20)} for i in range(40)]
    corpus = tmp_path / "c.jsonl"
    tiny.write_jsonl(corpus, records)
    good = corpus.read_bytes()
    corpus.write_bytes(good[:-3] + b"!!\n")  # the last shard fails at the last line
    stat = corpus.stat()
    lmk = forkserver.program(tmp_path / "bin" / "lmk", "tests.forked:lmk_paced", 0)
    env = {
        "PATH": f"{lmk.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLLECTION": str(corpus),
        "MODEL": str(tiny_model("bert")),
        "VECTORS": str(tmp_path / "v"),
    }
    first = shell(LOOP, tmp_path, **env)
    assert "not valid JSON" in first.stderr
    assert "shards: 1 of 2 finished" in first.stdout
    assert re.search(r"^  1: \d+$", first.stdout, re.MULTILINE)
    corpus.write_bytes(good)
    os.utime(corpus, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = shell(LOOP, tmp_path, **env)
    assert "shards: 2 of 2 finished" in again.stdout, again.stderr
    assert Vectors(tmp_path / "v").rows == 40


def test_the_crontab_runs_alone(
    forkserver: ForkServer, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """As cron does: sh, an almost empty environment, and no other working folder than home."""
    path, line = block("crontab", "flock").splitlines()
    schedule, command = re.fullmatch(r"((?:\S+ ){5}) *(.*)", line).groups()  # type: ignore[union-attr]
    assert all(re.fullmatch(r"[\d*,/-]+", field) for field in schedule.split())
    assert "%" not in command  # cron reads a bare % as a newline
    (tmp_path / "corpus.jsonl").write_bytes((beir / "corpus.jsonl").read_bytes())
    forkserver.program(tmp_path / "bin" / "lmk", "tests.forked:lmk_paced", 0)
    command = command.replace("/data", str(tmp_path)).replace("minilm", str(tiny_model("bert")))
    env = {"PATH": f"{tmp_path / 'bin'}:{path.partition(':')[2]}", "PYTHONPATH": str(ROOT)}
    with open(tmp_path / "encode.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert shell(command, ROOT, **env).returncode == 1  # another process holds the lock
    assert not (tmp_path / "vectors").exists()
    done = shell(command, ROOT, **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Vectors(tmp_path / "vectors").rows == 60
    assert "60 documents" in (tmp_path / "encode.log").read_text()
