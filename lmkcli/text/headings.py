"""Headings in Markdown (a line after `#` to `######`, or above `===`) and HTML (`<h1>` to `<h6>`).

A text may contain both. A line in a fenced block of Markdown is code, not a heading. A line above `---` is
not a heading either, because many files start with a block of metadata that ends so. The time is linear
in the length of the text.

Source: CommonMark 0.31, sections 4.2 (ATX headings), 4.3 (setext headings) and 4.5 (fenced code blocks).
"""

from bisect import bisect_right
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from typing import NamedTuple

import regex

_FENCE = regex.compile(r"^ {0,3}(?<mark>`{3,}+|~{3,}+)(?<rest>.*+)$", regex.MULTILINE)
_ATX = regex.compile(r"^ {0,3}(?<marks>#{1,6}+)(?:[ \t](?<words>.*+))?$", regex.MULTILINE)
_UNDERLINED = regex.compile(
    r"^ {0,3}(?!#{1,6}(?:\s|$)|=++[ \t]*$)(?<words>\S.*+)\n {0,3}=++[ \t]*+$", regex.MULTILINE
)
_CLOSING = regex.compile(r"(?:^|(?<=[ \t]))#++[ \t]*+$")
_TAG = regex.compile(r"<(?<end>/?)h(?<level>[1-6])(?:[\s/][^<>]*+)?>", regex.IGNORECASE)
_ANY_TAG = regex.compile(r"<[^<>]*+>")


class Heading(NamedTuple):
    """A heading and its character span [start, end) in the text."""

    level: int
    """1 (the highest) to 6."""
    words: str
    start: int
    end: int


def headings(text: str) -> list[Heading]:
    """Find the headings of a text in reading order, without empty ones."""
    html = [heading for heading in _html(text) if heading.words]
    return sorted([*markdown_headings(text), *html], key=lambda heading: heading.start)


def markdown_headings(text: str) -> list[Heading]:
    """Find the Markdown headings of a text in reading order, without empty ones."""
    blocks = fenced_blocks(text)
    starts = [start for start, _ in blocks]

    def is_code(position: int) -> bool:
        block = bisect_right(starts, position) - 1
        return block >= 0 and position < blocks[block][1]

    hashed = (
        Heading(len(match["marks"]), _without_closing(match["words"] or ""), *match.span())
        for match in _ATX.finditer(text)
    )
    underlined = (
        Heading(1, _one_line(match["words"]), *match.span()) for match in _UNDERLINED.finditer(text)
    )
    found = [each for each in (*hashed, *underlined) if each.words and not is_code(each.start)]
    return sorted(found, key=lambda heading: heading.start)


class Outline:
    """The tree of headings of a text, which gives the headings above each position."""

    def __init__(self, text: str) -> None:
        self._headings = headings(text)
        self._starts = [heading.start for heading in self._headings]
        # The parent of a heading is the nearest earlier heading of a higher level; -1 at the top.
        self._parents: list[int] = []
        for number, heading in enumerate(self._headings):
            parent = number - 1
            while parent >= 0 and self._headings[parent].level >= heading.level:
                parent = self._parents[parent]
            self._parents.append(parent)

    def above(self, position: int) -> list[str]:
        """Return the headings of the section that contains a position, highest level first.

        A heading that starts at the position, or contains it, is not included.
        """
        number = bisect_right(self._starts, position) - 1
        if number >= 0 and self._headings[number].end > position:
            number = self._parents[number]
        return self._path(number)

    def sections(self, start: int, end: int) -> list[tuple[int, int, list[str]]]:
        """Return the sections in a range of characters: their starts and ends in the range, and their
        headings.

        The headings of a section include its own. The first section can start before the range.
        """
        first, last = bisect_right(self._starts, start), bisect_right(self._starts, end - 1)
        starts = [start, *self._starts[first:last], end]
        paths = (self._path(number) for number in range(first - 1, last))
        return [(*ends, path) for ends, path in zip(pairwise(starts), paths, strict=True)]

    def _path(self, number: int) -> list[str]:
        """Return the words of a heading and of those above it, highest level first."""
        titles = []
        while number >= 0:
            titles.append(self._headings[number].words)
            number = self._parents[number]
        return titles[::-1]


def _without_closing(words: str) -> str:
    """Return the words of a heading after `#` without the closing marks: 'Install ##' -> 'Install'."""
    return _one_line(_CLOSING.sub("", words.strip()))


def fenced_blocks(text: str) -> list[tuple[int, int]]:
    """Return the spans of fenced blocks; a block that is never closed extends to the end of the text."""
    blocks: list[tuple[int, int]] = []
    opened: regex.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        mark = fence["mark"]
        if opened is None:
            opened = fence if mark[0] == "~" or "`" not in fence["rest"] else None
        elif mark.startswith(opened["mark"]) and not fence["rest"].strip():
            blocks.append((opened.start(), fence.end()))
            opened = None
    return blocks if opened is None else [*blocks, (opened.start(), len(text))]


def _html(text: str) -> Iterator[Heading]:
    """Headings from a start tag to the next heading tag, if that is the end tag of the same level."""
    opened: regex.Match[str] | None = None
    for tag in _TAG.finditer(text):
        if tag["end"] and opened is not None and opened["level"] == tag["level"]:
            words = _ANY_TAG.sub(" ", text[opened.end() : tag.start()])
            yield Heading(int(tag["level"]), _one_line(unescape(words)), opened.start(), tag.end())
        opened = None if tag["end"] else tag


def _one_line(words: str) -> str:
    return " ".join(words.split())
