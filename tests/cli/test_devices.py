"""`--device cpu,cpu`: a process for each device, and one result."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.data.run import read_run
from lmkcli.vectors.stored import Vectors
from tests.conftest import Lmk

Models = Callable[[str], Path]
COMPUTED = ("--dtype", "fp32", "--store-dtype", "fp32", "--batch-tokens", 128)


def encoding(beir: Path, model: Path, output: Path, device: str, *more: object) -> tuple[Any, ...]:
    given = ("--pool", "lmk", "--gran", 8, *COMPUTED, "--device", device, *more)
    return ("encode", beir, "-m", model, *given, "-o", output)


def stored(folder: Path) -> tuple[list[str], Any, Any]:
    vectors = Vectors(folder)
    rows = np.arange(vectors.rows)
    return vectors.ids(rows), vectors.at(rows).vectors, vectors.counts()


@pytest.mark.parametrize(
    "devices", ["cpu,cpu", pytest.param("cpu,cpu,cpu", marks=pytest.mark.slow)]
)
def test_one_command_makes_one_folder(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, devices: str
) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    alone = json.loads(lmk(*encoding(beir, tiny_model("bert"), one, "cpu", "--json")).out)
    done = lmk(*encoding(beir, tiny_model("bert"), several, devices, "--json"))
    work = {"encoded", "seconds", "ms_per_document", "peak_memory"}  # of one process
    expected = {key: value for key, value in alone.items() if key not in work}
    assert {**json.loads(done.out), "output": ""} == {**expected, "output": ""}
    (ids, vectors, counts), (other_ids, others, other_counts) = map(stored, (one, several))
    assert ids == other_ids
    np.testing.assert_allclose(vectors, others, atol=1e-6)
    assert counts == other_counts
    lmk("verify", several)
    words = ("-k", 7, "--dtype", "fp32", "-o")
    lmk("search", one, beir, *words, tmp_path / "one.trec", "--device", "cpu")
    lmk("search", several, beir, *words, tmp_path / "several.trec", "--device", devices)
    runs = [read_run(tmp_path / f"{name}.trec").rankings for name in ("one", "several")]
    assert [*runs[0]] == [*runs[1]]
    for query, ranking in runs[0].items():
        assert ranking.doc_ids == runs[1][query].doc_ids
    assert not list(tmp_path.glob("several.trec.shards*"))
    up_to_date = lmk("search", several, beir, *words, tmp_path / "several.trec", "--device", "cpu")
    assert "up to date" in up_to_date.err


@pytest.mark.slow
def test_the_same_command_again(lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path) -> None:
    vectors, run = tmp_path / "v", tmp_path / "v.trec"
    for _ in range(2):
        lmk(*encoding(beir, tiny_model("bert"), vectors, "cpu,cpu"))
    search = ("search", vectors, beir, "-k", 7, "--dtype", "fp32", "-o", run, "--device", "cpu,cpu")
    lmk(*search)
    first = run.read_bytes()
    lmk(*search, "--if-exists", "overwrite")
    assert run.read_bytes() == first


@pytest.mark.slow
def test_an_error_of_a_process_is_the_error_of_the_command(
    lmk: Lmk, tiny_model: Models, tmp_path: Path
) -> None:
    docs = [{"_id": f"d{n}", "text": "words " * (3 if n < 30 else 4000)} for n in range(40)]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, docs)))
    words = encoding(tmp_path / "docs.jsonl", tiny_model("bert"), tmp_path / "v", "cpu,cpu")
    done = lmk(*words, "--on-overflow", "error", code=3)
    assert "has 4000 tokens" in done.err  # of d30, or of d35 from the other process
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("--shard", "0/2"),
        ("--if-exists", "update"),
    ],
)
def test_what_needs_one_device_is_refused(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = lmk(*encoding(beir, tiny_model("bert"), tmp_path / "v", "cpu,cpu", *words), code=2)
    assert words[0] in done.err
    assert "one device" in done.err


def test_other_commands_use_one_device(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    vectors = tmp_path / "v"
    lmk(*encoding(beir, tiny_model("bert"), vectors, "cpu"))
    done = lmk("search", vectors, "-q", "rivers", "--device", "cpu,cpu", code=2)
    assert "give queries and -o" in done.err
    done = lmk("verify", vectors, "--device", "cpu,cpu", code=2)
    assert "only lmk encode and exact search use several devices" in done.err
    done = lmk(*encoding(beir, tiny_model("bert"), tmp_path / "w", "all"), code=3)
    assert "no CUDA device" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["main", "child", "signal"])
def test_kills_and_signals(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, victim: str
) -> None:
    """The processes end with the command, and the same command completes the folder."""
    words = [*map(str, encoding(beir, tiny_model("bert"), tmp_path / "v", "cpu,cpu"))]
    words += ["--batch-size", "1"]
    started = subprocess.Popen(
        [sys.executable, "-P", "-m", "lmkcli.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600  # generous, for a busy machine
    while len(children := tasks_of(started.pid)) < 2 or not (tmp_path / "v").exists():
        assert started.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if victim == "main":
        started.kill()
    elif victim == "child":
        os.kill(children[0], signal.SIGKILL)
    else:
        os.killpg(started.pid, signal.SIGTERM)
    _, err = started.communicate(timeout=300)
    if victim != "main":
        assert started.returncode in (0, 75), err  # 0: the work was done before
        assert "Traceback" not in err
    while any(map(alive, children)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lmk(*words)
    lmk(*encoding(beir, tiny_model("bert"), tmp_path / "undisturbed", "cpu"))
    (ids, vectors, counts), (other_ids, others, other_counts) = (
        stored(tmp_path / name) for name in ("v", "undisturbed")
    )
    assert ids == other_ids
    np.testing.assert_allclose(vectors, others, atol=1e-6)
    assert counts == other_counts


def tasks_of(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            for name in task.read_text().split():
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                if b"lmkcli.operations.device_tasks" in line:
                    found.append(int(name))
        except OSError:
            continue
    return found


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
