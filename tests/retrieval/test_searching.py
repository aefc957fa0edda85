"""A run in pieces: as many queries as fit in memory, and no file if a piece fails."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lmkcli.artifact import outputs
from lmkcli.data.run import Run, ranked, read_run
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.retrieval import searching
from lmkcli.retrieval.searching import MemoryBudget
from tests import manifests
from tests.retrieval.test_sharding import QUERIES, Folder, folder, opened, same, searched

Models = Callable[[str], Path]
assert folder  # a fixture
MB = 1_000_000
ONE = np.ones(1, np.float32)


@pytest.fixture
def used_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of the process, in bytes, which a test may change."""
    now = [500 * MB]
    monkeypatch.setattr(searching, "anonymous_memory", lambda: now[0])
    return now


def test_less_memory_allows_fewer_queries(used_memory: list[int]) -> None:
    limit = MemoryBudget(2000 * MB)
    assert limit.queries(1000) == searching.FIRST  # the memory of the model is not known yet
    many = limit.queries(1000)
    used_memory[0] += 1000 * MB
    few = limit.queries(1000)
    assert searching.FIRST < few < many / 3
    assert limit.queries(10) > few  # a shorter run needs less memory per query


def test_a_budget_that_is_too_small_is_an_error(used_memory: list[int]) -> None:
    message = r"about 161 MB; .* use 500 MB .* allows 600 MB in total; raise it, or lower -k"
    with pytest.raises(DataError, match=message):
        MemoryBudget(600 * MB).queries(1000)


def test_a_search_that_has_begun_does_not_end_for_lack_of_memory(used_memory: list[int]) -> None:
    limit = MemoryBudget(2000 * MB)
    limit.queries(1000)
    used_memory[0] = 1700 * MB
    assert limit.queries(1000) > searching.FIRST
    used_memory[0] = 1990 * MB  # freed by the earlier batches, and kept by the allocator
    assert limit.queries(1000) == searching.FIRST


def test_pieces_do_not_change_a_run(
    folder: Folder, used_memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(folder.fill())
    counts = []
    search = index.search
    monkeypatch.setattr(
        index, "search", lambda queries, k: counts.append(len(queries)) or search(queries, k)
    )
    monkeypatch.setattr(searching, "QUERIES_AT_ONCE", 1024)
    budget = MemoryBudget(2000 * MB, first=2)
    runs = [*searching.search(index, QUERIES, 25, "tag", Report().progress, budget)]
    assert counts == [2, 5]
    assert {run.tag for run in runs} == {"tag"}
    both = Run(runs[0].rankings | dict(runs[1].rankings), "tag")  # type: ignore[operator]
    same(both, searched(index, 25), 25)


def test_a_search_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[Run]:
        yield Run({"q": ranked(["d"], ONE)})
        raise DataError("the disk went away")

    path = tmp_path / "run.trec"
    with pytest.raises(DataError, match="went away"):
        searching.write(path, pieces(), manifests.run())
    assert not [*tmp_path.iterdir()]
    whole = Run({"q": ranked(["d"], ONE), "r": ranked([], ONE[:0])})
    assert searching.write(path, [whole], manifests.run()) == (2, 1, 1, 0, 0, 0)
    assert outputs.sidecar(path).is_file()
    assert list(read_run(path).rankings) == ["q"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_a_search_stays_within_its_budget(tiny_model: Models, tmp_path: Path) -> None:
    words = ["river", "stone", "copper", "bread", "autumn", "keel", "lantern", "orchard"]
    (tmp_path / "c" / "qrels").mkdir(parents=True)
    with open(tmp_path / "c" / "corpus.jsonl", "w") as file:
        for number in range(4000):
            text = " ".join(words[number // 8**place % 8] for place in range(4))
            file.write(json.dumps({"_id": f"d{number}", "text": text}) + "\n")
    with open(tmp_path / "c" / "queries.jsonl", "w") as file:
        for number in range(3000):
            text = " ".join(words[number // 8**place % 8] for place in range(4))
            file.write(json.dumps({"_id": f"q{number}", "text": text}) + "\n")
    lmk = [sys.executable, "-c", "from lmkcli.cli.main import main; main()"]
    encode = ["encode", "c", "-m", str(tiny_model("bert")), "-o", "v", "--pool", "mean"]
    subprocess.run([*lmk, *encode], cwd=tmp_path, check=True)
    search = ["search", "v", "c", "-k", "1000", "--all-queries"]
    free = peak_memory(*lmk, *search, "-o", "free.trec", cwd=tmp_path)
    limit = free - 150 * MB
    bound = peak_memory(
        *lmk, *search, "-o", "bound.trec", "--max-memory", f"{limit // MB}MB", cwd=tmp_path
    )
    assert bound < limit
    whole = (tmp_path / "free.trec").read_bytes()
    assert whole == (tmp_path / "bound.trec").read_bytes()
    slices = (("--shard", "0/2"), ("--shard", "1/2"), ())  # the last one joins them
    sizes = [
        peak_memory(
            *lmk,
            *search,
            "-o",
            "slices.trec",
            *slice_,
            "--max-memory",
            f"{limit // MB}MB",
            cwd=tmp_path,
        )
        for slice_ in slices
    ]
    assert max(sizes) < limit
    assert whole == (tmp_path / "slices.trec").read_bytes()


def peak_memory(*words: str, cwd: Path) -> int:
    """The most bytes of memory of its own that a command was seen to use."""
    peak = 0
    with subprocess.Popen(words, cwd=cwd) as running:
        while running.poll() is None:
            try:
                lines = Path(f"/proc/{running.pid}/status").read_text().splitlines()
            except OSError:
                break
            own = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
            peak = max([peak, *own])
            time.sleep(0.02)
    assert running.returncode == os.EX_OK
    return 1024 * peak
