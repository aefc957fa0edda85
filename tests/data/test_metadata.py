"""Conditions on metadata: how they are read, and which values fulfil them."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.data.collection import open_collection
from lmkcli.data.metadata import (
    Condition,
    MetadataFilter,
    UnfitCondition,
    Value,
    field_values,
    of_file,
)
from lmkcli.data.sources.memory import held_name
from lmkcli.errors import UsageError
from tests import tiny


@pytest.mark.parametrize(
    "text", ["type==pdf", "status<>closed", "date=>2026", "date=<2026", "a!==b", "status=", "a<= "]
)
def test_an_operator_of_another_language_is_refused(text: str) -> None:
    """Read as '=' and the value '=pdf', it would select nothing."""
    with pytest.raises(UsageError, match="an operator"):
        Condition.parse(text)


CASES: list[tuple[str, Value, bool]] = [
    ("n=12345678901234567890", 12345678901234567891, False),
    ("n>9007199254740992", "9007199254740993", True),
    ("n>5", 10**400, True),
    ("n<5", "9" * 5000, False),
    ("n=7", "7.0", True),
    ("n=7", 7.5, False),
    ("n>.5", " 1e3 ", True),
    # Texts that float() reads
    ("author=Nan", "Nan", True),
    ("author!=Nan", "Nan", False),
    ("name=inf", "Infinity", False),
    ("code=1_2", "12", False),
    # An empty cell of a table, and a text in a column of numbers
    ("price<10", "", False),
    ("price!=10", "", False),
    ("price>10", "n/a", False),
    ("price<10", "-", False),
    ("price!=10", "n/a", True),
    ("status=7a", 7, False),
    ("code<B", "A9", True),
    ("date>=2026-03", "2026-11-05", True),
    ("date<=2026-03", "2026-03-04", True),
    ("date=1.3.2026", "1.3.2026", True),
    ("date>=20260301", 20260304, True),
    ("path=mail/**", "mail/a.txt", True),
    ("path=mail/**", "mail", False),
    ("done=true", True, True),
    ("done = TRUE", True, True),
    ("done=true", False, False),
    ("done!=true", False, True),
    # Tables contain the words
    ("done=true", "True", True),
    ("done!=false", "FALSE", False),
    ("done=true", "yes", False),
    # Dates of mails
    ("date>=2026-03", "Mon, 02 Feb 2026 09:00:00 +0000", False),
    ("date=2026-02-02", "Mon, 02 Feb 2026 09:00:00 +0000", True),
    ("date>2025", "2026", True),
    # Dates in any field, up to the precision of the condition
    ("seen=2026-03", "2026-03-04", True),
    ("seen<=2026-03", "2026-03-04 10:00:00", True),
    ("seen<2026-03-04T11", "2026-03-04 10:00:00", True),
    ("seen>=2026-03", "2025-12-31T10:00:00", False),
    # Texts that only begin like a date
    ("code=2026-03-04", "2026-03-04-001", False),
    ("code=2026-03-04", "2026-03-041", False),
    ("title=2026", "2026-03-04 notes", False),
    ("version!=2026", "2026-03-04-beta", True),
    # Texts that only look like the date of a mail
    ("seen=2026", "1 Jan 2026 99999999999999999999:00", False),
    ("seen=2026", "Wed, 04 Mar 99999999999999999999 10:00:00 +0000", False),
]


@pytest.mark.parametrize(("text", "value", "holds"), CASES)
def test_which_values_fulfil_a_condition(text: str, value: Value, holds: bool) -> None:
    assert Condition.parse(text).holds([value]) == holds


@pytest.mark.parametrize(
    ("text", "value", "advice"),
    [
        ("date>=2026-3", "2026-11-05", "write a year"),
        ("date>=1.3.2026", "2020-11-05", "write a year"),
        ("date=04/03/2026", "2026-03-04", "write a year"),
        ("date>=2026-03", 20260104, "write a number"),
        ("date>=2026", "4.3.2026", "write its dates as 2026-03-04"),
        ("price<10€", 9, "write a number"),
        ("done=1", True, "write done=true or done=false"),
        ("done=yes", False, "write done=true or done=false"),
        ("done<true", True, "write done=true or done=false"),
    ],
)
def test_a_value_that_cannot_be_compared_is_an_error(text: str, value: Value, advice: str) -> None:
    """Compared as texts, 2026-11 would be before 2026-3."""
    with pytest.raises(UnfitCondition, match=advice):
        Condition.parse(text).holds([value])


def test_the_type_is_the_suffix_of_the_name() -> None:
    assert of_file(Path("x"), "type", "v1.2/README") == ("readme",)
    assert of_file(Path("x"), "type", "v1.2/a.TXT.gz", "text") == ("txt", "text")


@pytest.mark.parametrize("folder", [False, True])
def test_a_record_without_a_date_has_not_the_day_of_its_file(tmp_path: Path, folder: bool) -> None:
    rows = [{"id": "a", "text": "x", "date": "2006-05-01"}, {"id": "b", "text": "y"}]
    tiny.write_jsonl(tmp_path / "rows.jsonl", rows)
    found = open_collection(str(tmp_path if folder else tmp_path / "rows.jsonl"))
    dates = {doc.id[-1]: found.metadata(doc.id, "date") for doc in found.docs()}
    assert dates == {"a": ("2006-05-01",), "b": ()}
    assert all(found.metadata(doc.id, "type")[0] == "jsonl" for doc in found.docs())


RECORDS: list[dict[str, Any]] = [
    {
        "id": "a",
        "text": "x",
        "done": True,
        "tags": ["red", "blue"],
        "by": {"name": "Ann", "age": 30},
    },
    {"id": "b", "text": "x", "done": False, "tags": ["blue"], "by": {"name": "Bo", "age": 50}},
    {"id": "c", "text": "x", "done": None, "tags": [], "by": None},
    {"id": "d", "text": "x", "metadata": {"done": True, "tags": ["red"], "years": [1999, 2024]}},
]
SELECTED = {
    "done=true": "ad",
    "done=false": "b",
    "done!=true": "b",
    "tags=red": "ad",
    "tags!=red": "b",
    "years>2020": "d",
    "by.name=Bo": "b",
    "by.age<40": "a",
}


def selected(name: str, condition: str) -> str:
    """The ids of the documents of a collection that fulfil a condition, without the name of their file."""
    found = open_collection(name)
    ids = [doc.id for doc in found.docs()]
    conditions = MetadataFilter([condition], found)
    return "".join(each[-1] for each in ids if conditions.accepts(each))


@pytest.fixture(params=["jsonl", "json", "parquet", "folder", "rows", "polars"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Records with booleans, lists and records inside, in each format that has them."""
    rows = [{"done": None, "tags": None, "by": None, "metadata": None, **each} for each in RECORDS]
    path = tmp_path / f"rows.{'jsonl' if request.param == 'folder' else request.param}"
    if request.param == "json":
        path.write_text(json.dumps(rows))
    elif request.param in ("rows", "polars"):
        name = held_name(pl.DataFrame(rows) if request.param == "polars" else rows)
        assert name is not None
        return name
    elif request.param == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        tiny.write_jsonl(path, rows)
    return str(tmp_path if request.param == "folder" else path)


@pytest.mark.parametrize("condition", SELECTED)
def test_booleans_lists_and_records_inside_are_compared(records: str, condition: str) -> None:
    assert selected(records, condition) == SELECTED[condition]


@pytest.mark.parametrize("condition", ["by=Ann", "people=Ann"])
def test_a_value_without_a_comparison_is_an_error(tmp_path: Path, condition: str) -> None:
    rows = [{"id": "a", "text": "x", "by": {"name": "Ann"}, "people": [{"name": "Ann"}]}]
    tiny.write_jsonl(tmp_path / "rows.jsonl", rows)
    for name in (tmp_path / "rows.jsonl", tmp_path):
        with pytest.raises(UnfitCondition, match=condition.partition("=")[0]):
            selected(str(name), condition)


def test_typed_columns_of_a_table_are_compared(tmp_path: Path) -> None:
    """The column `date` of a parquet file comes before the day of the file, whatever its type."""
    days = [datetime.date(2024, 5, 1), datetime.date(2025, 6, 1), None]
    times = [datetime.datetime(2024, 5, 1, 12), None, datetime.datetime(2026, 1, 1)]
    prices = [Decimal("9.50"), Decimal("12"), Decimal("100.00")]
    columns = {
        "id": ["a", "b", "c"],
        "text": ["x"] * 3,
        "date": days,
        "seen": times,
        "price": prices,
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    found = {
        condition: selected(str(tmp_path / "rows.parquet"), condition)
        for condition in ("date>=2025", "date=2024-05", "seen=2024", "price<13", "price=100")
    }
    assert [*found.values()] == ["b", "a", "a", "ab", "c"]


def test_values_of_libraries_are_read_or_missing() -> None:
    record = {
        "times": np.array(["2026-03-04T10", "2026-03-05"], "datetime64[ns]"),
        "none": [pd.NA, pd.NaT, float("nan"), None],
        "some": [pd.NA, 3],
    }
    assert field_values(record, "times") == ("2026-03-04 10:00:00", "2026-03-05 00:00:00")
    assert field_values(record, "none") == ()
    assert field_values(record, "some") == (3,)


def test_equal_texts_of_unicode_are_equal() -> None:
    """A name of a file on a Mac is decomposed, and a typed one is not."""
    composed, decomposed = "r\u00e9sum\u00e9.txt", "re\u0301sume\u0301.txt"
    for asked, value in ((composed, decomposed), (decomposed, composed)):
        assert Condition.parse(f"path={asked}").holds([value])
        assert Condition.parse(f"status={asked}").holds([value])
        assert not Condition.parse(f"status!={asked}").holds([value])
    assert Condition.parse("path=r\u00e9*").holds([decomposed])
