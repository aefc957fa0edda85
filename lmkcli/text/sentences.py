"""Sentence boundaries: the Koehn-Schroeder heuristics with our own prefix lists.

A sentence ends at ? ! or dots before characters that can start a sentence, unless the word before the dot
is an abbreviation. `prefixes/<language>.txt` lists the abbreviations; a new file adds a language. The time
is linear in the length of the text: quantifiers are possessive, and no pattern can start inside its own
run.

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

# Group 1 is the run of spaces that becomes a line break. Each pass sees the breaks of the passes before
# it, because no pattern may match across such a break.
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
    """Abbreviations: words with a final dot that does not end a sentence, always or only before a number."""

    always: frozenset[str]
    numeric: frozenset[str]


def languages() -> list[str]:
    """Return the codes of all languages with a prefix list, sorted."""
    folder = files("lmkcli.text") / "prefixes"
    return sorted(item.name.removesuffix(".txt") for item in folder.iterdir())


def split(text: str, language: str = "en") -> list[str]:
    """Split a text into sentences, with runs of spaces collapsed. A blank line gives an empty string.

    Raises UsageError for a language without a prefix list.
    """
    if not text:
        return []
    return [_SPACES.sub(" ", text[start:end]) for start, end in _lines(text, language)]


def sentence_spans(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Character spans [start, end) of the sentences of a text, in order, without blank sentences.

    Spans do not overlap, and all text between them is white space. Raises UsageError for a language
    without a prefix list.
    """
    return [span for span in _lines(text, language) if text[slice(*span)].strip()]


def _lines(text: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of sentences and blank lines, without spaces (U+0020) at either end."""
    prefixes = _prefixes(language)
    start = len(text) - len(text.lstrip())
    stop = max(start, len(text.rstrip()))
    # Replace the first space of a sure boundary by a line break. The length of the text stays the same.
    broken = text[:stop]
    for pattern in _BREAKS:
        broken = pattern.sub(_with_newline, broken)
    newlines = (match.start() for match in regex.finditer("\n", broken) if match.start() >= start)
    dot_ends = (
        match.end()
        for match in _LAST_DOT.finditer(broken)
        if not _abbreviates(broken, broken.rfind(" ", 0, match.end()) + 1, match.end(), prefixes)
    )
    for end in [*sorted([*newlines, *dot_ends]), stop]:
        line = text[start:end]
        first = end - len(line.lstrip(" "))
        yield first, max(first, end - len(line) + len(line.rstrip(" ")))
        start = end + 1


def _with_newline(match: regex.Match[str]) -> str:
    whole: str = match[0]
    spaces: str = match[1]
    return whole[: -len(spaces)] + "\n" + spaces[1:]


def _abbreviates(text: str, start: int, end: int, prefixes: _Prefixes) -> bool:
    """Return whether the dot at the end of the word text[start:end] belongs to an abbreviation or to
    initials.
    """
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
    if language not in languages():
        raise UsageError(
            f"no sentence splitter for '{language}': choose one of {', '.join(languages())}"
        )
    always: set[str] = set()
    numeric: set[str] = set()
    path = files("lmkcli.text") / "prefixes" / f"{language}.txt"
    for line in path.read_text("utf-8").splitlines():
        entries = line.partition("#")[0]
        if entries.startswith("numeric:"):
            numeric.update(entries.removeprefix("numeric:").split())
        else:
            always.update(entries.split())
    return _Prefixes(frozenset(always), frozenset(numeric))
