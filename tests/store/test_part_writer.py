"""Writing parts: appending, publishing, stops, and duplicate ids."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.artifact import manifest
from lmkcli.data.collection import WHOLE, CollectionDigest, Doc, doc_hash
from lmkcli.errors import DataError, Stopped
from lmkcli.progress import Report
from lmkcli.store import part_writer, parts
from lmkcli.store.doctable import DocRows, DocTable
from lmkcli.store.part_reader import Counts
from lmkcli.store.part_writer import PartTarget, PartWriter, UniqueIds, ids_of, shard_writer
from lmkcli.store.parts import PartName, PartSlice, part_summary
from tests import manifests

ARRAYS = {"vectors": ("float16", (2,)), "ids": ("int32", ())}
DOCS = [Doc("a", "one"), Doc("b", "two", "T"), Doc("c", "")]


def rows(docs: list[Doc]) -> DocRows:
    """Each document has one token for each letter, and loses every third."""
    tokens = np.array([len(doc.text) for doc in docs], np.int64)
    counts = {"tokens": tokens, "lost": tokens // 3, "vectors": np.ones_like(tokens)}
    return DocRows(docs, [doc_hash(doc) for doc in docs], counts)


def arrays(docs: list[Doc]) -> dict[str, Any]:
    return {"vectors": np.ones((len(docs), 2)), "ids": np.arange(2 * len(docs))}


def target(folder: Path) -> PartTarget:
    return PartTarget(folder, WHOLE, ARRAYS)


def written(folder: Path, docs: list[Doc], start: int = 0) -> PartName:
    """Write a part with some documents. Returns its name."""
    with PartWriter(target(folder), Report(), start) as writer:
        writer.append(rows(docs), arrays(docs))
    return PartName(WHOLE, start, writer.row)


def test_a_published_part_contains_all_appended_rows(tmp_path: Path) -> None:
    name = written(tmp_path, DOCS, start=7)
    assert (name.start, name.stop) == (7, 10)
    assert parts.list_parts(tmp_path) == [name]
    folder = tmp_path / "parts" / str(name)
    assert sorted(path.name for path in folder.iterdir()) == [
        "docs.parquet", "ids.npy", "part.json", "vectors.npy",
    ]  # fmt: skip
    assert np.load(folder / "vectors.npy").shape == (3, 2)
    assert np.load(folder / "ids.npy").tolist() == list(range(6))
    assert list(DocTable(folder / "docs.parquet").docs()) == DOCS


def test_a_part_records_its_counts_and_digests(tmp_path: Path) -> None:
    summary = part_summary(tmp_path, written(tmp_path, DOCS))
    whole = CollectionDigest()
    for doc in DOCS:
        whole.add(doc_hash(doc))
    assert summary.collection == str(whole)
    assert {key: getattr(summary, key) for key in Counts().as_json()} == {
        "docs": 3, "tokens": 6, "lost": 2, "cut": 2, "empty": 1, "vectors": 3,
    }  # fmt: skip
    texts = sum(len(doc.text) + len(doc.title) for doc in DOCS)
    assert summary.bytes == texts + sum(array.nbytes for array in arrays(DOCS).values())
    again = part_summary(tmp_path / "b", written(tmp_path / "b", DOCS, start=5))
    assert again.digest == summary.digest
    other = [DOCS[0], DOCS[1]._replace(text="too"), DOCS[2]]
    assert part_summary(tmp_path / "c", written(tmp_path / "c", other)).digest != summary.digest


def test_the_digest_depends_on_the_arrays(tmp_path: Path) -> None:
    digests = set()
    for value in (0.0, 1.0):
        with PartWriter(target(tmp_path / str(value)), Report()) as writer:
            writer.append(rows(DOCS[:1]), {"vectors": np.full((1, 2), value)})
        name = PartName(WHOLE, 0, 1)
        digests.add(part_summary(tmp_path / str(value), name).digest)
    assert len(digests) == 2


def test_an_error_removes_the_growing_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        with PartWriter(target(tmp_path), Report()) as writer:
            with monkeypatch.context() as patch:
                patch.setattr(part_writer, "PART_BYTES", 1)
                writer.append(rows(DOCS[:1]), arrays(DOCS[:1]))
            writer.append(rows(DOCS[1:]), arrays(DOCS[1:]))
            assert (writer.row, writer.array_rows("ids")) == (3, 4)
            raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        write()
    assert parts.list_parts(tmp_path) == [PartName(WHOLE, 0, 1)]
    assert len(list((tmp_path / "parts").iterdir())) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_an_abandoned_part_leaves_no_file_open(tmp_path: Path) -> None:
    def links() -> list[str]:
        paths = [entry.path for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
        return [os.readlink(path) for path in paths if os.path.lexists(path)]

    def write(writer: PartWriter) -> None:
        with writer:
            writer.append(rows(DOCS), arrays(DOCS))
            assert any(link.endswith("ids.npy") for link in links())
            raise DataError("broken")

    writer = PartWriter(
        target(tmp_path), Report()
    )  # still used, so that nothing else closes its files
    with pytest.raises(DataError, match="broken"):
        write(writer)
    assert not [link for link in links() if str(tmp_path) in link]


@pytest.mark.parametrize("by", ["the writer", "the block"])
def test_a_stop_publishes_all_appended_rows(tmp_path: Path, by: str) -> None:
    """The writer notices a stop between two batches, and an encoder notices it within one."""

    def write() -> None:
        report = Report(stopping=lambda: by == "the writer")
        with PartWriter(target(tmp_path), report) as writer:
            writer.append(rows(DOCS), arrays(DOCS))
            raise Stopped("within a batch")

    with pytest.raises(Stopped):
        write()
    assert parts.list_parts(tmp_path) == [PartName(WHOLE, 0, 3)]
    assert len(list((tmp_path / "parts").iterdir())) == 1


@pytest.mark.parametrize(("limit", "value"), [("PART_BYTES", 8), ("PART_SECONDS", 0.0)])
def test_a_part_is_full_by_bytes_or_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    with PartWriter(target(tmp_path), Report()) as writer:
        writer.append(rows(DOCS[:1]), arrays(DOCS[:1]))
        assert parts.list_parts(tmp_path) == []
        monkeypatch.setattr(part_writer, limit, value)
        writer.append(rows(DOCS[1:2]), arrays(DOCS[1:2]))
        assert parts.list_parts(tmp_path) == [PartName(WHOLE, 0, 2)]
        assert writer.array_rows("ids") == 0  # of the next part
        writer.append(rows(DOCS[2:]), arrays(DOCS[2:]))
    assert [(name.start, name.stop) for name in parts.list_parts(tmp_path)] == [(0, 2), (2, 3)]


def test_without_rows_no_part_is_published(tmp_path: Path) -> None:
    with PartWriter(target(tmp_path), Report(), row=7) as writer:
        writer.append(rows([]), arrays([]))
    assert writer.row == 7
    assert list((tmp_path / "parts").iterdir()) == []


def test_a_shard_continues_after_its_parts_and_remembers_their_ids(tmp_path: Path) -> None:
    manifest.claim(tmp_path, manifests.tokens())
    written(tmp_path, DOCS[:2])
    with shard_writer(target(tmp_path), Report()) as writer:
        assert writer.row == 2
        writer.append(rows(DOCS[2:]), arrays(DOCS[2:]))
    assert [(name.start, name.stop) for name in parts.list_parts(tmp_path)] == [(0, 2), (2, 3)]
    assert parts.done_rows(tmp_path, WHOLE) == 3
    again = shard_writer(target(tmp_path), Report())
    with pytest.raises(DataError, match=r"notes: .*'a'"), again as writer:
        writer.append(rows(DOCS[:1]), arrays(DOCS[:1]), "notes")


@given(st.lists(st.lists(st.text(max_size=2), max_size=8), max_size=12))
def test_duplicates_are_found_as_by_a_set(batches: list[list[str]]) -> None:
    seen, known = UniqueIds(), set[str]()
    for batch in batches:
        repeated = {i for number, i in enumerate(batch) if i in known or i in batch[:number]}
        if repeated:
            with pytest.raises(DataError, match="occurs twice") as caught:
                seen.add(batch, "here")
            assert any(f"here: the document id {i!r} " in str(caught.value) for i in repeated)
            return
        seen.add(batch, "here")
        known |= set(batch)


def test_lone_surrogates_are_distinct_ids() -> None:
    seen = UniqueIds()
    seen.add(["\ud800", "\ud801", "?"], "here")
    with pytest.raises(DataError, match="twice"):
        seen.add(["\ud801"], "here")


def test_many_small_batches_stay_in_few_runs() -> None:
    seen = UniqueIds()
    for number in range(3000):
        seen.add([str(number)], "here")
    assert len(seen._runs) <= 12  # about log2(3000); each id is searched in every run
    with pytest.raises(DataError, match="'1234' occurs twice"):
        seen.add(["new", "1234"], "here")


def test_skipped_rows_of_resumed_parts_do_not_count_as_duplicates(tmp_path: Path) -> None:
    slices = [
        PartSlice(written(tmp_path, DOCS[:2])),
        PartSlice(written(tmp_path, DOCS[1:], start=1), ((0, 1),)),
    ]
    seen = ids_of(tmp_path, slices)
    seen.add(["d"], "here")
    for doc in DOCS:
        with pytest.raises(DataError, match="twice"):
            seen.add([doc.id], "here")
