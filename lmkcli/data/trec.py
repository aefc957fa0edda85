"""Topics of TREC as records."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from lmkcli.data.byte_streams import open_stream
from lmkcli.data.fields import QUERY_TEXT_FIELDS, Record
from lmkcli.errors import DataError
from lmkcli.system.input_files import MAX_FILE

TOPIC_TAGS = {"num": "id", "desc": "description", "narr": "narrative"}
_START, _END = (re.compile(tag, re.IGNORECASE) for tag in (r"<top(?:\s[^<>]*)?>", "</top>"))
TOPIC_FIELD = re.compile(
    r"<([a-z][\w-]*)>\s*(?:(?:Number|Topic|Description|Narrative):)?"
    r"(.*?)(?=</\1>|<[a-z][\w-]*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_XML_TOPICS = ("topic", "top", "query")  # elements that contain a topic
_XML_IDS = ("number", "num", "id", "identifier", "qid", "topicid", "topic_id", "query_id")


def read_topics(path: Path, encoding: str = "") -> list[Record]:
    """Return the topics of a file, compressed or not, as records. Raises DataError if there are none."""
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
    # The end tag may be missing: a topic ends where the next one starts.
    blocks = [_END.split(piece, maxsplit=1)[0] for piece in _START.split(text)[1:]]
    topics = [_classic_topic(block) for block in blocks]
    topics = topics if any("id" in topic for topic in topics) else _xml_topics(text, path)
    if not topics:
        raise DataError(
            f"{path}: it contains neither <top> … </top> nor <topic number=…>, <topic id=…> or <query id=…>"
        )
    return topics


def _classic_topic(block: str) -> Record:
    """Return the fields of a topic between <top> and </top>; of a repeated field, the first one."""
    topic: Record = {}
    for tag, text in TOPIC_FIELD.findall(block):
        name = tag.lower()
        topic.setdefault(TOPIC_TAGS.get(name, name), " ".join(text.split()))
    return topic


def _xml_topics(text: str, path: Path) -> list[Record]:
    """Return the topics of an XML file. The first kind of element that has ids contains them."""
    try:
        root = ElementTree.fromstring(text.lstrip())
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: neither TREC topics nor XML ({error})") from error
    for name in _XML_TOPICS:
        topics = [_xml_topic(each) for each in root.iter() if each.tag.lower() == name]
        if any("id" in topic for topic in topics):
            return topics
    return []


def _xml_topic(element: ElementTree.Element) -> Record:
    """Return the fields of a topic: its id from an attribute or an element, and its
    elements by their names.
    """
    fields = {
        tag.lower() if tag.lower() in QUERY_TEXT_FIELDS else tag: " ".join("".join(parts).split())
        for tag, parts in ((each.tag, each.itertext()) for each in element)
    }
    own = " ".join((element.text or "").split())
    values = [*element.attrib.items(), *fields.items()]
    ids = {name.lower(): value.strip() for name, value in reversed(values)}
    topic_id = next((ids[name] for name in _XML_IDS if name in ids), None)
    return fields | ({"text": own} if own else {}) | ({} if topic_id is None else {"id": topic_id})
