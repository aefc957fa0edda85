"""Headings of Markdown (a line after `#` to `######`, or over `===`) and HTML (`<h1>` to `<h6>`).

Both may stand in one text. What lies in a fenced block of Markdown is code, and `#` there no heading; a
line over `---` is none, as it ends what many texts begin with. Everything is linear in the length of the
text.

Source: CommonMark 0.31, sections 4.2 (ATX headings), 4.3 (setext headings) and 4.5 (fenced code blocks).
"""

from bisect import bisect_right
from collections.abc import Iterator
from html import unescape
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
    """A heading of level 1 (the highest) to 6: its words, and where it begins and ends in the text."""

    level: int
    words: str
    begin: int
    end: int


def headings(text: str) -> list[Heading]:
    """The headings of a text that have any words, in reading order."""
    tagged = [one for one in _html(text) if one.words]
    return sorted([*markdown_headings(text), *tagged], key=lambda one: one.begin)


def markdown_headings(text: str) -> list[Heading]:
    """Those of Markdown alone."""
    code = _fenced(text)
    starts = [begin for begin, _ in code]

    def is_code(place: int) -> bool:
        block = bisect_right(starts, place) - 1
        return block >= 0 and place < code[block][1]

    candidates = [*_hashed(text), *_underlined(text)]
    found = (one for one in candidates if one.words and not is_code(one.begin))
    return sorted(found, key=lambda one: one.begin)


class Outline:
    """The headings of a text, asked for by places in it."""

    def __init__(self, text: str) -> None:
        self._headings = headings(text)
        self._begins = [one.begin for one in self._headings]
        # the nearest one before each that is of a higher level, or -1
        self._parents: list[int] = []
        for number, one in enumerate(self._headings):
            parent = number - 1
            while parent >= 0 and self._headings[parent].level >= one.level:
                parent = self._parents[parent]
            self._parents.append(parent)

    def above(self, begin: int) -> list[str]:
        """The words of the headings, highest first, of the section in which a place is.

        A heading that begins there (or that the place is inside of) is not above it.
        """
        number = bisect_right(self._begins, begin) - 1
        if number >= 0 and self._headings[number].end > begin:
            number = self._parents[number]
        titles = []
        while number >= 0:
            titles.append(self._headings[number].words)
            number = self._parents[number]
        return titles[::-1]


def _hashed(text: str) -> Iterator[Heading]:
    for match in _ATX.finditer(text):
        words = _CLOSING.sub("", (match["words"] or "").strip())
        yield Heading(len(match["marks"]), _one_line(words), match.start(), match.end())


def _underlined(text: str) -> Iterator[Heading]:
    for match in _UNDERLINED.finditer(text):
        yield Heading(1, _one_line(match["words"]), match.start(), match.end())


def _fenced(text: str) -> list[tuple[int, int]]:
    """Where fenced blocks begin and end; one that is never closed goes on to the end."""
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
    """A tag and the end tag of the same level that is the next of these tags."""
    opened: regex.Match[str] | None = None
    for tag in _TAG.finditer(text):
        if tag["end"] and opened is not None and opened["level"] == tag["level"]:
            words = _ANY_TAG.sub(" ", text[opened.end() : tag.start()])
            yield Heading(int(tag["level"]), _one_line(unescape(words)), opened.start(), tag.end())
        opened = None if tag["end"] else tag


def _one_line(words: str) -> str:
    return " ".join(words.split())
