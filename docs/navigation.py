"""The list of all pages on the first page, made of the navigation of the site (`nav` in mkdocs.yml)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]


def contents() -> str:
    """The headings of the navigation and a link to each page below them, in its order."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text.partition("\nnav:\n")[2])  # the rest has tags of mkdocs
    sections = (
        f"\n**{heading}**\n\n" + "\n".join(_lines(entries, ""))
        for entry in nav
        for heading, entries in entry.items()
    )
    return "\n".join(sections) + "\n\n"


def _lines(entries: list[Any], indent: str) -> Iterator[str]:
    """A line for each page except the first one, which has the list; a group is a list in the list."""
    for entry in entries:
        [(title, target)] = entry.items()
        if isinstance(target, list):
            yield f"{indent}- {title}"
            yield from _lines(target, indent + "  ")
        elif target != "README.md":
            yield f"{indent}- [{title}]({_link(target)})"


def _link(page: str) -> str:
    """The path of a page from docs/: mkdocs.yml counts from docs/ or, for other pages, from the root."""
    if (ROOT / "docs" / page).is_file():
        return page
    notebook = re.sub(r"\.md$", ".ipynb", page)
    return f"../{page if (ROOT / page).is_file() else notebook}"
