"""Conditions on metadata: how they are read, and which values fulfil them."""

from pathlib import Path

import pytest

from lmkcli.data.collection import open_collection
from lmkcli.data.metadata import Condition, UnfitCondition, Value, of_file
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
]


@pytest.mark.parametrize(("text", "value", "holds"), CASES)
def test_which_values_fulfil_a_condition(text: str, value: Value, holds: bool) -> None:
    assert Condition.parse(text).holds([value]) == holds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("date>=2026-3", "2026-11-05"),
        ("date>=1.3.2026", "2020-11-05"),
        ("date=04/03/2026", "2026-03-04"),
        ("date>=2026-03", 20260104),
        ("price<10€", 9),
    ],
)
def test_a_value_that_cannot_be_compared_is_an_error(text: str, value: Value) -> None:
    """Compared as texts, 2026-11 would be before 2026-3."""
    with pytest.raises(UnfitCondition, match="write a"):
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
