"""Fields: from the fields of a record to a document or a query.

A record is a dictionary from field name to value, independent of its file format. `records.py` reads files
of records, whole or in shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from lmkcli.data import hub_layouts, known_collections
from lmkcli.data.collection import (
    CONTROL_CHARACTERS,
    Doc,
    Query,
    check_id,
    join_chunks,
    map_id,
    unescaped_id,
)
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.text.formatting import listed

ID_FIELDS = ("_id", "id", "docid", "doc_id")
TEXT_FIELDS = ("text", "contents")
CHUNKS = "chunks"  # a list of texts: the chunks of a document, if the collection defines them
QUERY_ID_FIELDS = (*ID_FIELDS, "query_id", "qid")
QUERY_TEXT_FIELDS = (*TEXT_FIELDS, "query", "question", "title")
_MISSING = object()
_SHOWN = 60  # characters of a value in a message
METADATA = "metadata"  # in BEIR's records: a dictionary with everything but id, title and text
Record = dict[str, Any]


@dataclass(frozen=True)
class Fields:
    """The fields of a record that are text, and whether '_' replaces white space in ids.

    Without `names`, a document is its list of `chunks`, else `text` or `contents`, after its `title` if it
    has one; a query is the first of `text`, `contents`, `query`, `question`, `title`. With `names`, exactly
    these fields are read and joined by a space, and each record must have them all. A name like `meta.body`
    leads into nested records. For a copy of a known collection (`like=NAME`), the fields of the original
    apply.
    """

    names: tuple[str, ...] = ()
    map_ids: bool = False
    titled: bool = True
    """Without `names`: whether a title is read."""
    texts: tuple[str, ...] = TEXT_FIELDS
    """Without `names`: the possible names of a document's text field."""
    context: str = ""
    """The field with the contexts of a document's chunks."""
    id_name: str = ""
    """The field with the ids; without one, the usual names."""
    title_name: str = ""
    """The field with the titles; without one, `title`, unless `names` are given."""
    optional_title: bool = False
    """Whether a record may lack the field of the title, because lmk found it (columns.py)."""

    @classmethod
    def parse(cls, options: dict[str, str]) -> "Fields":
        """From the options of a collection.

        They are `id=a`, `title=b`, `text=c+d` (or `fields=c+d`), `map_ids=1`, `like=NAME` and `context=NAME`.
        Raises UnknownName if `like` names no known collection.
        """
        if "text" in options and options.get("fields", options["text"]) != options["text"]:
            raise UsageError("text= and fields= name different columns; drop one")
        map_ids = options.get("map_ids", "0")
        if map_ids not in ("0", "1"):
            raise UsageError(f"map_ids={map_ids}: write 1 to replace white space in ids by '_'")
        titled, texts = cls.titled, cls.texts
        if like := options.get("like", ""):
            facts = known_collections.facts_of(like)
            if facts is None:
                raise UnknownName(
                    "collection in like=", like, known_collections.similar_names(like)
                )
            if layout := hub_layouts.layout_of(facts.name):
                titled = "title" in layout.docs.columns
                texts = tuple(dict.fromkeys((*layout.docs.names("text"), *TEXT_FIELDS)))
        chosen = options.get("text", options.get("fields", ""))
        return cls(
            tuple(filter(None, chosen.split("+"))),
            map_ids == "1",
            titled,
            texts,
            options.get("context", ""),
            options.get("id", ""),
            options.get("title", ""),
        )

    @property
    def settings(self) -> dict[str, str]:
        """The `Collection.settings` that result from these fields."""
        chosen = {"fields": "+".join(self.names) or ("title+text" if self.titled else "text")}
        chosen |= {"map_ids": "1"} if self.map_ids else {}
        chosen |= {"id": self.id_name} if self.id_name else {}
        chosen |= {"title": self.title_name} if self.title_name else {}
        return chosen | ({"context": self.context} if self.context else {})

    @property
    def known(self) -> frozenset[str]:
        """All fields that may be read."""
        chosen = (self.context, self.id_name, self.title_name, *self.names, *self.texts)
        whole = (name.partition(".")[0] for name in chosen)  # of nested records
        own = filter(None, (CHUNKS, *chosen, *whole))
        return frozenset((*QUERY_ID_FIELDS, *QUERY_TEXT_FIELDS, *own))

    def doc(self, record: Record, where: str) -> Doc:
        """Return the document of a record. Raises DataError with `where` if its id or text is unusable."""
        doc_id = self.id(self._id_value(record, ID_FIELDS, where), where, "document")
        context = self._context(record, where) if self.context else ""
        title = ""
        if self.title_name:
            title = _text(self._title(record, where), where)
        elif self.titled and not self.names:
            title = _text(record.get("title"), where)
        if self.names:
            return Doc(doc_id, self._joined(record, where), title, context)
        chunks = record.get(CHUNKS)
        if isinstance(chunks, list):
            text = join_chunks(_text(chunk, where) for chunk in chunks)
        else:
            text = _text(_value(record, self.texts, "text", where), where)
        return Doc(doc_id, text, title, context)

    def query(self, record: Record, where: str) -> Query:
        """Return the query of a record. Raises DataError with `where` if its id or text is unusable."""
        query_id = self.id(self._id_value(record, QUERY_ID_FIELDS, where), where, "query")
        if self.names:
            return Query(query_id, self._joined(record, where))
        return Query(query_id, _text(_value(record, QUERY_TEXT_FIELDS, "text", where), where))

    def _title(self, record: Record, where: str) -> Any:
        try:
            return _value(record, (self.title_name,), "title", where)
        except DataError:
            if self.optional_title:
                return None
            raise

    def _id_value(self, record: Record, usual: Sequence[str], where: str) -> Any:
        return _value(record, (self.id_name,) if self.id_name else usual, "id", where)

    def id(self, value: object, where: str, what: str) -> str:
        """Return the id as text that a TREC run can contain; a number becomes its digits."""
        if not isinstance(value, str):
            if isinstance(value, bool) or not isinstance(value, Integral):
                shown = repr(value)[:_SHOWN]
                raise DataError(f"{where}: the {what} id is {shown}; write it as a string")
            value = str(value)
        return check_id(map_id(value) if self.map_ids else value, where, what)

    def ranked_id(self, value: object, where: str) -> str:
        """Return the id of a document in a run or in judgements; that of a file may be escaped or contain
        spaces.
        """
        if not isinstance(value, str) or self.map_ids or CONTROL_CHARACTERS.search(value):
            return self.id(value, where, "document")
        value = unescaped_id(value)
        return value if value.strip() else self.id(value, where, "document")

    def _context(self, record: Record, where: str) -> str | tuple[str, ...]:
        """Return the contexts of a document's chunks: one text, or one for each; '' for null."""
        if self.context not in record:
            raise DataError(
                f"{where}: no context field '{self.context}': found {listed(record)}; "
                "write null for documents without a context"
            )
        value = record[self.context]
        if isinstance(value, list):
            return tuple(_text(each, where) for each in value)
        return _text(value, where)

    def _joined(self, record: Record, where: str) -> str:
        values = (_value(record, (name,), "text", where) for name in self.names)
        texts = (_text(part, where) for value in values for part in _parts(value))
        return " ".join(filter(None, texts))


def metadata_value(record: Record, name: str) -> str | float | None:
    """Return the number or text in the field `name`, or in that field of the metadata; None if missing."""
    metadata = record.get(METADATA)
    places = (record, metadata if isinstance(metadata, dict) else {})
    value = next((place[name] for place in places if place.get(name) is not None), None)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return value


def value_at(record: Record, name: str, missing: Any = None) -> Any:
    """Return the value of a field, or `missing`; 'a.b' is field b of field a, unless the record has 'a.b'."""
    if name in record:
        return record[name]
    value: Any = record
    for step in name.split("."):
        value = value.get(step, missing) if isinstance(value, dict) else missing
    return value


def _value(record: Record, names: Sequence[str], what: str, where: str) -> Any:
    """Return the value of the first of the fields `names` that the record has."""
    for name in names:
        if (value := value_at(record, name, _MISSING)) is not _MISSING:
            return value
    columns = "a+b" if what == "text" else "NAME"
    raise DataError(
        f"{where}: no {what} field: looked for {', '.join(names)}; found "
        f"{listed(record) or 'nothing'}; name it after the file, FILE,{what}={columns}"
        + (", or with --fields a+b" if what == "text" else "")
    )


def _parts(value: object) -> Sequence[object]:
    """Return the texts of a field that was chosen by name: those of a list, or the value itself."""
    return value if isinstance(value, list) else (value,)


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, int | float):
        return "" if value != value else str(value)  # pandas writes NaN for a missing text
    raise DataError(
        f"{where}: a text field contains a {type(value).__name__}, not text; "
        "choose other fields with --fields a+b"
    )
