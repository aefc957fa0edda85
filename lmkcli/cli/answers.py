"""Answers to single questions, for people and as JSON."""

import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from lmkcli.cli import console

if TYPE_CHECKING:
    from lmkcli.data.collection import Doc
    from lmkcli.retrieval.index import Index, Passage

_SNIPPET = 240
_PASSAGE = 1000
_WIDEST = 100
_INDENT = " " * 5


def answer(index: "Index", question: str, k: int, json: bool) -> None:
    """Print the k best documents for one question, with the best passage where chunks have vectors."""
    from lmkcli.data.collection import Query

    query = Query("q", question)
    ranking = index.search([query], k).rankings["q"]
    docs = index.texts(ranking.doc_ids)
    passages = index.passages(query, ranking.doc_ids)
    hits = [
        {
            "rank": rank,
            "score": float(score),
            "id": name,
            "title": docs[name].title,
            **_shown(docs[name], passages.get(name), question),
        }
        for rank, (name, score) in enumerate(zip(ranking.doc_ids, ranking.scores, strict=True), 1)
    ]
    if json:
        return console.plain_json(hits)
    for hit in hits:
        console.say(f"{hit['rank']:>3}  {hit['score']:.4f}  {hit['id']}  {hit['title']}".rstrip())
        if "chunk" in hit:
            console.say(f"{_INDENT}{_place(passages[str(hit['id'])])}")
            console.say(_wrapped(snippet(str(hit["passage"]), question, _PASSAGE)))
        elif hit["text"]:
            console.say(_wrapped(str(hit["text"])))
    if not hits:
        console.say("no document found")


def _wrapped(text: str) -> str:
    """The text in lines of 100 columns at most, all indented, broken between words."""
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shown(doc: "Doc", passage: "Passage | None", question: str) -> dict[str, object]:
    """A piece of the text, or the passage with its place."""
    if passage is None:
        return {"text": snippet(doc.text, question)}
    return {
        "chunk": passage.chunk,
        "chunks": passage.chunks,
        "begin": passage.begin,
        "end": passage.end,
        "passage": passage.text,
    }


def _place(passage: "Passage") -> str:
    which = f"chunk {passage.chunk + 1} of {passage.chunks}"
    if passage.begin == passage.end:  # the chunk is empty, or its place in the text is not known
        return which
    begin, end = console.number(passage.begin), console.number(passage.end)
    return f"{which}, characters {begin}\u2013{end}"


def snippet(text: str, question: str, size: int = _SNIPPET) -> str:
    """About `size` characters of `text` around most of the question's words, on one line."""
    words = {word for word in re.findall(r"\w+", question.lower()) if len(word) > 2}
    places = [m.start() for m in re.finditer(r"\w+", text) if m.group().lower() in words]
    best = max(places, key=lambda p: sum(p <= q < p + size for q in places), default=0)
    start = max(0, best - 40) if len(text) > size else 0
    cut = text[start : start + size]
    more = start + size < len(text)
    if start and " " in cut:
        cut = cut[cut.index(" ") + 1 :]
    if more and " " in cut and text[start + size] != " ":
        cut = cut[: cut.rindex(" ")]
    shown = " ".join(cut.split())
    return ("… " if start else "") + shown + (" …" if more else "")


def prompt(index: "Index", k: int, json: bool) -> None:
    """Answer question after question until the input ends."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("? ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            answer(index, line.strip(), k, json)
