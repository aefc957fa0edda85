"""A run in pieces: as many queries at once as there is room for, and nothing left where one fails."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.run import Run, ranked, read_run
from lmkcli.errors import DataError
from lmkcli.manifest import Manifest
from lmkcli.progress import Report
from lmkcli.retrieval import room, searching
from lmkcli.retrieval.room import Room
from lmkcli.store import outputs
from tests.retrieval.test_sharding import QUERIES, Folder, folder, opened, same, searched

Models = Callable[[str], Path]
assert folder  # a fixture
MB = 1_000_000
ONE = np.ones(1, np.float32)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the process holds, which a test may change."""
    now = [500 * MB]
    monkeypatch.setattr(room, "held_memory", lambda: now[0])
    return now


def test_fewer_queries_where_there_is_less_room(held: list[int]) -> None:
    limit = Room(2000 * MB)
    assert limit.queries(1000) == room.FIRST  # what the model will hold is not known yet
    many = limit.queries(1000)
    held[0] += 1000 * MB
    few = limit.queries(1000)
    assert room.FIRST < few < many / 3
    assert limit.queries(10) > few  # a shorter run takes less for each


def test_no_room_at_all_says_what_is_needed(held: list[int]) -> None:
    said = r"about 160 MB beside the 500 MB .* allows 600 MB in all; raise it, or lower -k"
    with pytest.raises(DataError, match=said):
        Room(600 * MB).queries(1000)


def test_the_run_is_the_same_in_any_pieces(
    folder: Folder, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(folder.fill())
    asked = []
    search = index.search
    monkeypatch.setattr(
        index, "search", lambda queries, k: asked.append(len(queries)) or search(queries, k)
    )
    monkeypatch.setattr(searching, "QUERIES_AT_ONCE", 1024)
    monkeypatch.setattr(room, "FIRST", 2)
    runs = [*searching.search(index, QUERIES, 25, "tag", Report().progress, Room(2000 * MB))]
    assert asked == [2, 5]
    assert {run.tag for run in runs} == {"tag"}
    both = Run(runs[0].rankings | dict(runs[1].rankings), "tag")  # type: ignore[operator]
    same(both, searched(index, 25), 25)


def test_a_search_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[Run]:
        yield Run({"q": ranked(["d"], ONE)})
        raise DataError("the disk went away")

    path = tmp_path / "run.trec"
    with pytest.raises(DataError, match="went away"):
        searching.write(path, pieces(), Manifest("run", {}, facts={}))
    assert not [*tmp_path.iterdir()]
    whole = Run({"q": ranked(["d"], ONE), "r": ranked([], ONE[:0])})
    assert searching.write(path, [whole], Manifest("run", {}, facts={})) == (2, 1, 1, 0)
    assert outputs.sidecar(path).is_file()
    assert list(read_run(path).rankings) == ["q"]


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="counts memory as Linux tells it"
)
def test_a_search_holds_no_more_than_it_may(tiny_model: Models, tmp_path: Path) -> None:
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
    made = ["encode", "c", "-m", str(tiny_model("bert")), "-o", "v", "--pool", "mean"]
    subprocess.run([*lmk, *made], cwd=tmp_path, check=True)
    search = ["search", "v", "c", "-k", "1000", "--all-queries"]
    free = most(*lmk, *search, "-o", "free.trec", cwd=tmp_path)
    limit = free - 150 * MB
    bound = most(
        *lmk, *search, "-o", "bound.trec", "--max-memory", f"{limit // MB}MB", cwd=tmp_path
    )
    assert bound < limit
    whole = (tmp_path / "free.trec").read_bytes()
    assert whole == (tmp_path / "bound.trec").read_bytes()
    slices = (("--shard", "0/2"), ("--shard", "1/2"), ())  # the last joins them
    sizes = [
        most(
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


def most(*words: str, cwd: Path) -> int:
    """The most bytes of its own that a command held."""
    peak = 0
    with subprocess.Popen(words, cwd=cwd) as running:
        while running.poll() is None:
            try:
                lines = Path(f"/proc/{running.pid}/status").read_text().splitlines()
            except OSError:
                break
            held = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
            peak = max([peak, *held])
            time.sleep(0.02)
    assert running.returncode == os.EX_OK
    return 1024 * peak
