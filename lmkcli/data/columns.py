"""Columns of other people's files: which one is the id, the title and the text.

lmk's own layout (`id` and `text`, see fields.py) needs none of this. In other files, usual names are found
among the columns of the first rows. What cannot be decided is an error that names the option to write.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from lmkcli.data.collection import CONTROL_CHARACTERS, spell
from lmkcli.data.fields import (
    CHUNKS,
    ID_FIELDS,
    METADATA,
    QUERY_ID_FIELDS,
    QUERY_TEXT_FIELDS,
    Fields,
    Record,
    value_at,
)
from lmkcli.errors import DataError
from lmkcli.text.formatting import listed, shell_line

SAMPLE = 20  # first rows that decide
ROW = "row"  # the name of the column with the number of the row, which every file has
ID_NAMES = (
    *ID_FIELDS,
    *("docno", "doc_no", "document_id", "pid", "passage_id", "uuid", "guid", "key", "nr", "doi"),
    *("url", "uri"),
)
TITLE_NAMES = ("title", "name", "headline", "subject", "heading")
TEXT_NAMES = (
    *("content", "body", "abstract", "passage", "document", "paragraph", "description", "message"),
)
_TRAINING_NAMES = (
    *(
        "anchor",
        "positive",
        "positives",
        "negative",
        "negatives",
        "pos",
        "neg",
        "answer",
        "answers",
    ),
    *("sentence1", "sentence2", "sentence", "score", "label", "instruction", "prompt"),
)
# Names that show that a first line is a header, or that an object is a record.
USUAL_NAMES = frozenset(
    (
        *(
            *QUERY_ID_FIELDS,
            *ID_NAMES,
            *TITLE_NAMES,
            *TEXT_NAMES,
            *QUERY_TEXT_FIELDS,
            CHUNKS,
            METADATA,
        ),
        *_TRAINING_NAMES,
    )
)
_QUOTED = re.compile(r'"(?:[^"]|"")+"', re.DOTALL)  # as csv writes a text
_PROPOSAL = re.compile(r"\bFILE,(\w+)=([\w+-]+)")
_PROSE_WORDS = 3  # words that a text has and a category or a number has not
_SHOWN = 40  # characters of a value in an error message


class Typed(NamedTuple):
    """The name of a collection as it was typed, for messages."""

    name: str
    options: dict[str, str]

    def exact(self, error: DataError) -> DataError:
        """Return the error with the name of this collection in the options that its message proposes."""
        message = _PROPOSAL.sub(lambda found: self.with_option(*found.groups()), str(error))
        return error if message == str(error) else DataError(message)

    def with_option(self, key: str, value: str) -> str:
        """Return the name with another option, as a word of a shell."""
        options = {name: each for name, each in self.options.items() if name != "context"}
        return shell_line(spell(self.name, options | {key: value}))


def plain_name(name: str) -> str:
    """Return the name of a column in lower case, with '_' for spaces and hyphens."""
    return name.strip().casefold().replace(" ", "_").replace("-", "_")


def check_header(header: Sequence[str], fields: Fields, typed: Typed) -> None:
    """Raise DataError if the first line of a csv file may be a record instead of the names of columns."""
    given = {fields.id_name, fields.title_name, fields.context, *fields.names} - {""}
    named = any(plain_name(name) in USUAL_NAMES or name in given for name in header)
    if named or not header:
        return
    shown = ", ".join(name[:_SHOWN] for name in header[:4])
    names = ["id", "title", "text"] if len(header) == 3 else ["id", "text"]
    names += [f"c{number}" for number in range(len(names) + 1, len(header) + 1)]
    columns = "+".join(names if len(header) > 1 else ["text"])
    raise DataError(
        f"{typed.name}: the first line ({shown}) has no usual name of a column, so it may be a record; if "
        f"the file has no header, name its columns: {typed.with_option('columns', columns)}; if these are "
        f"the names, choose the text: {typed.with_option('text', 'NAME')}"
    )


def check_names(first: Record, typed: Typed) -> None:
    """Raise DataError if the first record is a header, although `columns=` gives the names of the columns."""
    values = [value for value in first.values() if isinstance(value, str)]
    if [plain_name(value) in USUAL_NAMES for value in values].count(True) > 1:
        options = {key: value for key, value in typed.options.items() if key != "columns"}
        raise DataError(
            f"{typed.name}: the first line ({', '.join(values)[:_SHOWN]}) names the columns, so drop "
            f"columns=: {shell_line(spell(typed.name, options))}"
        )


def check_first_row(sample: Sequence[Record], typed: Typed) -> None:
    """Raise DataError if the first line of a tsv file may be a header: all other ids are numbers."""
    first, *others = [str(record.get("id", "")) for record in sample] or [""]
    if first.isdecimal() or not others or not all(map(str.isdecimal, others)):
        return
    names = list(sample[0])
    header = [str(value)[:_SHOWN] for value in sample[0].values()]
    named = typed.with_option("id", header[0])
    raise DataError(
        f"{typed.name}: the first line ({', '.join(header)}) may be a header, because all other ids are "
        f"numbers; if it is one, name its columns: {named},text={shell_line(header[-1])}; if it is a record: "
        f"{typed.with_option('columns', '+'.join(names))}"
    )


def check_quotes(sample: Sequence[Record], typed: Typed) -> None:
    """Raise DataError if a tsv file may be a csv file with tabs, whose quotes do not belong to the texts.

    A text in quotes has doubled quotes inside, or all texts of a column are in quotes.
    """
    columns = [[str(record[name]) for record in sample if record.get(name)] for name in sample[0]]
    for texts in columns:
        inner = {text: text[1:-1] for text in texts if _QUOTED.fullmatch(text)}
        doubled = [text for text in inner if '""' in inner[text]]
        if doubled or (len(inner) == len(texts) > 1):
            raise DataError(
                f"{typed.name}: a text is in quotes ({(doubled or texts)[0][:_SHOWN]}), so this may be a csv "
                f"file with tabs; if it is one: {typed.with_option('delimiter', 'tab')}; if the quotes "
                f"belong to the texts: {typed.with_option('format', 'tsv')}"
            )


def is_own_layout(record: Record, fields: Fields) -> bool:
    """Return whether a record has the fields of lmk's own layout of documents, or fields that were given."""
    has_id = fields.id_name or any(name in record for name in ID_FIELDS)
    has_text = fields.names or any(name in record for name in (*fields.texts, CHUNKS))
    return bool(has_id and has_text)


def document_columns(sample: Sequence[Record], fields: Fields, typed: Typed) -> Fields:
    """Return the fields of documents, with the columns that were found in the first rows of a file.

    Without a column for ids, the number of the row is the id. Raises DataError, with the option to write,
    if no column or several columns may be the text.
    """
    if not sample:
        return fields
    if not fields.id_name and _of_pyterrier(sample[0]):
        fields = replace(fields, id_name="docno")
    if is_own_layout(sample[0], fields):
        return fields
    columns = _all_columns(sample)
    id_name = fields.id_name or _id_column(columns, sample, ID_NAMES, fields.map_ids)
    if fields.names or any(CHUNKS in record for record in sample):
        return replace(fields, id_name=id_name)
    titles = [] if fields.title_name else _matching(columns, TITLE_NAMES)
    others = replace(
        fields,
        id_name=id_name,
        title_name=fields.title_name or (titles[0] if titles else ""),
        optional_title=not fields.title_name,
    )
    own = _matching(columns, fields.texts)
    found = own if _are_alike(own) else own[:1] or _matching(columns, TEXT_NAMES)
    found = found or _prose(columns, sample, {id_name, others.title_name})
    if len(found) != 1:
        raise _ambiguous(found, sample, others, typed)
    return replace(others, names=tuple(found))


def check_numbering(columns: Sequence[str], typed: Typed) -> None:
    """Raise DataError if a column may have the ids, because the numbers of rows would replace them."""
    if found := _matching(columns, (*ID_NAMES, "corpus_id")):
        raise DataError(
            f"{typed.name}: no column _id, id, docid or doc_id, and {found[0]} may have the ids; to use it: "
            f"{typed.with_option('id', found[0])}; to number the rows: {typed.with_option('id', ROW)}"
        )


def _of_pyterrier(record: Record) -> bool:
    """Return whether docid is an internal number of a table of PyTerrier, next to docno, the id."""
    return "docno" in record and "docid" in record and not {"_id", "id", "doc_id"} & record.keys()


def query_columns(sample: Sequence[Record], fields: Fields, typed: Typed) -> Fields:
    """Return the fields of queries, as `document_columns` finds those of documents; the first text counts."""
    columns = _all_columns(sample)
    own_id = fields.id_name or set(QUERY_ID_FIELDS) & set(columns)
    own_text = fields.names or set(QUERY_TEXT_FIELDS) & set(columns)
    if not sample or (own_id and own_text):
        return fields
    names = (*QUERY_ID_FIELDS, *ID_NAMES)
    id_name = fields.id_name or _id_column(columns, sample, names, fields.map_ids)
    found = fields.names or tuple(_matching(columns, QUERY_TEXT_FIELDS)[:1])
    if not found:
        raise _ambiguous([], sample, replace(fields, id_name=id_name), typed)
    return replace(fields, id_name=id_name, names=found)


def note(found: Fields, given: Fields, name: str) -> str:
    """Return a line about the columns that were found, without those that were given."""
    pairs = (
        ("id", "" if found.id_name in (given.id_name, ROW) else found.id_name),
        ("title", "" if given.title_name else found.title_name),
        ("text", "" if given.names or found.names == ("text",) else "+".join(found.names)),
    )
    shown = ", ".join(f"{key}={value}" for key, value in pairs if value)
    lines = (
        "no column is an id, so rows are numbered (id=row)" if found.id_name == ROW else "",
        f"{shown}, by the names of the columns{_only(found, given)}; choose others with ,id=NAME or ,text=a+b"
        if shown
        else "",
    )
    return f"{name}: {'; '.join(filter(None, lines))}"


def _only(found: Fields, given: Fields) -> str:
    """Return an addition for a text that was found by its values."""
    names = {*found.texts, *TEXT_NAMES, *QUERY_TEXT_FIELDS}
    usual = all(plain_name(name.split(".")[-1]) in names for name in found.names)
    return "" if usual or given.names else " (only this text has several words)"


def _all_columns(sample: Sequence[Record]) -> list[str]:
    """Return the columns of some rows, in the order of their first occurrence."""
    return list(dict.fromkeys(column for record in sample for column in _columns(record)))


def _columns(record: Record, inside: str = "") -> Iterator[str]:
    """Yield the columns of a record; a field b inside a field a is 'a.b'."""
    for key, value in record.items():
        if isinstance(value, dict) and inside.count(".") < 3:
            yield from _columns(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}"


def _matching(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns with usual names, in the order of the names; inner columns only
    if no outer one has.
    """
    outer = [column for column in columns if "." not in column]
    for among, part in ((outer, 0), (columns, -1)):
        plain = {column: plain_name(column.split(".")[part]) for column in among}
        if found := [column for name in names for column in among if plain[column] == name]:
            return found
    return []


def _are_alike(columns: Sequence[str]) -> bool:
    """Return whether inner columns have one name, as in {"a": {"text": …}, "b": {"text": …}}: two texts."""
    return len(columns) > 1 and "." in columns[0]


def _prose(columns: Sequence[str], sample: Sequence[Record], others: set[str]) -> list[str]:
    """Return the only column with several words in a value, without those of ids and titles; else none."""
    found = [
        column
        for column in columns
        if column not in others
        and any(len(str(value_at(record, column)).split()) >= _PROSE_WORDS for record in sample)
    ]
    return found if len(found) == 1 and _is_text(found[0], sample) else []


def _is_text(column: str, sample: Sequence[Record]) -> bool:
    return all(isinstance(value_at(record, column), str | None) for record in sample)


def _id_column(
    columns: Sequence[str], sample: Sequence[Record], names: Sequence[str], mapped: bool
) -> str:
    """Return the first column with a usual name and different ids in all first rows; else ROW."""
    for column in _matching(columns, names):
        values = [value_at(record, column) for record in sample]
        if all(_is_id(value, mapped) for value in values) and len(set(values)) == len(values):
            return column
    return ROW


def _is_id(value: object, mapped: bool) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return True
    if not isinstance(value, str) or not value or CONTROL_CHARACTERS.search(value):
        return False
    return mapped or value.split() == [value]


def _ambiguous(
    found: Sequence[str], sample: Sequence[Record], others: Fields, typed: Typed
) -> DataError:
    """Return the error if no column, or several columns, may be the text; `others` has
    those of id and title.
    """
    columns = _all_columns(sample)
    if len(sample) == 1 and (column := _with_rows(sample[0])):
        lines = f"{typed.name.removesuffix('.json')}.jsonl"
        return DataError(
            f"{typed.name}: one JSON object, whose '{column}' has the rows; write them as lines: "
            f"jq -c '.\"{column}\"[]' {shell_line(typed.name)} > {shell_line(lines)}"
        )
    lengths = {
        column: sum(
            len(value) for record in sample if isinstance(value := value_at(record, column), str)
        )
        for column in columns
        if column not in (others.id_name, others.title_name)
    }
    longest = max(lengths, key=lengths.__getitem__, default="")
    texts = sorted(found, key=columns.index)
    choice = "+".join(texts) or (longest if lengths.get(longest) else "NAME")
    if others.title_name:  # with a given text, no title is searched
        typed = Typed(typed.name, {**typed.options, "title": others.title_name})
    why = (
        f"several columns may be the text ({', '.join(texts)})"
        if texts
        else "no column is named as a text"
    )
    rows = "\n".join(f"  {_example(record, columns)}" for record in sample[:2])
    return DataError(
        f"{typed.name}: {why}; the columns are {listed(columns)}; the first rows:\n{rows}\n"
        f"name the columns of the text after the file: {typed.with_option('text', choice)}"
    )


def _with_rows(record: Record) -> str:
    """Return the column of a record that is a list of objects; empty if there is none, or several."""
    lists = [name for name, value in record.items() if isinstance(value, list)]
    rows = [name for name in lists if record[name] and isinstance(record[name][0], dict)]
    return rows[0] if len(rows) == 1 else ""


def _example(record: Record, columns: Sequence[str]) -> str:
    """Return a row in one line, with shortened values."""
    shown = []
    for column in columns[:8]:
        text = " ".join(str(value_at(record, column)).split())
        shown.append(f"{column}: {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}")
    return ", ".join(shown)
