"""The format of parts: names, ranges, publishing, shards and generations."""

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.artifact.kinds import Origin
from lmkcli.data.collection import WHOLE, Shard
from lmkcli.errors import DataError
from lmkcli.store import part_writer, parts
from lmkcli.store.part_writer import NpyAppender
from lmkcli.store.parts import PartName, PartSlice

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 15)), max_size=12, unique=True)


SOURCE = Origin(name="given")


def name(start: int, stop: int, shard: Shard = WHOLE) -> PartName:
    return PartName(shard, start, stop)


def summary(start: int, stop: int) -> dict[str, object]:
    digest = f"{start} {stop}"
    rows = {"docs": stop - start, "collection": "1:a"}
    return {**rows, "bytes": 0, "arrays": {}, "digest": digest}


def make(folder: Path, start: int, stop: int, shard: Shard = WHOLE) -> Path:
    """Publish a part that contains one file."""
    growing = part_writer.create_part(folder, shard)
    (growing / "part.json").write_text(json.dumps(summary(start, stop)))
    return part_writer.publish_part(growing, name(start, stop, shard))


@given(st.integers(0, 99_998), st.integers(1, 99_999), st.integers(0, 10**12 - 1))
def test_a_printed_name_can_be_parsed(number: int, count: int, start: int) -> None:
    made = PartName(Shard(number, count), start, 10**12 - 1)
    assert PartName.parse(str(made)) == made
    assert PartName.parse(f".growing-{made}") is None


@given(RANGES, st.randoms(use_true_random=False))
def test_the_cover_of_a_shard_has_each_row_once(
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
def test_the_cover_ends_at_the_first_missing_row(ranges: list[tuple[int, int]]) -> None:
    covered = {row for start, rows in ranges for row in range(start, start + rows)}
    reach = next(row for row in range(100) if row not in covered)
    names = [name(start, start + rows) for start, rows in ranges]
    assert parts.covered_rows(parts.cover(names, WHOLE)) == reach


def test_the_overlapping_part_with_the_highest_stop_continues() -> None:
    names = [name(0, 4), name(0, 6), name(4, 9), name(5, 12), name(6, 12), name(14, 20)]
    assert parts.cover(names, WHOLE) == [PartSlice(name(0, 6)), PartSlice(name(5, 12), ((0, 1),))]


def test_a_slice_is_read_from_its_json() -> None:
    piece = PartSlice(name(5, 12, Shard(3, 16)), ((0, 2), (5, 6)))
    assert PartSlice.from_json(json.loads(json.dumps(piece.as_json()))) == piece
    assert piece.rows == 4
    with pytest.raises(DataError, match="make the artifact again"):
        PartSlice.from_json(["nonsense", []])


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_slice_of_a_mask_has_the_rows_of_the_mask(counts: list[bool]) -> None:
    live = np.array(counts)
    piece = PartSlice.of(name(7, 7 + len(counts)), live)
    where = np.flatnonzero(live)
    assert piece.rows == len(where)
    np.testing.assert_array_equal(piece.live, live)
    np.testing.assert_array_equal(piece.at(np.arange(piece.rows)), where)
    np.testing.assert_array_equal(piece.at(np.arange(piece.rows)[::-1]), where[::-1])
    assert live[: piece.skip].any() == 0
    assert piece.skip == len(counts) or live[piece.skip]
    assert PartSlice.from_json(json.loads(json.dumps(piece.as_json()))) == piece


def test_a_generation_lists_the_live_rows(tmp_path: Path) -> None:
    make(tmp_path, 0, 4)
    parts.mark_done(tmp_path, WHOLE, 4)
    assert parts.read_generation(tmp_path) is None
    make(tmp_path, 0, 3, parts.UPDATES)  # written by an update without a generation
    assert parts.read_state(tmp_path, 1) == parts.ArtifactState([PartSlice(name(0, 4))], [])
    slices = [PartSlice(name(0, 3, parts.UPDATES)), PartSlice(name(0, 4), ((1, 3),))]
    generation = parts.Generation(2, SOURCE, slices, 3)
    parts.write_generation(tmp_path, generation)
    assert parts.read_generation(tmp_path) == generation
    assert parts.read_state(tmp_path, 1) == parts.ArtifactState(slices, [])
    path = tmp_path / parts.GENERATION
    path.write_text(path.read_text()[:-9])
    with pytest.raises(DataError, match=r"generation\.json cannot be read"):
        parts.read_state(tmp_path, 1)


@pytest.mark.parametrize("updated", [False, True])
def test_a_part_that_replaced_another_one_is_refused(tmp_path: Path, updated: bool) -> None:
    part = make(tmp_path, 0, 4)
    parts.mark_done(tmp_path, WHOLE, 4)
    if updated:
        slices = [PartSlice(name(0, 4), ((1, 2),))]
        parts.write_generation(tmp_path, parts.Generation(1, SOURCE, slices, 0))
    assert parts.covered_rows(parts.read_state(tmp_path, 1).slices) == 4
    other = {**summary(0, 4), "digest": "of another part"}
    (part / "part.json").write_text(json.dumps(other))
    with pytest.raises(DataError, match=f"{part.name} is not the part"):
        parts.read_state(tmp_path, 1)


def test_parts_are_listed_by_shard_and_row_without_other_files(tmp_path: Path) -> None:
    assert parts.list_parts(tmp_path) == []
    for shard, start in ((1, 0), (0, 5), (0, 0), (10, 0)):
        make(tmp_path, start, start + 5, Shard(shard, 11))
    part_writer.create_part(tmp_path, WHOLE)
    (tmp_path / "parts/notes.txt").write_text("mine")
    found = [(part.shard.number, part.start) for part in parts.list_parts(tmp_path)]
    assert found == [(0, 0), (0, 5), (1, 0), (10, 0)]


def test_the_first_generation_replaces_the_marks_of_the_shards(tmp_path: Path) -> None:
    make(tmp_path, 0, 4)
    parts.mark_done(tmp_path, WHOLE, 4)
    (tmp_path / parts.DONE / "notes.json").write_text("{}")
    state = parts.read_state(tmp_path, 1)
    parts.write_generation(tmp_path, parts.Generation(1, SOURCE, state.slices, 0))
    assert parts.read_state(tmp_path, 1) == state
    assert parts.is_finished(tmp_path, WHOLE)
    (tmp_path / parts.GENERATION).unlink()
    assert parts.read_state(tmp_path, 1).unfinished == [0]
    assert not parts.is_finished(tmp_path, WHOLE)
    assert (tmp_path / parts.DONE / "notes.json").exists(), "a file of the user is gone"


@pytest.mark.parametrize(
    "change", [("[[1, 3]]", "[[0, 2]]"), ('"rows": 4', '"rows": 3'), ("new", "old")]
)
def test_a_generation_that_was_edited_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    make(tmp_path, 0, 4)
    slices = [PartSlice(name(0, 4), ((1, 3),))]
    generation = parts.Generation(1, Origin(name="new"), slices, 4)
    parts.write_generation(tmp_path, generation)
    assert parts.read_generation(tmp_path) == generation
    path = tmp_path / parts.GENERATION
    edited = path.read_text().replace(*change)
    assert edited != path.read_text()
    path.write_text(edited)
    with pytest.raises(DataError, match=r"generation\.json has changed since it was written"):
        parts.read_state(tmp_path, 1)


def test_a_part_that_is_published_twice_stays_the_first(tmp_path: Path) -> None:
    one, other = (part_writer.create_part(tmp_path, WHOLE) for _ in range(2))
    assert one != other
    for growing in (one, other):
        (growing / "rows.txt").write_text(growing.name)
    final = part_writer.publish_part(one, name(0, 5))
    assert part_writer.publish_part(other, name(0, 5)) == final
    assert (final / "rows.txt").read_text() == one.name
    assert [entry.name for entry in (tmp_path / "parts").iterdir()] == [str(name(0, 5))]


def test_a_part_cannot_replace_a_file(tmp_path: Path) -> None:
    growing = part_writer.create_part(tmp_path, WHOLE)
    (tmp_path / "parts" / str(name(0, 5))).write_text("in the way")
    with pytest.raises(OSError, match="directory"):
        part_writer.publish_part(growing, name(0, 5))
    assert growing.is_dir()


def test_a_folder_is_complete_when_every_shard_is_marked_done(tmp_path: Path) -> None:
    first, second, third = (Shard(number, 3) for number in range(3))
    make(tmp_path, 0, 4, first)
    make(tmp_path, 4, 6, first)
    make(tmp_path, 0, 5, third)
    parts.mark_done(tmp_path, first, 6)
    state = parts.read_state(tmp_path, 3)
    assert state.unfinished == [1, 2]
    assert [piece.rows for piece in state.slices] == [4, 2, 5]
    parts.mark_done(tmp_path, second, 0)  # an empty shard
    parts.mark_done(tmp_path, third, 5)
    assert parts.read_state(tmp_path, 3).unfinished == []
    assert parts.done_rows(tmp_path, second) == 0
    assert parts.done_rows(tmp_path, Shard(0, 4)) is None


def test_the_skipped_rows_are_those_of_the_finished_shards(tmp_path: Path) -> None:
    for number, skipped in enumerate([0, 3, 0, 2]):
        parts.mark_done(tmp_path, Shard(number, 5), rows=1, skipped=skipped)
    assert parts.skipped_count(tmp_path, 5) == 5
    assert parts.skipped_count(tmp_path, 4) == 0  # shards of another division


@pytest.mark.parametrize("lost", [(0, 4), (4, 6)])
def test_a_finished_shard_without_one_of_its_parts_is_refused(
    tmp_path: Path, lost: tuple[int, int]
) -> None:
    for start, stop in ((0, 4), (4, 6)):
        make(tmp_path, start, stop)
    parts.mark_done(tmp_path, WHOLE, 6)
    part_writer.remove_part(tmp_path / "parts" / str(name(*lost)))
    with pytest.raises(DataError, match=r"\b6 rows.*\b[04]\b.*0of1\.json"):
        parts.read_state(tmp_path, 1)


def test_old_growing_parts_of_other_machines_are_removed(tmp_path: Path) -> None:
    fresh, old, empty, other = (
        elsewhere(part_writer.create_part(tmp_path, Shard(number, 20))) for number in (1, 1, 1, 11)
    )
    long_ago = time.time() - part_writer.ABANDONED_SECONDS - 60
    for growing in (old, other):
        (growing / "ids.npy").write_bytes(b"half")
        os.utime(growing / "ids.npy", (long_ago, long_ago))
        os.utime(growing, (long_ago, long_ago))
    (fresh / "ids.npy").write_bytes(b"half")
    os.utime(fresh, (long_ago, long_ago))  # only its file is new
    os.utime(empty, (long_ago, long_ago))
    published = make(tmp_path, 0, 5, Shard(1, 20))
    os.utime(published / "part.json", (long_ago, long_ago))
    part_writer.create_part(tmp_path, Shard(1, 20))
    exist = [path.is_dir() for path in (fresh, old, empty, other, published)]
    assert exist == [True, False, False, True, True]


def elsewhere(growing: Path) -> Path:
    """Give a growing part the name that another machine would give it."""
    start, shard, machine, *rest = growing.name.split("-")
    return growing.rename(growing.with_name("-".join([start, shard, f"{machine}1", *rest])))


def test_growing_parts_of_killed_processes_are_removed_at_once(tmp_path: Path) -> None:
    mine = part_writer.create_part(tmp_path, WHOLE)
    with subprocess.Popen(["true"]) as killed:
        killed.wait()
    theirs = mine.with_name(mine.name.replace(f"-{os.getpid()}-", f"-{killed.pid}-"))
    theirs.mkdir()
    (theirs / "ids.npy").write_bytes(b"half")
    part_writer.create_part(tmp_path, WHOLE)
    assert mine.is_dir()
    assert not theirs.exists()


def test_nothing_behind_a_link_is_removed(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (away / "ids.npy").write_bytes(b"mine")
    os.utime(away / "ids.npy", (0, 0))
    os.utime(away, (0, 0))
    (tmp_path / "parts").mkdir()
    growing = tmp_path / "parts" / ".growing-0-1-2-3"
    growing.symlink_to(away)
    os.utime(growing, (0, 0), follow_symlinks=False)
    part = tmp_path / "parts" / str(name(0, 4))
    part.symlink_to(away)
    part_writer.create_part(tmp_path, WHOLE)
    assert not growing.is_symlink()
    part_writer.retire_part(part)
    assert not part.is_symlink()
    assert (away / "ids.npy").read_bytes() == b"mine"


@pytest.mark.parametrize(("dtype", "width"), [("int32", ()), ("float16", (3,)), ("int64", (4,))])
def test_numpy_reads_an_array_that_has_grown(
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


def test_an_array_without_appended_rows_is_empty(tmp_path: Path) -> None:
    NpyAppender(tmp_path / "a.npy", "float32", (7,)).close()
    assert np.load(tmp_path / "a.npy", mmap_mode="r").shape == (0, 7)
