"""Metadata of documents: conditions on the path, type and date of their file, and on fields of their record.

`Collection.metadata` returns the values of one document. A record's own field comes first: in a table with a
column `date`, a condition on `date` compares this column, and not the day on which the file was changed. A
record without a date has none then. A list is several values. 'author.name' is the field name of author.
"""

import datetime
import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmkcli.data.fields import METADATA, Record, value_at
from lmkcli.errors import UsageError

if TYPE_CHECKING:
    from lmkcli.data.collection import Collection

PATH, TYPE, DATE = OF_FILES = "path", "type", "date"
_CONDITION = re.compile(r"\s*([\w.-]+)\s*(<=|>=|!=|=|<|>)\s*([^\s<=>].*?)\s*")
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
# Not all that float() reads: names such as Nan, and 1_2, which is a text
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_MAX_DIGITS = 1000  # Python reads no integers of more than 4300
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_TO_DAY = re.compile(
    r"\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d.*)?)?)?)?"
)  # a year, a month, a day or a time
_TRUTH = {"true": True, "false": False}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}

Value = str | float


class UnfitCondition(UsageError):
    """A condition that cannot select documents: no document has its metadatum, or it has other values."""


@dataclass(frozen=True)
class Condition:
    """One condition: the name of a metadatum, an operator and a value."""

    name: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read 'type=pdf', 'path=mail/**' or 'date>=2026-03'. Raises UsageError for other texts."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise UsageError(
                f"where {text!r}: write a name, an operator and a value, such as type=pdf, path=mail/**, "
                "date>=2026-03 or status!=closed"
            )
        name, operator, value = found.groups()
        condition = cls(name, operator, unicodedata.normalize("NFC", value))
        if condition.name in (PATH, TYPE) and condition.operator not in ("=", "!="):
            raise UsageError(f"where {text!r}: {condition.name} can only be compared with = and !=")
        return condition

    def holds(self, values: Sequence[Value]) -> bool:
        """Return whether one of the values fulfils the condition; for `!=`, whether all do. False without
        values.

        Two numbers are compared as numbers, dates up to the precision of the condition, true and false in any
        case, and other values as texts. An empty text is no value, and a text is neither less nor greater
        than a number. Raises UnfitCondition for a date that is written in another way than those of the
        documents, and for a text that is compared with numbers, or with true and false.
        """
        fulfils = [self._holds(_composed(value)) for value in values if value != ""]
        return bool(fulfils) and (all if self.operator == "!=" else any)(fulfils)

    def _holds(self, value: Value) -> bool:
        given = self.value
        if self.name == PATH:
            return matches(str(value), given) == (self.operator == "=")
        if self.name == TYPE:
            return (str(value).lower() == given.lower().lstrip(".")) == (self.operator == "=")
        if isinstance(value, bool):
            return self._holds_truth(value)
        if isinstance(value, str) and {value.lower(), given.lower()} <= _TRUTH.keys():
            return self._holds_truth(_TRUTH[value.lower()])
        dated = self.name == DATE or _TO_DAY.fullmatch(given)
        if dated and isinstance(value, str) and self._is_date(day := _day(value)):
            given = given.replace("T", " ", 1)
            return _COMPARE[self.operator](day[: len(given)], given)
        return self._holds_number_or_text(value)

    def _holds_truth(self, value: bool) -> bool:
        truth = _TRUTH.get(self.value.lower())
        if truth is None or self.operator not in ("=", "!="):
            raise UnfitCondition(
                f"where {str(self)!r}: {self.name} is true or false; write {self.name}=true or "
                f"{self.name}=false"
            )
        return _COMPARE[self.operator](value, truth)

    def _is_date(self, day: str) -> bool:
        """Return whether a value is compared as a date: that of a field `date`, and any day such as
        2026-03-04.
        """
        is_day, readable = bool(_DAY.match(day)), bool(_TO_DAY.fullmatch(self.value))
        if self.name != DATE:  # 2026-03-04-001 is no day
            return is_day and readable and bool(_TO_DAY.fullmatch(day))
        if is_day and not readable:
            raise UnfitCondition(
                f"where {str(self)!r}: write a year, a month or a day, such as 2026, 2026-03 or 2026-03-04"
            )
        if (
            readable
            and self.operator not in ("=", "!=")
            and not _TO_DAY.fullmatch(day)
            and not is_day
        ):
            raise UnfitCondition(
                f"where {str(self)!r}: a document has the date {day!r}; write its dates as 2026-03-04 to "
                "compare them"
            )
        return True

    def _holds_number_or_text(self, value: Value) -> bool:
        compare, given = _COMPARE[self.operator], self.value
        numbers = _number(value), _number(given)
        if None not in numbers:
            return compare(*numbers)
        if self.operator not in ("=", "!="):
            if not isinstance(value, str):
                raise UnfitCondition(
                    f"where {str(self)!r}: {self.name} is a number, such as {value}; write a number"
                )
            if numbers[1] is not None:
                return False
        return compare(str(value), given)

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


def _composed(value: Value) -> Value:
    """Return a text in Unicode's form NFC: names of files from a Mac, for instance, are decomposed."""
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


def _day(value: str) -> str:
    """Return a date of a mail, such as 'Wed, 04 Mar 2026 10:00:00 +0100', as 2026-03-04 10:00:00+01:00."""
    if not _DAY.match(value):
        with suppress(ValueError, OverflowError):
            return str(parsedate_to_datetime(value))
    return value.replace("T", " ", 1)


def _number(value: Value) -> float | None:
    """Return the exact number in a value; None for other texts."""
    if not isinstance(value, str):
        return value
    if _INTEGER.fullmatch(value) and len(value) < _MAX_DIGITS:
        return int(value)
    return float(value) if _NUMBER.fullmatch(value) else None


def field_values(record: Record, name: str) -> tuple[Value, ...]:
    """Return the values in a field of a record, or in that field of its metadata; empty if there are none.

    Dates become texts such as 2026-03-04. Raises UnfitCondition for values that no condition can compare.
    """
    metadata = record.get(METADATA)
    places = (record, metadata if isinstance(metadata, dict) else {})
    found = next((each for place in places if (each := value_at(place, name)) is not None), None)
    return tuple(_comparable(found, name))


def _comparable(value: Any, name: str) -> Iterator[Value]:
    """Yield the texts, numbers and booleans in a value, whatever library made it."""
    if hasattr(value, "tolist"):  # an array or a number of NumPy
        if getattr(getattr(value, "dtype", None), "kind", "") == "M":
            value = value.astype("datetime64[us]")  # tolist() makes numbers of nanoseconds
        value = value.tolist()
    if isinstance(value, list | tuple):
        for each in value:
            yield from _comparable(each, name)
    elif value is None or (value != value) is not False:  # NaN, NaT and NA: missing in pandas
        return
    elif isinstance(value, str | int | float):
        yield value
    elif isinstance(value, Decimal | datetime.date | datetime.time):
        yield str(value)
    elif isinstance(value, dict):
        example = f", such as {name}.{next(iter(value))}" if value else ""
        raise UnfitCondition(f"where: {name} has fields of its own; name one of them{example}")
    else:
        raise UnfitCondition(
            f"where: {name} is a {type(value).__name__}, which cannot be compared; name a field with texts, "
            "numbers, dates, or true and false"
        )


class MetadataFilter:
    """Whether documents of a collection fulfil all of some conditions."""

    def __init__(self, where: Sequence[str], collection: "Collection") -> None:
        self.where = tuple(where)
        self._conditions = [Condition.parse(text) for text in where]
        self._collection = collection

    def accepts(self, doc_id: str) -> bool:
        """Return whether a document fulfils all conditions. A document without the metadatum does not."""
        metadata = self._collection.metadata
        return all(each.holds(metadata(doc_id, each.name)) for each in self._conditions)

    def check_names(self) -> None:
        """Raise UnfitCondition if a name is that of no metadatum of any document of the collection."""
        for condition in self._conditions:
            if not self._collection.has_metadata(condition.name):
                raise UnfitCondition(
                    f"where {str(condition)!r}: no document has {condition.name!r}; use a field of the "
                    "records, or path, type or date of files"
                )


def matches(path: str, glob: str) -> bool:
    """Return whether a path matches a pattern: `*`, `?` and `[…]` within a name, `**` for any folders.

    A pattern that ends with `**` matches everything in a folder, but not a file with the name of the folder.
    """
    names, patterns = path.split("/"), glob.split("/")
    name = pattern = 0
    again: tuple[int, int] | None = None  # after a mismatch: the last '**' takes one more folder
    while name < len(names):
        if pattern < len(patterns) and patterns[pattern] == "**":
            pattern += 1
            again = name, pattern
        elif pattern < len(patterns) and fnmatchcase(names[name], patterns[pattern]):
            name, pattern = name + 1, pattern + 1
        elif again:
            again = again[0] + 1, again[1]
            name, pattern = again
        else:
            return False
    return pattern == len(patterns)


def of_file(file: Path, name: str, path: str, *kinds: str) -> Sequence[Value]:
    """Return the path of a file in its collection, its suffix and other names of its type, or its day.

    The day of its last change is in local time, such as 2026-03-04. Empty for other names and missing files.
    """
    if name == PATH:
        return (path,)
    if name == TYPE:
        suffix = path.rpartition("/")[2].lower().removesuffix(".gz").rpartition(".")[2]
        return (suffix, *kinds)
    if name == DATE:
        try:
            return (time.strftime("%Y-%m-%d", time.localtime(os.stat(file).st_mtime)),)
        except OSError:
            return ()
    return ()
