"""How a part grows, what it counts, and how duplicate ids are found."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import WHOLE, CollectionDigest, Doc, doc_hash
from lmkcli.errors import DataError
from lmkcli.store import part_writer, parts
from lmkcli.store.doctable import DocRow, DocTable
from lmkcli.store.part_writer import Builder, Counts, SeenIds, part_summary, seen_ids
from lmkcli.store.parts import PartName, PartSlice

ARRAYS = {"vectors": ("float16", (2,)), "ids": ("int32", ())}
DOCS = [Doc("a", "one"), Doc("b", "two", "T"), Doc("c", "")]


def rows(docs: list[Doc]) -> list[DocRow]:
    """Each document has as many tokens as letters, and loses one of three."""
    return [DocRow(doc, doc_hash(doc), len(doc.text), len(doc.text) // 3, 1) for doc in docs]


def fill(builder: Builder, docs: list[Doc]) -> None:
    for row in rows(docs):
        builder.add_doc(row)
    builder.add_array("vectors", np.ones((len(docs), 2)))
    builder.add_array("ids", np.arange(2 * len(docs)))


def grown(folder: Path, docs: list[Doc], start: int = 0) -> PartName:
    builder = Builder(folder, WHOLE, start, ARRAYS, store_text=True)
    fill(builder, docs)
    return PartName(WHOLE, start, builder.publish())


def test_a_published_part_holds_what_was_added(tmp_path: Path) -> None:
    name = grown(tmp_path, DOCS, start=7)
    assert (name.start, name.stop) == (7, 10)
    assert parts.list_parts(tmp_path) == [name]
    folder = tmp_path / "parts" / str(name)
    assert sorted(path.name for path in folder.iterdir()) == [
        "docs.parquet", "ids.npy", "part.json", "vectors.npy",
    ]  # fmt: skip
    assert np.load(folder / "vectors.npy").shape == (3, 2)
    assert np.load(folder / "ids.npy").tolist() == list(range(6))
    assert list(DocTable(folder / "docs.parquet").docs()) == DOCS


def test_a_part_knows_its_counts_and_its_digests(tmp_path: Path) -> None:
    summary = part_summary(tmp_path, grown(tmp_path, DOCS))
    whole = CollectionDigest()
    for doc in DOCS:
        whole.add(doc_hash(doc))
    assert summary["collection"] == str(whole)
    assert {key: summary[key] for key in vars(Counts())} == {
        "docs": 3, "tokens": 6, "lost": 2, "cut": 2, "empty": 1, "vectors": 3,
    }  # fmt: skip
    again = part_summary(tmp_path / "b", grown(tmp_path / "b", DOCS, start=5))
    assert again["digest"] == summary["digest"]
    other = [DOCS[0], DOCS[1]._replace(text="too"), DOCS[2]]
    assert part_summary(tmp_path / "c", grown(tmp_path / "c", other))["digest"] != summary["digest"]


def test_the_digest_knows_the_arrays(tmp_path: Path) -> None:
    digests = set()
    for value in (0.0, 1.0):
        builder = Builder(tmp_path / str(value), WHOLE, 0, ARRAYS, store_text=True)
        builder.add_doc(rows(DOCS)[0])
        builder.add_array("vectors", np.full((1, 2), value))
        name = PartName(WHOLE, 0, builder.publish())
        digests.add(part_summary(tmp_path / str(value), name)["digest"])
    assert len(digests) == 2


def test_what_is_abandoned_leaves_nothing(tmp_path: Path) -> None:
    builder = Builder(tmp_path, WHOLE, 0, ARRAYS, store_text=True)
    assert builder.empty
    fill(builder, DOCS)
    assert not builder.empty
    assert builder.rows("ids") == 6
    builder.abandon()
    assert list((tmp_path / "parts").iterdir()) == []


def test_abandoning_after_publishing_does_no_harm(tmp_path: Path) -> None:
    builder = Builder(tmp_path, WHOLE, 0, ARRAYS, store_text=True)
    fill(builder, DOCS)
    builder.publish()
    builder.abandon()
    assert [part.stop for part in parts.list_parts(tmp_path)] == [3]


def test_a_part_is_full_by_bytes_or_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(tmp_path, WHOLE, 0, ARRAYS, store_text=True)
    fill(builder, DOCS)
    assert not builder.full
    monkeypatch.setattr(part_writer, "PART_SECONDS", 0.0)
    assert builder.full
    monkeypatch.setattr(part_writer, "PART_SECONDS", 300.0)
    monkeypatch.setattr(part_writer, "PART_BYTES", 8)
    assert builder.full
    builder.abandon()


def test_a_broken_summary_says_what_to_delete(tmp_path: Path) -> None:
    name = grown(tmp_path, DOCS)
    path = tmp_path / "parts" / str(name) / "part.json"
    assert json.loads(path.read_text())["docs"] == 3
    for broken in (lambda: path.write_text("{"), path.unlink):
        broken()
        with pytest.raises(DataError, match="delete this part"):
            part_summary(tmp_path, name)


@given(st.lists(st.lists(st.text(max_size=2), max_size=8), max_size=12))
def test_duplicates_are_found_as_a_set_finds_them(batches: list[list[str]]) -> None:
    seen, known = SeenIds(), set[str]()
    for batch in batches:
        repeated = {i for number, i in enumerate(batch) if i in known or i in batch[:number]}
        if repeated:
            with pytest.raises(DataError, match="occurs twice") as caught:
                seen.add(batch, "here")
            assert any(f"here: the document id {i!r} " in str(caught.value) for i in repeated)
            return
        seen.add(batch, "here")
        known |= set(batch)


def test_ids_that_no_encoding_holds_are_told_apart() -> None:
    seen = SeenIds()
    seen.add(["\ud800", "\ud801", "?"], "here")
    with pytest.raises(DataError, match="twice"):
        seen.add(["\ud801"], "here")


def test_many_small_batches_stay_in_few_runs() -> None:
    seen = SeenIds()
    for number in range(3000):
        seen.add([str(number)], "here")
    assert len(seen._runs) <= 12  # about log2(3000): an id is compared with each
    with pytest.raises(DataError, match="'1234' occurs twice"):
        seen.add(["new", "1234"], "here")


def test_ids_of_resumed_parts_count_without_the_rows_that_are_skipped(tmp_path: Path) -> None:
    slices = [
        PartSlice(grown(tmp_path, DOCS[:2])),
        PartSlice(grown(tmp_path, DOCS[1:], start=1), ((0, 1),)),
    ]
    seen = seen_ids(tmp_path, slices)
    seen.add(["d"], "here")
    for doc in DOCS:
        with pytest.raises(DataError, match="twice"):
            seen.add([doc.id], "here")
