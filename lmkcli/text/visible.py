"""Visible: foreign text as it can be printed and drawn, with nothing in it that a terminal would obey."""

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with everything that a terminal obeys as an escape that JSON reads too, '\u001b'.

    That is C0 (but for tab and newline), DEL, C1, the overrides of writing direction, and halves of
    characters, which are bytes of a file name that is not UTF-8. An SVG cannot hold most of them.
    """
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
