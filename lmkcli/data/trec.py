"""Topics of TREC as records."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from lmkcli.data.fields import Record
from lmkcli.data.streams import open_stream
from lmkcli.errors import DataError
from lmkcli.system.input_files import MAX_FILE

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
