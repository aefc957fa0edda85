"""Snippets: the piece of a text that contains most words of a question."""

import re

SNIPPET = 240  # characters


def lower_words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"\w+", text.lower())


def snippet(text: str, question: str, size: int = SNIPPET) -> str:
    """About `size` characters of `text` around most of the question's words, on one line."""
    words = {word for word in lower_words(question) if len(word) > 2}
    places = [m.start() for m in re.finditer(r"\w+", text) if m.group().lower() in words]
    best = max(places, key=lambda p: sum(p <= q < p + size for q in places), default=0)
    start = max(0, best - 40) if len(text) > size else 0
    cut = text[start : start + size]
    more = start + size < len(text)
    if start and " " in cut:
        cut = cut[cut.index(" ") + 1 :]
    if more and " " in cut and text[start + size] != " ":
        cut = cut[: cut.rindex(" ")]
    shown = " ".join(cut.split())
    return ("… " if start else "") + shown + (" …" if more else "")
