"""TREC's files: topics as records, and judgements (BEIR's form of them too)."""

import gzip
import re
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator
from pathlib import Path

from lmkcli.data.collection import Qrel
from lmkcli.data.formats import Fields, Record
from lmkcli.errors import DataError
from lmkcli.reading import bounded_lines, check_finite

TOPIC_TAGS = {"num": "id", "title": "title", "desc": "description", "narr": "narrative"}
TOPIC_FIELD = re.compile(
    r"<(num|title|desc|narr)>\s*(?:(?:Number|Topic|Description|Narrative):)?"
    r"(.*?)(?=</\1>|<(?:num|title|desc|narr)>|\Z)",
    re.DOTALL | re.IGNORECASE,
)


def read_topics(path: Path) -> list[Record]:
    """All topics of a file, plain or .gz, as records. DataError when it holds none."""
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except ValueError as error:
        raise DataError(f"{path}: not UTF-8 ({error}); convert it with iconv -t utf-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged or cut gzip ({error}); fetch it again") from error
    blocks = re.findall(r"<top>(.*?)</top>", text, re.DOTALL | re.IGNORECASE)
    topics = [_topic(block) for block in blocks] if blocks else _xml_topics(text, path)
    if not topics:
        raise DataError(f"{path}: no <top> … </top> and no <topic number=…> in it")
    return topics


def _topic(block: str) -> Record:
    fields = TOPIC_FIELD.findall(block)
    return {TOPIC_TAGS[tag.lower()]: " ".join(text.split()) for tag, text in fields}


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
    """The judgements of a file, plain or .gz: TREC's 4 columns, or BEIR's 3.

    Columns are separated by tabs or other white space; BEIR's header (query-id, corpus-id, score),
    empty lines and lines that begin with '#' are passed over. `map_ids` replaces white space inside
    an id by '_'. Lines come in file order, repeated ones too. DataError with the line where a line
    is neither.
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
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from bounded_lines(file, path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged or cut gzip ({error}); fetch it again") from error


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
