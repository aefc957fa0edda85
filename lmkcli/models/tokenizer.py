"""Tokenizer: text to content tokens without special tokens, and the special tokens around them."""

import json
import re
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmkcli import catalog
from lmkcli.data.collection import CHUNK_BREAK
from lmkcli.errors import DataError, UsageError
from lmkcli.models.consent import opening
from lmkcli.models.files import loading, read_json
from lmkcli.models.folder import NO_LIMIT, TRANSFORMER, ModelFolder
from lmkcli.pooling.table import SpecialTokens
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.values import FULL
from lmkcli.store.ragged import ranges
from lmkcli.store.token_blocks import IDS, PROMPT, SPANS, Ints, TextTokens, TokenBlock
from lmkcli.text.sentences import sentence_spans

_SPACES = re.compile("  +")
# Ordinary tokens of the tokenizers that transformers invents if files are missing.
_EMPTY_VOCABULARY = 2
_LONGER = 64  # how many times longer a normalizer may make a text


@dataclass(frozen=True)
class Tokenizer:
    """A fast tokenizer with a prompt and a splitter; together they determine the token ids.

    spans: whether the spans of tokens are needed. Without them, tokenizing takes two thirds of the time. A
    prompt and a splitter find their tokens by spans, and always compute them.
    keep_space: whether white space at the ends of a text is tokenized too, as in sentence-transformers.
    """

    fast: Any
    special: SpecialTokens
    prompt: str = ""
    splitter: str = ""
    spans: bool = True
    keep_space: bool = False

    def __call__(self, texts: list[str]) -> TokenBlock:
        """Return the content tokens of many texts, tokenized in parallel outside Python's global lock.

        Unless `keep_space`, texts are stripped, as in the official evaluation of landmark pooling. Spans
        count in the text as given. Without `spans`, the block may contain none.
        """
        texts = [_valid(text) for text in texts]
        if self.splitter == "given":
            return TokenBlock.of(self._given(texts))
        # some normalizers would delete the character and join two words
        texts = [text.replace(CHUNK_BREAK, " ") for text in texts]
        if self.splitter:
            return TokenBlock.of(self._sentences(texts))
        bodies = texts if self.keep_space else [text.strip() for text in texts]
        if not self.spans and not self.prompt:
            return _block_of_ids(self._encode(bodies, fast=True))
        encoded = self._encode([self.prompt + body for body in bodies])
        leads = [0 if self.keep_space else len(text) - len(text.lstrip()) for text in texts]
        return _without_prompts(encoded, len(self.prompt), leads)

    def contexts(self, texts: list[str]) -> list[Ints]:
        """Return the ids of texts that precede chunks, each with a line break after it.

        They are the content tokens of `prompt + text + line break`. An empty text has no ids.
        """
        plain = [_valid(text).replace(CHUNK_BREAK, " ").strip() for text in texts]
        bodies = [f"{text}\n" for text in plain if text]
        if self.splitter == "sentence":  # tokenizes the prompt separately
            encoded = iter(np.array(item.ids, np.int32) for item in self._encode(bodies))
        else:
            items = self._encode([self.prompt + body for body in bodies])
            block = _without_prompts(items, len(self.prompt), [0] * len(items))
            encoded = iter(tokens.ids for tokens in block)
        return [next(encoded) if text else np.zeros(0, np.int32) for text in plain]

    def tokens(self, ids: Ints) -> list[str]:
        """Return the vocabulary entries of some ids, for display."""
        return [self.fast.id_to_token(int(i)) or f"<{i}>" for i in ids]

    def text(self, ids: Ints) -> str:
        """Return the text of some ids, special tokens included, for display."""
        text: str = self.fast.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def _encode(self, texts: list[str], fast: bool = False) -> list[Any]:
        """Encode texts; if `fast`, without spans."""
        encode = self.fast.encode_batch_fast if fast else self.fast.encode_batch
        with loading("a text", "cannot be tokenized with the tokenizer of this model"):
            return list(encode(texts, add_special_tokens=False))

    def _sentences(self, texts: list[str]) -> list[TextTokens]:
        """Tokenize each sentence separately, and the prompt too (arXiv 2601.21525 §4)."""
        spans = [_sentence_spans(text) for text in texts]
        pieces = [text[a:b] for text, bounds in zip(texts, spans, strict=True) for a, b in bounds]
        encoded = iter(self._encode([_SPACES.sub(" ", piece) for piece in pieces]))
        prompt = np.array(self._encode([self.prompt.rstrip()])[0].ids, np.int32)
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


def _valid(text: str) -> str:
    """Replace each lone surrogate (from broken JSON escapes) by one '?', so offsets stay valid."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _block_of_ids(items: list[Any]) -> TokenBlock:
    """Return the ids of encoded texts without a prompt, and no spans."""
    starts = np.zeros((len(items) + 1, 4), np.int64)
    starts[1:, IDS] = np.cumsum([len(item) for item in items])
    # chain and fromiter make no array for each text
    every = chain.from_iterable(item.ids for item in items)
    with loading("a text", "cannot be tokenized: the tokenizer has impossible token ids"):
        ids = np.fromiter(every, np.int32, int(starts[-1, IDS]))
    return TokenBlock(ids, np.zeros((0, 2), np.int32), None, starts)


def _without_prompts(items: list[Any], prompt: int, leads: list[int]) -> TokenBlock:
    """Separate prompt and content of encoded texts.

    `prompt` is the length of the prompt in characters, `leads` the number of characters stripped from the
    start of each text. Tokens that end inside the prompt belong to it; a token that ends after it is
    content. If no token ends after it, the text is empty and all tokens belong to the prompt.
    """
    block = _block_of_ids(items)
    ids, starts = block.ids, block.starts
    stops, counts = starts[1:, IDS], np.diff(starts[:, IDS])
    pairs = chain.from_iterable(item.offsets for item in items)
    spans = np.fromiter(chain.from_iterable(pairs), np.int32, 2 * len(ids)).reshape(-1, 2)
    firsts = stops - counts
    if prompt:
        spans -= prompt
        after = np.append(np.flatnonzero(spans[:, 1] > 0), len(ids))
        first_after = np.minimum(after[np.searchsorted(after, firsts)], stops)
        last_after = np.append(spans[:, 1] > 0, False)[np.maximum(stops - 1, 0)]
        heads = np.where(counts == 0, 0, np.where(last_after, first_after - firsts, counts))
        starts[:-1, PROMPT] = heads
        spans = np.maximum(spans[ranges(firsts + heads, counts - heads)], 0)
        counts = counts - heads
    starts[1:, SPANS] = np.cumsum(counts)
    if any(leads):
        spans += np.repeat(np.array(leads, np.int32), counts)[:, None]
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


def _sentence(item: Any, sentence: str, start: int) -> tuple[Ints, NDArray[np.int32]]:
    """Return the ids of one sentence, and their spans in the text.

    Runs of spaces were reduced to one space before tokenization; spans count all spaces again.
    """
    spans = np.array(item.offsets, dtype=np.int32).reshape(-1, 2)
    if "  " in sentence:
        spaces = np.array([character == " " for character in sentence])
        kept = np.flatnonzero(~(spaces & np.concatenate([[False], spaces[:-1]])))
        spans = np.concatenate([kept, [len(sentence)]])[spans].astype(np.int32)
    return np.array(item.ids, dtype=np.int32), spans + start


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


def open_tokenizer(folder: ModelFolder, side: EncoderConfig) -> Tokenizer:
    """Open the tokenizer of one side, with its prompt and splitter. DataError without a fast tokenizer."""
    with opening(folder.encoder, f"the tokenizer of {folder.name}", side.trust_remote_code):
        own_file = folder.row.own_tokenizer and (folder.encoder / "tokenizer.json").is_file()
        opener: Any = PreTrainedTokenizerFast if own_file else AutoTokenizer
        if folder.kind != TRANSFORMER:  # AutoTokenizer looks up the configuration class too
            catalog.MODELS.load(folder.kind)
        loaded = opener.from_pretrained(
            str(folder.encoder),
            trust_remote_code=side.trust_remote_code,
            **dict(folder.tokenizer_options),
        )
        if not loaded.is_fast:
            raise DataError(
                f"{folder.name} has only a slow tokenizer without offsets; save it with a tokenizer.json"
            )
        if len(loaded) - len(set(loaded.all_special_ids)) <= _EMPTY_VOCABULARY:
            raise DataError(
                f"the tokenizer of {folder.name} has no vocabulary: its files (tokenizer.json, vocab.txt …) "
                f"are missing from {folder.encoder}"
            )
        fast = loaded.backend_tokenizer
        _check_ids(folder, fast)
        _check_normalizer(folder, fast)
        fast.no_truncation()
        fast.no_padding()
        _check_file(folder, type(loaded).__name__, fast)
        if folder.lower_case:
            parts = [normalizers.Lowercase(), *([fast.normalizer] if fast.normalizer else [])]
            fast.normalizer = normalizers.Sequence(parts)
        _check_types(folder, loaded)
        special = special_tokens_of(loaded, side)._replace(cuts_suffix=folder.row.cuts_suffix)
        if folder.table:  # without special tokens; the row after the last token is zero
            special = SpecialTokens(landmark=fast.get_vocab_size())
    if side.splitter == "given" and special.separator is None:
        raise UsageError(
            f"--gran given needs a tokenizer with a SEP or PAD token, and {folder.name} has neither"
        )
    return Tokenizer(fast, special, side.prompt, side.splitter, keep_space=side.keep_space)


# Texts on which two tokenizers of one vocabulary usually differ if their rules differ
_PROBES = (
    "The Landmark-pooling of naïve cafés, 1,234 words (e.g. don't, won't) costs $5.60!",
    "  two  spaces\tand\na line_break under_scored CamelCase UPPER lower",
    "Größe Straße ÉTÉ Ελληνικά Москва Турция ﬁne ½ Ⅳ",
    "東京は日本の首都です。 你好世界 안녕하세요 สวัสดี שלום مرحبا",
)


def _check_file(folder: ModelFolder, name: str, fast: Any) -> None:
    """Raise DataError if tokenizer.json splits texts in another way than the class that the folder names.

    Some classes of transformers set a normalizer and a splitter of their own. Which of the two the model was
    trained with is unknown.
    """
    file = folder.encoder / "tokenizer.json"
    if not file.is_file() or folder.kind != TRANSFORMER:
        return
    if "auto_map" in read_json(folder.encoder / "tokenizer_config.json"):
        return  # the folder's own code decides
    own = RustTokenizer.from_file(str(file))
    own.no_truncation()
    own.no_padding()
    for probe in _PROBES:
        if own.encode(probe, add_special_tokens=False).ids != (
            fast.encode(probe, add_special_tokens=False).ids
        ):
            raise DataError(
                f"{file} and the class {name}, which transformers uses for this folder, split texts "
                'differently: write "tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json '
                "to use tokenizer.json, or remove tokenizer.json to use the class"
            )


def _check_types(folder: ModelFolder, loaded: Any) -> None:
    """Raise DataError for a tokenizer that numbers the segments of one text: lmk gives a model no types."""
    types = loaded("a").get("token_type_ids") or ()
    if any(types):
        raise DataError(
            f"the tokenizer of {folder.name} gives a text the segment numbers {sorted(set(types))}, and lmk "
            "gives a model none; give another model"
        )


def _check_ids(folder: ModelFolder, fast: Any) -> None:
    """Raise DataError for tokens whose ids no model has: ids are stored in 31 bits."""
    added = fast.get_added_tokens_decoder()
    around = fast.encode("a", add_special_tokens=True).ids
    if max([*added, *around], default=0) > NO_LIMIT:
        raise DataError(
            f"the tokenizer of {folder.name} has the token id {max([*added, *around])}; "
            "download the model again"
        )


def _check_normalizer(folder: ModelFolder, fast: Any) -> None:
    """Raise DataError for a normalizer that makes texts many times longer."""
    if fast.normalizer is None:
        return
    longer = 1
    waiting = [json.loads(fast.normalizer.__getstate__())]
    while waiting:
        part = waiting.pop()
        waiting += part.get("normalizers", [])
        if part.get("type") == "Replace":
            longer *= max(1, len(part.get("content", "")))
        if longer > _LONGER or len(part.get("prepend", "")) > _LONGER:
            raise DataError(
                f"the tokenizer of {folder.name} replaces characters by texts that are more than {_LONGER} "
                "times longer; download the model again"
            )


def special_tokens_of(loaded: Any, side: EncoderConfig) -> SpecialTokens:
    """Return the special tokens around content, by encoding one word with the tokenizer's own template."""
    bare = loaded.backend_tokenizer.encode("a", add_special_tokens=False).ids
    full = loaded.backend_tokenizer.encode("a", add_special_tokens=True).ids
    at = next((i for i in range(len(full) - len(bare) + 1) if full[i : i + len(bare)] == bare), 0)
    prefix, suffix = tuple(full[:at]), tuple(full[at + len(bare) :])
    eos = loaded.eos_token_id
    if side.append_eos and eos is not None and eos not in suffix:
        suffix = (*suffix, eos)
    cls = loaded.cls_token_id if loaded.cls_token_id is not None else loaded.bos_token_id
    landmark = loaded.sep_token_id if loaded.sep_token_id is not None else eos
    separator = loaded.sep_token_id if loaded.sep_token_id is not None else loaded.pad_token_id
    if side.landmark_token is not None:  # LandmarkTransformer does not use the template
        landmark = side.landmark_token
        prefix = () if cls is None else (cls,)
        if loaded.backend_tokenizer.id_to_token(landmark) is None:
            raise DataError(
                f"the folder declares the landmark token {landmark}, which its tokenizer does not have; "
                "correct lmk_token_id in its sentence_bert_config.json"
            )
    if side.prefix_token is not None:
        prefix = (*prefix[:1], side.prefix_token, *prefix[1:])
    # the tokens of chunks have places, so that a text in chunks is always read from its start
    cuts_start = loaded.truncation_side == "left" and side.unit == "doc" and side.window == FULL
    return SpecialTokens(
        prefix, suffix, cls, landmark, separator, mask=loaded.mask_token_id, cuts_start=cuts_start
    )
