"""docs/papers.md has each table and figure of the papers once, and each file of a table."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
# The numbers of tables and figures of each paper, by the start of its section.
PAPERS = {
    "Landmark pooling": (17, 5),
    "ConTEB and InSeNT": (5, 6),
    "M2-BERT and LoCoV1": (25, 6),
    "TITE": (4, 3),
}
NAMED = re.compile(r"(Table|Figure)s? (\d+(?: and \d+)*)")  # in the first line of a file


class Row(NamedTuple):
    """A row of a table of the page."""

    kind: str
    number: int
    way: str
    needs: str
    missing: str


def rows(text: str) -> list[Row]:
    cells = [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return [
        Row(kind, int(number), *rest)
        for first, *rest in cells
        for kind, _, number in [first.partition(" ")]
        if kind in ("Table", "Figure")
    ]


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("paper", PAPERS)
def test_each_table_and_figure_has_a_row(paper: str) -> None:
    tables, figures = PAPERS[paper]
    found = [(row.kind, row.number) for row in rows(section(paper))]
    wanted = [("Table", n + 1) for n in range(tables)] + [("Figure", n + 1) for n in range(figures)]
    assert found == wanted


def test_a_row_names_a_way_or_what_is_missing() -> None:
    assert len(rows(PAGE)) == sum(map(sum, PAPERS.values()))
    assert [row for row in rows(PAGE) if not row.way and not row.missing] == []


def test_the_page_has_every_file_in_the_rows_of_its_tables() -> None:
    """A file names the tables that it computes in its first line."""
    folder = ROOT / "examples" / "papers"
    files = {path.name: path for path in folder.iterdir() if path.suffix in (".toml", ".sh")}
    files["m2bert_table24.py"] = folder / "m2bert_table24.py"
    assert (
        set(re.findall(r"examples/papers/([\w-]+\.(?:toml|sh))\)", PAGE)) | {"m2bert_table24.py"}
        == files.keys()
    )
    for name, path in files.items():
        (paper,) = [each for each in PAPERS if f"papers/{name})" in section(each)]
        ways = {(row.kind, row.number): row.way + row.missing for row in rows(section(paper))}
        lines = path.read_text(encoding="utf-8").removeprefix("#!/bin/sh\n")
        first = lines.partition("\n")[0].partition(" of ")[0]
        named = [(kind, int(n)) for kind, ns in NAMED.findall(first) for n in ns.split(" and ")]
        assert named, name
        assert [each for each in named if name not in ways[each]] == [], name


def test_every_recipe_of_a_paper_is_named_with_its_sections() -> None:
    """The recipes in examples/ cite the paper, or mark a value as their own."""
    landmarks = ("lmk-msmarco-passage", "lmk-msmarco-document", "lmk-multilingual")
    others = ("insent", "insent-late", "m2bert-pretrain", "m2bert-retrieval", "tite-2-late")
    for name in (*landmarks, *others, "tite-msmarco"):
        text = (ROOT / "examples" / f"{name}.toml").read_text(encoding="utf-8")
        assert f"examples/{name}.toml" in PAGE
        assert "§" in text
        assert "not in the paper" in text or "own choice" in text


SECTIONS = {  # of each paper, and how the code cites it
    r"(?:LMK,|2601\.21525,?)": "1 2 3 3.1 3.2 4 5 6 6.1 6.2 6.3 6.4 7",
    r"(?:Conti et al\. 2025,|2505\.24782,?)": "1 2 2.1 2.2 3 3.1 3.2 3.3 3.4 4 4.1 4.2 4.3 5 6 7",
    r"(?:M2-BERT,|Saad-Falcon et al\. 2024,|2402\.07440\)?,?)": "1 2 3 4 4.1 4.2 4.3 5 5.1 5.2 5.3 6",
    r"(?:TITE,|TITE \()?Schlatt et al\. 2025,?": "1 2 3 3.1 3.2 3.3 3.4 4 4.1 4.2 4.3 4.4 4.5 5",
}  # fmt: skip
TOPICS = {  # phrases that a citation follows, and their section
    "[Oo]rthogonal projection loss": "4.3",
    "[Pp]rototype loss|Prediction loss": "4.3",
    r"repeated until its table is full": "4.2",
}


def test_cited_sections_exist_and_are_those_of_their_topics() -> None:
    places = [*(ROOT / "lmkcli").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    texts = {path: re.sub(r"\n# ?|\s+", " ", path.read_text(encoding="utf-8")) for path in places}
    for path, text in texts.items():
        for paper, sections in SECTIONS.items():
            cited = re.findall(rf"{paper}\s*§([\d.]*\d)", text)
            assert set(cited) <= set(sections.split()), (path, cited)
        for topic, section in TOPICS.items():
            for cited in re.findall(rf"(?:{topic})[^§.]{{0,90}}[^§]{{0,30}}§([\d.]*\d)", text):
                assert cited == section, (path, topic, cited)


CITED = re.compile(
    r"#.*(§|App\.|Table|footnote|own choice|Own choice|not in the paper|authors' code|default)"
)
FOR_OTHERS = re.compile(r"as (all|the \w+) (of the )?(following|values without a comment)")
RECIPES = ("lmk-ms*", "lmk-mu*", "insent*", "m2bert-*", "tite-*")


@pytest.mark.parametrize(
    "path",
    [path for each in RECIPES for path in sorted((ROOT / "examples").glob(f"{each}.toml"))],
    ids=lambda path: path.stem,
)
def test_each_value_of_a_recipe_has_its_place_in_the_paper(path: Path) -> None:
    """A comment names the section, marks the value as another's, or speaks for the following values."""
    settings = path.read_text(encoding="utf-8").partition("]\n")[2].splitlines()
    spoken_for = False
    for line in settings:
        assert spoken_for or CITED.search(line), line
        spoken_for = spoken_for or bool(FOR_OTHERS.search(line))
