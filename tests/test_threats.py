"""The table of threats in docs/security.md: a row for every source, with tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    *("model", "vectors", "index", "collection", "run", "config", "grid"),
    *("request", "answer"),
)


def rows() -> list[list[str]]:
    """The cells of the table: source, what it can, what it cannot, tests."""
    section = (ROOT / "docs" / "security.md").read_text("utf-8").split("\n## Threats\n")[1]
    section = section.split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_source_has_a_row() -> None:
    names = " ".join(row[0] for row in rows())
    assert [source for source in SOURCES if source not in names] == []
    assert all(len(row) == 4 and all(row) for row in rows())


def test_the_named_tests_exist() -> None:
    """A name without a folder belongs to the folder of the name before it, or to one of the row."""
    missing = []
    for source, _, _, named in rows():
        files = re.findall(r"`([^`]+)`", named)
        assert files, source
        folders = {Path(each).parent for each in files if "/" in each} | {Path("tests")}
        for each in files:
            places = [Path(each)] if "/" in each else [folder / each for folder in folders]
            if not any((ROOT / place).exists() for place in places):
                missing.append((source, each))
    assert missing == []
