"""Twelve files of other people: one command to an index and one to an answer, or words to type.

A command that fails must name the words that work: the test types the last line of the message. `commands` is
the number of commands until the index exists, the first try included: never more than two.
"""

import gzip
import json
import re
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("docx")
pytest.importorskip("inscriptis")

from tests.conftest import Lmk
from tests.data.test_mbox import MAIL
from tests.plugins.documents.test_books import book, docx

ROWS = [
    {"uuid": "a1", "name": "Knots", "abstract": "Two ropes meet in a bowline."},
    {"uuid": "a2", "name": "Sails", "abstract": "Cloth catches the wind."},
]
POSTS = """\ufeff<?xml version="1.0" encoding="utf-8"?>
<posts>
  <row Id="7" PostTypeId="1" Title="Which knot?" Body="&lt;p&gt;For two &lt;b&gt;ropes&lt;/b&gt; &amp;amp; \
a sail&lt;/p&gt;&#xA;" Tags="&lt;knots&gt;&lt;sea&gt;" />
  <row Id="8" PostTypeId="2" ParentId="7" Body="&lt;p&gt;The sheet bend.&lt;/p&gt;" />
  <row Id="9" PostTypeId="5" Body="About the tag" />
</posts>
"""


def german(folder: Path) -> str:
    text = 'Nr;Überschrift;Zubereitung\n1;Brötchen;"Mehl; Hefe\nund Wasser"\n2;Käse;Milch\n'
    (folder / "rezepte.csv").write_bytes(text.encode("latin-1"))
    return "rezepte.csv"


def array(folder: Path) -> str:
    (folder / "papers.json").write_text(json.dumps(ROWS, indent=1))
    return "papers.json"


def nested(folder: Path) -> str:
    rows = [
        {"key": number, "meta": {"name": r["name"], "body": [r["abstract"]]}}
        for number, r in enumerate(ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "papers.parquet")
    return "papers.parquet"


def mailbox(folder: Path) -> str:
    (folder / "mail.mbox").write_bytes(MAIL)
    return "mail.mbox"


def pages(folder: Path) -> str:
    with zipfile.ZipFile(folder / "pages.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("site/knots.html", "<title>Knots</title><p>Two ropes meet.")
        archive.writestr("site/deep/sails.md", "# Sails\n\nCloth")
        archive.writestr("site/style.css", "p { color: red }")
        archive.writestr("__MACOSX/site/._knots.html", "x")
    return "pages.zip"


def word(folder: Path) -> str:
    (folder / "knots.docx").write_bytes(docx("Knots"))
    return "knots.docx"


def novel(folder: Path) -> str:
    (folder / "knots.epub").write_bytes(book())
    return "knots.epub"


def dump(folder: Path) -> str:
    (folder / "Posts.xml").write_text(POSTS, "utf-8")
    return "Posts.xml"


def notes(folder: Path) -> str:
    (folder / "notes").mkdir()
    (folder / "notes/knots.md").write_text("# Knots\n\nTwo ropes meet.")
    (folder / "notes/todo.txt").write_text("buy flour")
    return "folder:notes"


def header(folder: Path) -> str:
    lines = ["\t".join(row) for row in ([*ROWS[0]], *([*row.values()] for row in ROWS))]
    (folder / "papers.tsv").write_text("\n".join(lines) + "\n")
    return "papers.tsv"


def odd(folder: Path) -> str:
    rows = [{"Headline": r["name"], "summary_en": r["abstract"], "stars": 3} for r in ROWS]
    (folder / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "odd.jsonl"


def zipped(folder: Path) -> str:
    with gzip.open(folder / "notes.txt.gz", "wt") as file:
        file.write("Two ropes meet.\nCloth catches the wind.\n")
    return "notes.txt.gz"


class Case(NamedTuple):
    """A file, the commands until it is indexed, its ids, a question, and the first hit with its passage."""

    make: Callable[[Path], str]
    commands: int
    ids: list[str]
    question: str
    answer: str
    passage: str


CASES = [
    Case(german, 2, ["1", "2"], "hefe", "1", "Mehl; Hefe und Wasser"),  # the encoding is a guess
    Case(array, 1, ["a1", "a2"], "bowline", "a1", "Two ropes meet in a bowline."),
    Case(nested, 1, ["0", "1"], "bowline", "0", "Two ropes meet in a bowline."),
    Case(
        mailbox,
        1,
        ["1@example.org", "1@example.org-2", "message-3", "message-4"],
        "hemp",
        "1@example.org-2",
        "Hemp. Flax.",
    ),
    Case(
        pages,
        1,
        ["site/deep/sails.md", "site/knots.html"],
        "ropes",
        "site/knots.html",
        "Two ropes meet.",
    ),
    Case(word, 1, ["knots.docx"], "ropes", "knots.docx", "Two ropes."),
    Case(novel, 1, ["knots.epub"], "hemp", "knots.epub", "Ropes Hemp."),
    Case(dump, 1, ["7", "8"], "sheet bend", "8", "The sheet bend."),
    Case(notes, 1, ["knots.md", "todo.txt"], "flour", "todo.txt", "buy flour"),
    Case(header, 1, ["a1", "a2"], "bowline", "a1", "Two ropes meet in a bowline."),
    Case(odd, 1, ["1", "2"], "bowline", "1", "Two ropes meet in a bowline."),
    # One document, or one for each line?
    Case(zipped, 2, ["notes.txt.gz"], "ropes", "notes.txt.gz", "Two ropes meet. Cloth catches"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.make.__name__)
def test_one_command_to_an_index_and_one_to_an_answer(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lmk: Lmk
) -> None:
    monkeypatch.chdir(tmp_path)
    name = case.make(tmp_path)
    file = name.removeprefix("folder:")
    if case.commands == 2:
        failed = lmk("index", name, "--kind", "bm25", "-o", "index", code=3)
        assert not Path("index").exists()
        words = re.search(rf"(?:folder:)?{re.escape(file)}(?:,[^\s;]+)?(?=;|$| to )", failed.err)
        assert words, failed.err
        [name] = shlex.split(words[0])
    built = lmk("--quiet", "index", name, "--kind", "bm25", "-o", "index", "--json").json
    assert built["documents"] == len(case.ids)
    found = pq.read_table("index/1/docs.parquet")["id"].to_pylist()
    assert sorted(found) == sorted(case.ids)
    first, *_ = lmk("search", "index", "-q", case.question, "--json").json
    assert first["id"] == case.answer
    assert case.passage in first["text"]


def test_a_changed_file_of_a_folder_changes_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lmk: Lmk
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("index", notes(tmp_path), "--kind", "bm25", "-o", "index")
    lmk(*words)
    (tmp_path / "notes/todo.txt").write_text("buy yeast")
    assert "changed" in lmk(*words, code=None).err
    lmk(*words, "--if-exists", "update")
    assert "todo.txt" in lmk("search", "index", "-q", "yeast").out
    assert "todo.txt" not in lmk("search", "index", "-q", "flour").out
