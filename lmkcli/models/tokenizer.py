"""Tokenizer: text to content tokens without special tokens.

Processes that only tokenize load this module, so it imports neither torch nor transformers.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import CHUNK_BREAK, check_text
from lmkcli.errors import DataError
from lmkcli.models.model_files import loading
from lmkcli.pooling.table import SpecialTokens
from lmkcli.store.ragged import Longs, ranges
from lmkcli.store.token_blocks import IDS, PROMPT, SPANS, Ints, TextTokens, TokenBlock
from lmkcli.system.item_streams import batched
from lmkcli.text.sentences import sentence_spans

CHARACTERS = 1 << 19  # that are tokenized together; a tokenizer takes 100 bytes for each
_SPACES = re.compile("  +")


@dataclass(frozen=True)
class Tokenizer:
    """A fast tokenizer with a prompt and a splitter; together they determine the token ids.

    spans: whether the spans of tokens are needed. Without them, tokenizing takes two thirds of the time. A
    prompt and a splitter find their tokens by spans, and always compute them.
    keep_space: whether white space at the ends of a text is tokenized too, as in sentence-transformers.
    hidden_suffix: None if the states of the prompt are pooled. Otherwise, as many tokens belong to the prompt
    as it has alone, as in sentence-transformers, even if the last of them ends with the first word of the
    text; and so many tokens of the suffix (`counted_suffix`).
    """

    fast: Any
    special: SpecialTokens
    prompt: str = ""
    splitter: str = ""
    spans: bool = True
    keep_space: bool = False
    hidden_suffix: int | None = None

    def __call__(self, texts: list[str]) -> TokenBlock:
        """Return the content tokens of many texts, tokenized in parallel outside Python's global lock.

        Unless `keep_space`, texts are stripped, as in the official evaluation of landmark pooling. Spans
        count in the text as given. Without `spans`, the block may contain none.
        """
        for text in texts:
            check_text(text)
        if self.splitter == "given":
            return TokenBlock.of(self._given(texts))
        # some normalizers would delete the character and join two words
        texts = [text.replace(CHUNK_BREAK, " ") for text in texts]
        if self.splitter:
            return TokenBlock.of(self._sentences(texts))
        bodies = texts if self.keep_space else [text.strip() for text in texts]
        if not self.spans and not self.prompt:
            return self._encode(bodies, spans=False)
        encoded = self._encode([self.prompt + body for body in bodies])
        leads = [0 if self.keep_space else len(text) - len(text.lstrip()) for text in texts]
        alone = None
        if self.prompt and self.hidden_suffix is not None:
            alone = len(self._encode([self.prompt]).ids) + self.hidden_suffix
        return _without_prompts(encoded, len(self.prompt), leads, alone)

    def contexts(self, texts: list[str]) -> list[Ints]:
        """Return the ids of texts that precede chunks, each with a line break after it.

        They are the content tokens of `prompt + text + line break`. An empty text has no ids.
        """
        for text in texts:
            check_text(text)
        plain = [text.replace(CHUNK_BREAK, " ").strip() for text in texts]
        bodies = [f"{text}\n" for text in plain if text]
        if self.splitter == "sentence":  # tokenizes the prompt separately
            block = self._encode(bodies)
        else:
            block = self._encode([self.prompt + body for body in bodies])
            block = _without_prompts(block, len(self.prompt), [0] * len(block))
        encoded = iter(tokens.ids for tokens in block)
        return [next(encoded) if text else np.zeros(0, np.int32) for text in plain]

    def tokens(self, ids: Ints) -> list[str]:
        """Return the vocabulary entries of some ids, for display."""
        return [self.fast.id_to_token(int(i)) or f"<{i}>" for i in ids]

    def text(self, ids: Ints) -> str:
        """Return the text of some ids, special tokens included, for display."""
        text: str = self.fast.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def _encode(self, texts: list[str], spans: bool = True) -> TokenBlock:
        """Return the tokens of texts, prompts included; without `spans`, the block has none."""
        parts = [(text, 0) for text in texts]
        counts = np.ones(len(texts), np.int64)
        if any(len(text) > CHARACTERS for text in texts) and can_cut(self.fast, spans):
            parts, counts = _cut(texts)
        encode = self.fast.encode_batch if spans else self.fast.encode_batch_fast
        blocks = []
        for batch in batched(parts, lambda part: len(part[0]), CHARACTERS):
            with loading("a text", "cannot be tokenized with the tokenizer of this model"):
                items = encode([text for text, _ in batch], add_special_tokens=False)
            blocks.append(_block(items, [start for _, start in batch] if spans else None))
        block = TokenBlock.join(blocks) if blocks else TokenBlock.of([])
        of_texts = block.starts[np.concatenate([[0], np.cumsum(counts)])]
        return TokenBlock(block.ids, block.spans, None, of_texts)

    def _sentences(self, texts: list[str]) -> list[TextTokens]:
        """Tokenize each sentence separately, and the prompt too (arXiv 2601.21525 §4)."""
        spans = [_sentence_spans(text) for text in texts]
        pieces = [text[a:b] for text, bounds in zip(texts, spans, strict=True) for a, b in bounds]
        encoded = iter(self._encode([_SPACES.sub(" ", piece) for piece in pieces]))
        prompt = self._encode([self.prompt.rstrip()]).ids
        return [
            _join([_sentence(next(encoded), text[a:b], a) for a, b in bounds], prompt)
            for text, bounds in zip(texts, spans, strict=True)
        ]

    def _given(self, texts: list[str]) -> list[TextTokens]:
        """Tokenize given chunks together, with the separator between them (arXiv 2505.24782 §4.1)."""
        separator = self.fast.id_to_token(self.special.separator)
        joined = [text.replace(CHUNK_BREAK, separator) for text in texts]
        encoded = self._encode([self.prompt + text for text in joined])
        tokenized = _without_prompts(encoded, len(self.prompt), [0] * len(encoded))
        return [
            _without_separators(tokens, text, separator, int(self.special.separator or 0))
            for tokens, text in zip(tokenized, texts, strict=True)
        ]


def _without_separators(
    tokens: TextTokens, text: str, separator: str, separator_id: int
) -> TextTokens:
    """Remove the separators from the tokens of a joined text, and make spans count in the text as given.

    The text has one character CHUNK_BREAK between two chunks, and the joined text has the longer
    `separator` there. Break i of the text is therefore at `breaks[i] + i * longer` in the joined text. A
    token is a separator if it has the separator's id and its span covers such a place. Spans of chunk i
    move back by `i * longer`.
    """
    breaks = np.array([i for i, character in enumerate(text) if character == CHUNK_BREAK], np.int64)
    longer = len(separator) - len(CHUNK_BREAK)
    joined_breaks = breaks + longer * np.arange(len(breaks))
    spans = tokens.spans.astype(np.int64)
    following = np.append(joined_breaks, -1)[np.searchsorted(joined_breaks, spans[:, 0])]
    covers = (spans[:, 0] <= following) & (following < spans[:, 1])
    is_separator = (tokens.ids == separator_id) & covers
    if is_separator.sum() != len(breaks):
        raise DataError(
            f"the tokenizer did not keep the separator {separator!r} between given chunks; "
            "use --gran with a number of tokens"
        )
    chunk = np.cumsum(is_separator)[~is_separator]
    back = (spans[~is_separator] - longer * chunk[:, None]).astype(np.int32)
    ends = np.append(np.flatnonzero(is_separator) - np.arange(len(breaks)), len(chunk))
    return TextTokens(tokens.ids[~is_separator], back, tokens.prompt, ends.astype(np.int32))


def _cut(texts: list[str]) -> tuple[list[tuple[str, int]], Longs]:
    """Return the parts of texts with their starts, and how many parts each text has."""
    parts = []
    counts = np.zeros(len(texts), np.int64)
    for number, text in enumerate(texts):
        starts = [*cuts(text, CHARACTERS)]
        counts[number] = len(starts)
        parts += [(text[a:b], a) for a, b in pairwise([*starts, len(text)])]
    return parts, counts


def _block(items: list[Any], shifts: list[int] | None) -> TokenBlock:
    """Return the ids of encoded texts, and their spans plus a number for each text; None for no spans."""
    starts = np.zeros((len(items) + 1, 4), np.int64)
    starts[1:, IDS] = np.cumsum([len(item) for item in items])
    # chain and fromiter make no array for each text
    every = chain.from_iterable(item.ids for item in items)
    with loading("a text", "cannot be tokenized: the tokenizer has impossible token ids"):
        ids = np.fromiter(every, np.int32, int(starts[-1, IDS]))
    if shifts is None:
        return TokenBlock(ids, np.zeros((0, 2), np.int32), None, starts)
    starts[:, SPANS] = starts[:, IDS]
    pairs = chain.from_iterable(item.offsets for item in items)
    spans = np.fromiter(chain.from_iterable(pairs), np.int32, 2 * len(ids)).reshape(-1, 2)
    if any(shifts):
        spans += np.repeat(np.array(shifts, np.int32), np.diff(starts[:, IDS]))[:, None]
    return TokenBlock(ids, spans, None, starts)


def _without_prompts(
    block: TokenBlock, prompt: int, leads: list[int], tokens: int | None = None
) -> TokenBlock:
    """Separate prompt and content of encoded texts.

    `prompt` is the length of the prompt in characters, `leads` the number of characters stripped from the
    start of each text. Tokens that end inside the prompt belong to it; a token that ends after it is
    content. If no token ends after it, the text is empty and all tokens belong to the prompt. With `tokens`,
    the first tokens belong to the prompt, as many as that.
    """
    ids, spans, starts = block.ids, block.spans, block.starts
    stops, counts = starts[1:, IDS], np.diff(starts[:, IDS])
    firsts = stops - counts
    if prompt:
        spans = spans - prompt
        after = np.append(np.flatnonzero(spans[:, 1] > 0), len(ids))
        first_after = np.minimum(after[np.searchsorted(after, firsts)], stops)
        last_after = np.append(spans[:, 1] > 0, False)[np.maximum(stops - 1, 0)]
        heads = np.where(counts == 0, 0, np.where(last_after, first_after - firsts, counts))
        heads = heads if tokens is None else np.minimum(counts, tokens)
        starts[:-1, PROMPT] = heads
        spans = np.maximum(spans[ranges(firsts + heads, counts - heads)], 0)
        counts = counts - heads
    starts[1:, SPANS] = np.cumsum(counts)
    if any(leads):
        spans = spans + np.repeat(np.array(leads, np.int32), counts)[:, None]
    return TokenBlock(ids, spans, None, starts)


def _sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of sentences.

    If splitting lost more than a tenth of the text, return the whole text (official rule).
    """
    spans = sentence_spans(text)
    kept = sum(len(_SPACES.sub(" ", text[a:b])) for a, b in spans)
    body = text.strip()
    if body and kept < 0.9 * len(body):
        lead = len(text) - len(text.lstrip())
        return [(lead, lead + len(body))]
    return spans


def _sentence(tokens: TextTokens, sentence: str, start: int) -> tuple[Ints, NDArray[np.int32]]:
    """Return the ids of one sentence, and their spans in the text.

    Runs of spaces were reduced to one space before tokenization; spans count all spaces again.
    """
    spans = tokens.spans
    if "  " in sentence:
        spaces = np.array([character == " " for character in sentence])
        kept = np.flatnonzero(~(spaces & np.concatenate([[False], spaces[:-1]])))
        spans = np.concatenate([kept, [len(sentence)]])[spans].astype(np.int32)
    return tokens.ids, spans + start


def _join(sentences: list[tuple[Ints, NDArray[np.int32]]], prompt: Ints) -> TextTokens:
    sentences = [sentence for sentence in sentences if len(sentence[0])]
    if not sentences:
        return TextTokens(
            np.zeros(0, np.int32), np.zeros((0, 2), np.int32), prompt, np.zeros(0, np.int32)
        )
    ends = np.cumsum([len(ids) for ids, _ in sentences]).astype(np.int32)
    return TextTokens(
        np.concatenate([ids for ids, _ in sentences]),
        np.concatenate([spans for _, spans in sentences]),
        prompt,
        ends,
    )


# Long texts. A tokenizer takes about 100 bytes for each character while it works. So long texts are tokenized
# in parts, which have exactly the tokens of the whole. A part begins with a single space that is between two
# letters or digits. Most tokenizers find a word boundary there, and treat each word alone. `can_cut` checks
# the rules of a tokenizer: a rule that is not known to work word by word makes every text whole.

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
