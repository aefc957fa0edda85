"""Where sentences end: the Koehn-Schroeder heuristics with prefix lists of our own.

A sentence ends at ? ! or dots before something that can begin one, unless the word before the dot
is an abbreviation. Abbreviations live in `prefixes/<language>.txt`; a new file is a new language.
Everything is linear in the length of the text: quantifiers are possessive, and no pattern can start
inside its own run.

Source: P. Koehn, Europarl: A Parallel Corpus for Statistical Machine Translation, 2005.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import regex

from lmkcli.errors import UsageError

_CLOSE = r"'\")\]\p{Pf}"
_OPEN = r"'\"(\[¿¡\p{Pi}"
_OPEN_BUT_ROUND = r"'\"\[¿¡\p{Pi}"
_UPPER = r"\p{Lu}\p{Lo}"

# Group 1 is the run of spaces that becomes a line break. The passes follow one another on the same
# text, because a break that an earlier one made keeps a later one from matching across it.
_BREAKS = (
    regex.compile(rf"[?!]( ++)(?=[{_OPEN}]*+[{_UPPER}])"),
    regex.compile(rf"(?<!\.)\.\.++( ++)(?=[{_OPEN}]*+[{_UPPER}])"),
    regex.compile(rf"[?!.] *+[{_CLOSE}]++( ++)(?=[{_OPEN}]*+ *+[{_UPPER}])"),
    regex.compile(rf"[?!.]( ++)(?=[{_OPEN_BUT_ROUND}]++ *+[{_UPPER}])"),
)
_LAST_DOT = regex.compile(rf"\.(?= ++[{_OPEN}]*+[{_UPPER}0-9])")
_CLOSED = regex.compile(rf"[{_CLOSE}%]")
_STEM = regex.compile(r"(?<![\w.\-])[\w.\-]*+\Z")
_INITIALS = regex.compile(rf"\.[{_UPPER}\-]++\.++\Z")
_BEFORE_NUMBER = regex.compile(r" ++[0-9]")
_SPACES = regex.compile(" ++")


class _Prefixes(NamedTuple):
    """Words whose final dot ends no sentence: always, or only before a number."""

    always: frozenset[str]
    numeric: frozenset[str]


def languages() -> list[str]:
    """The codes that have a prefix list, sorted."""
    folder = files("lmkcli.text") / "prefixes"
    return sorted(item.name.removesuffix(".txt") for item in folder.iterdir())


def split(text: str, language: str = "en") -> list[str]:
    """The sentences of `text` with runs of spaces collapsed; a blank line gives an empty string.

    Empty text gives an empty list. UsageError for a language without a prefix list.
    """
    if not text:
        return []
    return [_SPACES.sub(" ", text[start:end]) for start, end in _lines(text, language)]


def sentence_spans(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Character spans [start, end) into `text` of its sentences in order, blank ones left out.

    Spans do not overlap, and everything between them is white space. UsageError for a language
    without a prefix list.
    """
    return [span for span in _lines(text, language) if not _blank(text, span)]


def _blank(text: str, span: tuple[int, int]) -> bool:
    sentence = text[slice(*span)]
    return not sentence or sentence.isspace()


def _lines(text: str, language: str) -> Iterator[tuple[int, int]]:
    prefixes = _prefixes(language)
    start = len(text) - len(text.lstrip())
    stop = max(start, len(text.rstrip()))
    broken = _break_sure(text[:stop])
    ends = sorted([*_newlines(broken, start), *_dot_ends(broken, prefixes)])
    for end in [*ends, stop]:
        yield _trim(text, start, end)
        start = end + 1


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the spaces (U+0020) at either side."""
    line = text[start:end]
    start = end - len(line.lstrip(" "))
    return start, max(start, end - len(line) + len(line.rstrip(" ")))


def _break_sure(text: str) -> str:
    """The text with line breaks in place of spaces where marks alone decide; its length is kept."""
    for pattern in _BREAKS:
        text = pattern.sub(_with_newline, text)
    return text


def _with_newline(match: regex.Match[str]) -> str:
    whole: str = match[0]
    spaces: str = match[1]
    return whole[: -len(spaces)] + "\n" + spaces[1:]


def _newlines(text: str, start: int) -> Iterator[int]:
    while (place := text.find("\n", start)) >= 0:
        yield place
        start = place + 1


def _dot_ends(text: str, prefixes: _Prefixes) -> Iterator[int]:
    """Positions just after the dots that end a sentence."""
    for match in _LAST_DOT.finditer(text):
        end = match.end()
        start = text.rfind(" ", 0, end) + 1
        if not _abbreviates(text, start, end, prefixes):
            yield end


def _abbreviates(text: str, start: int, end: int, prefixes: _Prefixes) -> bool:
    """Whether the word text[start:end], which ends in a dot, goes on after it."""
    if _INITIALS.search(text, start, end):
        return True
    before_dots = text[start:end].rstrip(".")[-1:]
    if _CLOSED.match(before_dots):
        return False
    stem = _STEM.search(text, start, end - 1)[0]
    if stem in prefixes.always:
        return True
    return stem in prefixes.numeric and bool(_BEFORE_NUMBER.match(text, end))


@cache
def _prefixes(language: str) -> _Prefixes:
    known = languages()
    if language not in known:
        raise UsageError(f"no sentence splitter for '{language}': choose one of {', '.join(known)}")
    always: set[str] = set()
    numeric: set[str] = set()
    for line in (
        (files("lmkcli.text") / "prefixes" / f"{language}.txt").read_text("utf-8").splitlines()
    ):
        entries = line.partition("#")[0]
        if entries.startswith("numeric:"):
            numeric.update(entries.removeprefix("numeric:").split())
        else:
            always.update(entries.split())
    return _Prefixes(frozenset(always), frozenset(numeric))
