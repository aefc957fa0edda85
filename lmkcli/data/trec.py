"""TREC files: topics as records, and judgements (also in BEIR's format)."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from lmkcli.data.collection import Qrel
from lmkcli.data.fields import Fields, Record
from lmkcli.data.streams import open_stream
from lmkcli.errors import DataError
from lmkcli.system.input_files import MAX_FILE, bounded_lines, check_finite

TOPIC_TAGS = {"num": "id", "title": "title", "desc": "description", "narr": "narrative"}
_START, _END = (re.compile(tag, re.IGNORECASE) for tag in ("<top>", "</top>"))
TOPIC_FIELD = re.compile(
    r"<(num|title|desc|narr)>\s*(?:(?:Number|Topic|Description|Narrative):)?"
    r"(.*?)(?=</\1>|<(?:num|title|desc|narr)>|\Z)",
    re.DOTALL | re.IGNORECASE,
)


def read_topics(path: Path, encoding: str = "") -> list[Record]:
    """The topics of a file, compressed or not, as records. Raises DataError if there are none."""
    with open_stream(path, encoding) as stream:
        data = stream.file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise DataError(f"{path} has more than {MAX_FILE:,} bytes; is it the right file?")
    try:
        text = data.decode("utf-8-sig")
    except ValueError as error:
        raise DataError(
            f"{path}: not UTF-8 ({error}); name its encoding: FILE,encoding=latin-1"
        ) from error
    pieces = (_END.split(piece, maxsplit=1) for piece in _START.split(text)[1:])
    blocks = [piece[0] for piece in pieces if len(piece) == 2]
    topics = [
        {
            TOPIC_TAGS[tag.lower()]: " ".join(text.split())
            for tag, text in TOPIC_FIELD.findall(block)
        }
        for block in blocks
    ]
    topics = topics or _xml_topics(text, path)
    if not topics:
        raise DataError(f"{path}: it contains neither <top> … </top> nor <topic number=…>")
    return topics


def _xml_topics(text: str, path: Path) -> list[Record]:
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: neither TREC topics nor XML ({error})") from error
    return [
        {"id": topic.get("number", "")}
        | {field.tag: " ".join("".join(field.itertext()).split()) for field in topic}
        for topic in root.iter("topic")
    ]


def read_qrels(path: str | Path, map_ids: bool = False) -> Iterator[Qrel]:
    """Iterate over the judgements of a file, compressed or not: TREC's 4 columns, or BEIR's 3.

    Tabs or other white space separate the columns. BEIR's header (query-id, corpus-id, score), empty
    lines and lines that start with '#' are skipped. `map_ids` replaces white space in ids by '_'. The
    order is that of the file, and repeated lines are repeated. Raises DataError with the number of a
    line that has neither format.
    """
    fields = Fields(map_ids=map_ids)
    for number, line in enumerate(_lines(Path(path)), start=1):
        try:
            text = line.decode("utf-8-sig").strip("\r\n ")
        except UnicodeDecodeError:
            raise DataError(f"{path} line {number}: not UTF-8; convert the file") from None
        if text and text[0] != "#" and not (number == 1 and text.startswith("query-id")):
            yield _qrel(text, f"{path} line {number}", fields)


def _lines(path: Path) -> Iterator[bytes]:
    if not path.exists():
        raise DataError(f"{path}: no such file")
    check_finite(path)
    with open_stream(path) as stream:
        yield from bounded_lines(stream.file, path)


_GRADE = re.compile(r"-?[0-9]{1,9}")


def _qrel(line: str, where: str, fields: Fields) -> Qrel:
    columns = line.split("\t")
    if len(columns) not in (3, 4):
        columns = line.split()
    grade = columns[-1].strip()
    if len(columns) not in (3, 4) or not _GRADE.fullmatch(grade):
        raise DataError(
            f"{where}: {line[:80]!r} is not a judgement; write 4 columns (query id, 0, document "
            "id, integer grade) or BEIR's 3 (query id, document id, integer grade)"
        )
    query_id = fields.id(columns[0].strip(), where, "query")
    return Qrel(query_id, fields.id(columns[-2].strip(), where, "document"), int(grade))
