"""Duplicate ids are found, within a shard, after a resume and among shards."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.errors import DataError
from lmkcli.store.parts import PartSlice
from lmkcli.store.unique_ids import UniqueIds, ids_of
from tests.store.test_part_writer import DOCS, grown


@given(st.lists(st.lists(st.text(max_size=2), max_size=8), max_size=12))
def test_duplicates_are_found_as_a_set_finds_them(batches: list[list[str]]) -> None:
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


def test_ids_that_no_encoding_holds_are_told_apart() -> None:
    seen = UniqueIds()
    seen.add(["\ud800", "\ud801", "?"], "here")
    with pytest.raises(DataError, match="twice"):
        seen.add(["\ud801"], "here")


def test_many_small_batches_stay_in_few_runs() -> None:
    seen = UniqueIds()
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
    seen = ids_of(tmp_path, slices)
    seen.add(["d"], "here")
    for doc in DOCS:
        with pytest.raises(DataError, match="twice"):
            seen.add([doc.id], "here")
