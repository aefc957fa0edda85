"""Names, ranges, publishing: what is there is whole, and every row counts once."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import WHOLE, Shard
from lmkcli.errors import DataError
from lmkcli.store import part_folders, parts
from lmkcli.store.part_writer import NpyAppender
from lmkcli.store.parts import PartName, PartSlice

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 15)), max_size=12, unique=True)


def name(start: int, stop: int, shard: Shard = WHOLE) -> PartName:
    return PartName(shard, start, stop)


def make(folder: Path, start: int, stop: int, shard: Shard = WHOLE) -> Path:
    """A published part that holds one file."""
    growing = part_folders.create(folder, shard)
    (growing / "part.json").write_text(json.dumps({"digest": f"{start} {stop}"}))
    return part_folders.publish(growing, name(start, stop, shard))


@given(st.integers(0, 99_998), st.integers(1, 99_999), st.integers(0, 10**12 - 1))
def test_a_name_prints_back_as_itself(number: int, count: int, start: int) -> None:
    made = PartName(Shard(number, count), start, 10**12 - 1)
    assert PartName.parse(str(made)) == made
    assert PartName.parse(f".growing-{made}") is None


@given(RANGES, st.randoms(use_true_random=False))
def test_what_covers_a_shard_has_no_gap_and_no_row_twice(
    ranges: list[tuple[int, int]], random: object
) -> None:
    names = [name(start, start + rows) for start, rows in ranges]
    others = [name(0, 99, Shard(1, 2))]
    made = parts.cover([*names, *others], WHOLE)
    rows = [row for piece in made for row in range(piece.name.start + piece.skip, piece.name.stop)]
    assert rows == list(range(parts.covered_rows(made)))
    assert all(piece.rows > 0 and piece.skip >= 0 for piece in made)
    shuffled = [*others, *names]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert parts.cover(shuffled, WHOLE) == made


@given(RANGES)
def test_the_cover_reaches_as_far_as_any(ranges: list[tuple[int, int]]) -> None:
    covered = {row for start, rows in ranges for row in range(start, start + rows)}
    reach = next(row for row in range(100) if row not in covered)
    names = [name(start, start + rows) for start, rows in ranges]
    assert parts.covered_rows(parts.cover(names, WHOLE)) == reach


def test_of_overlapping_parts_the_one_that_reaches_farthest_goes_on() -> None:
    names = [name(0, 4), name(0, 6), name(4, 9), name(5, 12), name(6, 12), name(14, 20)]
    assert parts.cover(names, WHOLE) == [PartSlice(name(0, 6)), PartSlice(name(5, 12), ((0, 1),))]


def test_a_slice_is_recorded_and_read_again() -> None:
    piece = PartSlice(name(5, 12, Shard(3, 16)), ((0, 2), (5, 6)))
    assert PartSlice.from_json(json.loads(json.dumps(piece.as_json()))) == piece
    assert piece.rows == 4
    with pytest.raises(DataError, match="make the artifact again"):
        PartSlice.from_json(["nonsense", []])


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_slice_of_a_mask_counts_the_rows_of_the_mask(counts: list[bool]) -> None:
    alive = np.array(counts)
    piece = PartSlice.of(name(7, 7 + len(counts)), alive)
    where = np.flatnonzero(alive)
    assert piece.rows == len(where)
    np.testing.assert_array_equal(piece.live, alive)
    np.testing.assert_array_equal(piece.at(np.arange(piece.rows)), where)
    np.testing.assert_array_equal(piece.at(np.arange(piece.rows)[::-1]), where[::-1])
    assert alive[: piece.skip].any() == 0
    assert piece.skip == len(counts) or alive[piece.skip]
    assert PartSlice.from_json(json.loads(json.dumps(piece.as_json()))) == piece


def test_a_generation_says_what_counts(tmp_path: Path) -> None:
    make(tmp_path, 0, 4)
    parts.mark_done(tmp_path, WHOLE, 4)
    assert parts.generation(tmp_path) is None
    make(tmp_path, 0, 3, parts.ADDED)  # of an update that has published nothing
    assert parts.state(tmp_path, 1) == parts.State([PartSlice(name(0, 4))], [])
    slices = [PartSlice(name(0, 3, parts.ADDED)), PartSlice(name(0, 4), ((1, 3),))]
    data = {"number": 2, "source": {}, "rows": 3, "parts": [piece.as_json() for piece in slices]}
    (tmp_path / parts.GENERATION).write_text(json.dumps(data))
    assert parts.generation(tmp_path) == parts.Generation(2, {}, slices, 3)
    assert parts.state(tmp_path, 1) == parts.State(slices, [])
    (tmp_path / parts.GENERATION).write_text(json.dumps(data)[:-9])
    with pytest.raises(DataError, match=r"generation\.json cannot be read"):
        parts.state(tmp_path, 1)


def test_parts_are_listed_by_shard_and_row_whatever_else_is_there(tmp_path: Path) -> None:
    assert parts.list_parts(tmp_path) == []
    for shard, start in ((1, 0), (0, 5), (0, 0), (10, 0)):
        make(tmp_path, start, start + 5, Shard(shard, 11))
    part_folders.create(tmp_path, WHOLE)
    (tmp_path / "parts/notes.txt").write_text("mine")
    found = [(part.shard.number, part.start) for part in parts.list_parts(tmp_path)]
    assert found == [(0, 0), (0, 5), (1, 0), (10, 0)]


def test_publishing_twice_keeps_the_first(tmp_path: Path) -> None:
    one, other = (part_folders.create(tmp_path, WHOLE) for _ in range(2))
    assert one != other
    for growing in (one, other):
        (growing / "rows.txt").write_text(growing.name)
    final = part_folders.publish(one, name(0, 5))
    assert part_folders.publish(other, name(0, 5)) == final
    assert (final / "rows.txt").read_text() == one.name
    assert [entry.name for entry in (tmp_path / "parts").iterdir()] == [str(name(0, 5))]


def test_a_part_cannot_replace_a_file(tmp_path: Path) -> None:
    growing = part_folders.create(tmp_path, WHOLE)
    (tmp_path / "parts" / str(name(0, 5))).write_text("in the way")
    with pytest.raises(OSError, match="directory"):
        part_folders.publish(growing, name(0, 5))
    assert growing.is_dir()


def test_a_folder_is_complete_when_every_shard_has_said_so(tmp_path: Path) -> None:
    first, second, third = (Shard(number, 3) for number in range(3))
    make(tmp_path, 0, 4, first)
    make(tmp_path, 4, 6, first)
    make(tmp_path, 0, 5, third)
    parts.mark_done(tmp_path, first, 6)
    state = parts.state(tmp_path, 3)
    assert state.unfinished == [1, 2]
    assert [piece.rows for piece in state.slices] == [4, 2, 5]
    parts.mark_done(tmp_path, second, 0)  # an empty shard
    parts.mark_done(tmp_path, third, 5)
    assert parts.state(tmp_path, 3).unfinished == []
    assert parts.done_rows(tmp_path, second) == 0
    assert parts.done_rows(tmp_path, Shard(0, 4)) is None


@pytest.mark.parametrize("lost", [(0, 4), (4, 6)])
def test_a_finished_shard_that_lost_a_part_is_refused(
    tmp_path: Path, lost: tuple[int, int]
) -> None:
    for start, stop in ((0, 4), (4, 6)):
        make(tmp_path, start, stop)
    parts.mark_done(tmp_path, WHOLE, 6)
    part_folders.remove(tmp_path / "parts" / str(name(*lost)))
    with pytest.raises(DataError, match=r"should have 6 rows and has [04].*delete .*0of1\.json"):
        parts.state(tmp_path, 1)


def test_what_killed_jobs_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    fresh, old, empty, other = (
        part_folders.create(tmp_path, Shard(number, 20)) for number in (1, 1, 1, 11)
    )
    long_ago = time.time() - part_folders.ABANDONED_SECONDS - 60
    for growing in (old, other):
        (growing / "ids.npy").write_bytes(b"half")
        os.utime(growing / "ids.npy", (long_ago, long_ago))
        os.utime(growing, (long_ago, long_ago))
    (fresh / "ids.npy").write_bytes(b"half")
    os.utime(fresh, (long_ago, long_ago))  # only its file was touched lately
    os.utime(empty, (long_ago, long_ago))
    published = make(tmp_path, 0, 5, Shard(1, 20))
    os.utime(published / "part.json", (long_ago, long_ago))
    part_folders.create(tmp_path, Shard(1, 20))
    there = [path.is_dir() for path in (fresh, old, empty, other, published)]
    assert there == [True, False, False, True, True]


@pytest.mark.parametrize(("dtype", "width"), [("int32", ()), ("float16", (3,)), ("int64", (4,))])
def test_a_growing_array_is_read_by_numpy(
    tmp_path: Path, dtype: str, width: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    blocks = [random.integers(0, 99, (rows, *width)) for rows in (5, 0, 1, 2000)]
    appender = NpyAppender(tmp_path / "a.npy", dtype, width)
    written = [appender.append(block) for block in blocks]
    assert appender.rows == 2006
    appender.close()
    appender.close()
    whole = np.concatenate(blocks).astype(dtype)
    assert b"".join(written) == whole.tobytes()
    for mode in (None, "r"):
        made = np.load(tmp_path / "a.npy", mmap_mode=mode, allow_pickle=False)
        assert made.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(made, whole)


def test_an_array_to_which_nothing_was_appended_is_empty(tmp_path: Path) -> None:
    NpyAppender(tmp_path / "a.npy", "float32", (7,)).close()
    assert np.load(tmp_path / "a.npy", mmap_mode="r").shape == (0, 7)
