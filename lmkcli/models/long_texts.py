"""Long texts: places where a text can be cut, so that its parts have exactly the tokens of the whole.

A tokenizer takes about 100 bytes for each character while it works. So long texts are tokenized in parts. A
part begins with a single space that is between two letters or digits. Most tokenizers find a word boundary
there, and treat each word alone. `can_cut` checks the rules of a tokenizer: a rule that is not known to work
word by word makes every text whole.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

# They change each character without regard to those on the other side of such a space.
_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_SPLITTERS = {"BertPreTokenizer", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit"}
_INSIDE_WORDS = {"Digits", "Punctuation"}
_CUT = re.compile(r"(?<=\w) (?=\w)")


def can_cut(fast: Any, spans: bool) -> bool:
    """Return whether the parts of a text have the tokens of the whole, and with `spans` their spans."""
    every = _parts(fast.normalizer, "normalizers")
    if any(part["type"] not in _NORMALIZERS for part in every):
        return False
    every = _parts(fast.pre_tokenizer, "pretokenizers")
    if any(part["type"] not in _SPLITTERS | _INSIDE_WORDS for part in every):
        return False
    splitters = [part for part in every if part["type"] in _SPLITTERS]
    # One that splits nothing may replace the spaces that the next one would find
    if not splitters or not all(map(_splits_at_spaces, splitters)):
        return False
    # such a processor moves the start of the first span of a text
    every = _parts(fast.post_processor, "processors") if spans else []
    if any(part.get("trim_offsets") and part.get("add_prefix_space") for part in every):
        return False
    return not any(
        _reaches_spaces(fast, token) for token in fast.get_added_tokens_decoder().values()
    )


def _parts(rule: Any, key: str) -> list[dict[str, Any]]:
    """Return the descriptions of a rule of a tokenizer; those of its members if it is a sequence."""
    parts: list[dict[str, Any]] = []
    waiting = [] if rule is None else [json.loads(rule.__getstate__())]
    while waiting:
        part = waiting.pop()
        if part["type"] == "Sequence":
            waiting += part[key]
        else:
            parts.append(part)
    return parts


def _splits_at_spaces(part: dict[str, Any]) -> bool:
    switch = {"ByteLevel": "use_regex", "Metaspace": "split"}.get(part["type"])
    return switch is None or part.get(switch) is True


def _reaches_spaces(fast: Any, token: Any) -> bool:
    """Return whether an added token can contain a space, or takes the spaces after it."""
    content = token.content
    if token.normalized and fast.normalizer is not None:
        content += fast.normalizer.normalize_str(content)
    return token.rstrip or any(character.isspace() for character in content)


def cuts(text: str, most: int) -> Iterator[int]:
    """Yield the starts of the parts of a text, 0 first. A part ends at a place after `most` characters."""
    start: int | None = 0
    while start is not None:
        yield start
        found = _CUT.search(text, start + most)
        start = found.start() if found else None
