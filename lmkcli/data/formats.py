"""How files of records are written, jsonl and tsv lines; and what a record's fields mean.

A record is a dict from field name to value, whatever file it came from; `records.py` reads whole
files of them, and in shards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.data import hub_layouts, known
from lmkcli.data.collection import Doc, Query, check_id, join_chunks, map_id
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.reading import parsed

ID_FIELDS = ("_id", "id", "docid", "doc_id")
TEXT_FIELDS = ("text", "contents")
CHUNKS = "chunks"  # a list of texts: the chunks of a document, where the collection gives them
QUERY_ID_FIELDS = (*ID_FIELDS, "query_id", "qid")
QUERY_TEXT_FIELDS = (*TEXT_FIELDS, "query", "title")
BOM = b"\xef\xbb\xbf"
METADATA = "metadata"  # where BEIR's records keep what is neither id nor text
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
Record = dict[str, Any]
Parse = Callable[[bytes, str], Record]


@dataclass(frozen=True)
class Fields:
    """Which fields of a record are its text, and whether white space in ids is mapped to '_'.

    Without `names` a document is its list of `chunks`, else `text` or `contents`, after its `title`
    if it has one, and a query is the first of `text`, `contents`, `query`, `title`. With names,
    exactly those are read and joined by a space; each record must have them all. A copy of a known
    collection (`like=NAME`) is read as that one is.
    """

    names: tuple[str, ...] = ()
    map_ids: bool = False
    titled: bool = True  # without names: whether a title is read
    texts: tuple[str, ...] = TEXT_FIELDS  # without names: what a document's text may be called
    context: str = ""  # the field with the contexts of a document's chunks

    @classmethod
    def parse(cls, options: dict[str, str]) -> "Fields":
        """From a collection's options `fields=a+b`, `map_ids=1`, `like=NAME` and `context=NAME`.

        UnknownName for a NAME of which nothing is known.
        """
        map_ids = options.get("map_ids", "0")
        if map_ids not in ("0", "1"):
            raise UsageError(f"map_ids={map_ids}: write 1 to replace white space in ids by '_'")
        names = tuple(filter(None, options.get("fields", "").split("+")))
        context = options.get("context", "")
        return cls(names, map_ids == "1", *_as_in(options.get("like", "")), context)

    @property
    def settings(self) -> dict[str, str]:
        """What a Collection records of this."""
        chosen = {"fields": "+".join(self.names) or ("title+text" if self.titled else "text")}
        chosen |= {"map_ids": "1"} if self.map_ids else {}
        return chosen | ({"context": self.context} if self.context else {})

    @property
    def known(self) -> frozenset[str]:
        """Every field that may be looked at."""
        own = filter(None, (CHUNKS, self.context, *self.names, *self.texts))
        return frozenset((*QUERY_ID_FIELDS, *QUERY_TEXT_FIELDS, *own))

    def doc(self, record: Record, where: str) -> Doc:
        """The document in a record. DataError naming `where` when it has no usable id or text."""
        name = self.id(_value(record, ID_FIELDS, "id", where), where, "document")
        context = self._context(record, where) if self.context else ""
        if self.names:
            return Doc(name, self._chosen(record, where), context=context)
        given = record.get(CHUNKS)
        if isinstance(given, list):
            text = join_chunks(_text(chunk, where) for chunk in given)
        else:
            text = _text(_value(record, self.texts, "text", where), where)
        title = _text(record.get("title"), where) if self.titled else ""
        return Doc(name, text, title, context)

    def query(self, record: Record, where: str) -> Query:
        """The query in a record. DataError naming `where` when it has no usable id or text."""
        name = self.id(_value(record, QUERY_ID_FIELDS, "id", where), where, "query")
        if self.names:
            return Query(name, self._chosen(record, where))
        return Query(name, _text(_value(record, QUERY_TEXT_FIELDS, "text", where), where))

    def id(self, value: object, where: str, what: str) -> str:
        """The id as text that can stand in a TREC run; numbers become their digits."""
        if not isinstance(value, str):
            if not isinstance(value, int) or isinstance(value, bool):
                raise DataError(f"{where}: the {what} id is {value!r}; write it as a string")
            value = str(value)
        return check_id(map_id(value) if self.map_ids else value, where, what)

    def _context(self, record: Record, where: str) -> str | tuple[str, ...]:
        """The contexts of a document's chunks: one text, or one for each; none where it is null."""
        if self.context not in record:
            raise DataError(
                f"{where}: no context field '{self.context}': found {', '.join(map(str, record))}; "
                "write null where a document has none"
            )
        given = record[self.context]
        if isinstance(given, list):
            return tuple(_text(one, where) for one in given)
        return _text(given, where)

    def _chosen(self, record: Record, where: str) -> str:
        values = (_text(_value(record, (name,), "text", where), where) for name in self.names)
        return " ".join(value for value in values if value)


def _as_in(name: str) -> tuple[bool, tuple[str, ...]]:
    """Whether the documents of a known collection have a title, and what their text is called."""
    if not name:
        return Fields.titled, TEXT_FIELDS
    facts = known.facts_of(name)
    if facts is None:
        raise UnknownName("collection in like=", name, known.near(name))
    layout = hub_layouts.layout_of(facts.name)
    if layout is None:
        return Fields.titled, TEXT_FIELDS
    docs = layout.docs
    return "title" in docs.columns, tuple(dict.fromkeys((*docs.names("text"), *TEXT_FIELDS)))


def fact_of(record: Record, name: str) -> str | float | None:
    """The number or text in the field `name`, or in that field of the metadata; None without one."""
    inner = record.get(METADATA)
    places = (record, inner if isinstance(inner, dict) else {})
    value = next((place[name] for place in places if place.get(name) is not None), None)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return value


def _value(record: Record, names: Sequence[str], what: str, where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    fix = "choose the text with --fields a+b" if what == "text" else f"rename one to '{names[0]}'"
    raise DataError(
        f"{where}: no {what} field: looked for {', '.join(names)}; "
        f"found {', '.join(map(str, record)) or 'nothing'}; {fix}"
    )


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, int | float):
        return "" if value != value else str(value)  # NaN is how pandas writes a missing text
    raise DataError(
        f"{where}: a text field holds a {type(value).__name__}, not text; "
        "choose other fields with --fields a+b"
    )


Columns = tuple[tuple[str, ...], ...]
PLAIN_COLUMNS: Columns = (("id", "text"), ("id", "title", "text"))  # of a tsv without a header


class LineFormat(NamedTuple):
    """How a line becomes a record, and whether the first line is a header."""

    parse: Parse
    header: bool = False


def line_format(
    first: bytes, path: str, wanted: frozenset[str], columns: Columns = PLAIN_COLUMNS
) -> LineFormat | None:
    """The format of a file of lines by its name or first line; None when it is TREC topics.

    `columns` names those of a tsv without a header, for each number of them.
    """
    suffix = Path(path.removesuffix(".gz")).suffix
    first = first.removeprefix(BOM).strip(b"\r\n ")
    if suffix in JSON_SUFFIXES or (suffix != ".tsv" and first.startswith(b"{")):
        return LineFormat(parse_json)
    if suffix != ".tsv" and first.startswith(b"<"):
        return None
    if suffix != ".tsv" and first and b"\t" not in first:
        raise DataError(
            f"{path}: neither jsonl, tsv nor TREC topics; the first line begins {first[:40]!r}"
        )
    names = first.decode("utf-8", "replace").split("\t")
    known = names[0].lower() in {*QUERY_ID_FIELDS, *columns[0][:1]}
    known = known and any(name in wanted for name in names[1:])
    return LineFormat(_tsv_parser((tuple(names),) if known else columns), header=known)


def parse_json(line: bytes, where: str) -> Record:
    """One line of jsonl. DataError naming `where` when it is not a JSON object in UTF-8."""
    try:
        record = parsed(line.decode("utf-8"))
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: not a JSON object but a {type(record).__name__}")
    # Half a surrogate pair can only come from an escape, and no file could be written with it.
    return _whole_characters(record) if b"\\ud" in line or b"\\uD" in line else record


def _whole_characters(record: Record) -> Record:
    return {
        name: value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if isinstance(value, str)
        else value
        for name, value in record.items()
    }


def _tsv_parser(layouts: Columns) -> Parse:
    """Columns by name; which names, the number of columns decides."""
    by_length = {len(names): names for names in layouts}

    def parse(line: bytes, where: str) -> Record:
        try:
            columns = line.decode("utf-8").rstrip("\r\n").split("\t")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8 ({error})") from error
        if len(columns) not in by_length:
            expected = " or ".join(", ".join(names) for names in layouts)
            raise DataError(
                f"{where}: {len(columns)} columns, expected {expected} separated by tabs "
                f"(a first line '{'⇥'.join(layouts[-1][:2])}⇥…' names others)"
            )
        return dict(zip(by_length[len(columns)], columns, strict=True))

    return parse
