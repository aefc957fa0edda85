"""The one loop that writes parts: what is appended, when it is published, and what a stop leaves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.data.collection import WHOLE, Doc
from lmkcli.data.digest import CollectionDigest, doc_hash
from lmkcli.errors import DataError, Stopped
from lmkcli.progress import Report
from lmkcli.store import part_writer, parts
from lmkcli.store.doctable import DocRow, DocTable
from lmkcli.store.part_writer import PartWriter, Target, shard_writer
from lmkcli.store.parts import PartName
from lmkcli.store.summary import Counts, part_summary

ARRAYS = {"vectors": ("float16", (2,)), "ids": ("int32", ())}
DOCS = [Doc("a", "one"), Doc("b", "two", "T"), Doc("c", "")]


def rows(docs: list[Doc]) -> list[DocRow]:
    """Each document has as many tokens as letters, and loses one of three."""
    return [DocRow(doc, doc_hash(doc), len(doc.text), len(doc.text) // 3, 1) for doc in docs]


def arrays(docs: list[Doc]) -> dict[str, Any]:
    return {"vectors": np.ones((len(docs), 2)), "ids": np.arange(2 * len(docs))}


def target(folder: Path) -> Target:
    return Target(folder, WHOLE, ARRAYS)


def grown(folder: Path, docs: list[Doc], start: int = 0) -> PartName:
    """The name of a part with some documents."""
    with PartWriter(target(folder), Report(), start) as writer:
        writer.append(rows(docs), arrays(docs))
    return PartName(WHOLE, start, writer.row)


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
    assert {key: summary[key] for key in Counts().as_json()} == {
        "docs": 3, "tokens": 6, "lost": 2, "cut": 2, "empty": 1, "vectors": 3,
    }  # fmt: skip
    again = part_summary(tmp_path / "b", grown(tmp_path / "b", DOCS, start=5))
    assert again["digest"] == summary["digest"]
    other = [DOCS[0], DOCS[1]._replace(text="too"), DOCS[2]]
    assert part_summary(tmp_path / "c", grown(tmp_path / "c", other))["digest"] != summary["digest"]


def test_the_digest_knows_the_arrays(tmp_path: Path) -> None:
    digests = set()
    for value in (0.0, 1.0):
        with PartWriter(target(tmp_path / str(value)), Report()) as writer:
            writer.append(rows(DOCS[:1]), {"vectors": np.full((1, 2), value)})
        name = PartName(WHOLE, 0, 1)
        digests.add(part_summary(tmp_path / str(value), name)["digest"])
    assert len(digests) == 2


def test_an_error_removes_what_has_no_name_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("by", ["the writer", "the block"])
def test_a_stop_publishes_what_was_appended(tmp_path: Path, by: str) -> None:
    """Whoever notices it: a writer between two batches, or an encoder within one."""

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
        assert writer.array_rows("ids") == 0  # the next part begins
        writer.append(rows(DOCS[2:]), arrays(DOCS[2:]))
    assert [(name.start, name.stop) for name in parts.list_parts(tmp_path)] == [(0, 2), (2, 3)]


def test_nothing_appended_leaves_nothing(tmp_path: Path) -> None:
    with PartWriter(target(tmp_path), Report(), row=7) as writer:
        writer.append([], arrays([]))
    assert writer.row == 7
    assert list((tmp_path / "parts").iterdir()) == []


def test_a_shard_is_resumed_after_its_parts_and_knows_their_ids(tmp_path: Path) -> None:
    grown(tmp_path, DOCS[:2])
    with shard_writer(target(tmp_path), Report()) as writer:
        assert writer.row == 2
        writer.append(rows(DOCS[2:]), arrays(DOCS[2:]))
    assert [(name.start, name.stop) for name in parts.list_parts(tmp_path)] == [(0, 2), (2, 3)]
    assert parts.done_rows(tmp_path, WHOLE) == 3
    again = shard_writer(target(tmp_path), Report())
    with pytest.raises(DataError, match="notes: the document id 'a' occurs twice"), again as writer:
        writer.append(rows(DOCS[:1]), arrays(DOCS[:1]), "notes")
