"""Text for people: sizes, durations, counts, and text from elsewhere without control characters."""

import re
import shlex
from collections.abc import Iterable

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNQUOTABLE = re.compile(rf"[\t\n]|{_CONTROL.pattern}")  # what a line of a shell cannot show


def size(count: float) -> str:
    """Format a number of bytes in powers of 1000: '3.4 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Format seconds: '42 s', '3 min 05 s', '2 h 10 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: '1 document', '3,894 documents', '2 queries'."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[object], most: int = 20) -> str:
    """Names with commas between them; of many or long ones, only the first and the first letters."""
    shown = [text if len(text) < 60 else f"{text[:60]}…" for text in map(str, names)]
    more = [f"and {len(shown) - most:,} more"] if len(shown) > most else []
    return ", ".join([*shown[:most], *more])


def visible(text: str) -> str:
    r"""Replace control characters by escapes that JSON reads too: '\u001b'.

    Replaced are C0 (except tab and newline), DEL, C1, the overrides of writing direction, and lone
    surrogates, which represent the bytes of a file name that is not UTF-8. A terminal would obey most of
    them, and an SVG file cannot contain them.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def has_control(text: str) -> bool:
    """Return whether a text contains a character that `visible` replaces, a tab or a newline."""
    return bool(_UNQUOTABLE.search(text))


def shell_line(*words: str) -> str:
    r"""Words as one line for bash or zsh, which reads the same words from it.

    A word with control characters is written with escapes: $'a\nb'. In single quotes, a newline would end
    the line, and its rest would be a command of its own if the line is part of a comment.
    """
    return " ".join(_escaped(each) if has_control(each) else shlex.quote(each) for each in words)


def _escaped(word: str) -> str:
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _UNQUOTABLE.sub(lambda match: _escape(ord(match[0])), plain) + "'"


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        code -= 0xDC00
        return f"\\x{code:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"
