"""Tokenizer: text to content tokens, without special tokens, and which special tokens go around it."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmkcli import catalog
from lmkcli.data.collection import CHUNK
from lmkcli.errors import DataError, UsageError
from lmkcli.models.files import loading
from lmkcli.models.folder import ModelFolder
from lmkcli.pooling.placement import Ints, SpecialTokens
from lmkcli.recipe import EncoderConfig
from lmkcli.text.sentences import sentence_spans

_SPACES = re.compile("  +")
_MADE_UP = 2  # ordinary tokens of the tokenizers that transformers makes up where files are missing


class Tokenized(NamedTuple):
    """One text: content ids, their character spans [n, 2] in the text, and the prompt's ids.

    `ends` are the exclusive token ends of the splitter's pieces; None without a splitter. Separators
    of given chunks are not among the ids: what stands between chunks is the placement's.
    """

    ids: Ints
    spans: NDArray[np.int32]
    prompt: Ints
    ends: Ints | None

    def first(self, tokens: int) -> "Tokenized":
        """The text without what comes after so many of its tokens."""
        if self.ends is None:
            return self._replace(ids=self.ids[:tokens], spans=self.spans[:tokens])
        ends = np.unique(np.minimum(self.ends, tokens))
        return Tokenized(self.ids[:tokens], self.spans[:tokens], self.prompt, ends)


@dataclass(frozen=True)
class Tokenizer:
    """A fast tokenizer with a prompt and a splitter: the three that decide token ids."""

    fast: Any
    special: SpecialTokens
    prompt: str = ""
    splitter: str = ""

    def __call__(self, texts: list[str]) -> list[Tokenized]:
        """Content tokens of many texts at once (in parallel, without holding the interpreter).

        Texts are stripped, as the official evaluation does; spans count in the text as given.
        """
        texts = [_valid(text) for text in texts]
        if self.splitter == "given":
            return self._given(texts)
        texts = [text.replace(CHUNK, " ") for text in texts]  # some normalizers would delete it
        if self.splitter:
            return self._split(texts)
        encoded = self._encode([self.prompt + text.strip() for text in texts])
        leads = [len(text) - len(text.lstrip()) for text in texts]
        return [
            _one(item, len(self.prompt), lead) for item, lead in zip(encoded, leads, strict=True)
        ]

    def contexts(self, texts: list[str]) -> list[Ints]:
        """The ids of texts that each stand before a chunk, with a line break after; none of an empty one.

        They are the content of `prompt + text + line break`, whatever follows.
        """
        plain = [_plain(text) for text in texts]
        bodies = [f"{text}\n" for text in plain if text]
        if self.splitter == "sentence":  # which tokenizes the prompt alone
            encoded = iter(np.array(item.ids, np.int32) for item in self._encode(bodies))
        else:
            whole = self._encode([self.prompt + body for body in bodies])
            encoded = iter(_one(item, len(self.prompt), 0).ids for item in whole)
        return [next(encoded) if text else np.zeros(0, np.int32) for text in plain]

    def tokens(self, ids: Ints) -> list[str]:
        """The vocabulary entries, for showing."""
        return [self.fast.id_to_token(int(i)) or f"<{i}>" for i in ids]

    def text(self, ids: Ints) -> str:
        """The words of some ids, special tokens included, for showing."""
        words: str = self.fast.decode(ids.tolist(), skip_special_tokens=False)
        return words

    def _encode(self, texts: list[str]) -> list[Any]:
        return list(self.fast.encode_batch(texts, add_special_tokens=False))

    def _split(self, texts: list[str]) -> list[Tokenized]:
        """Sentences (and the prompt) are each tokenized alone (arXiv 2601.21525 §4)."""
        spans = [_sentences(text) for text in texts]
        pieces = [text[a:b] for text, bounds in zip(texts, spans, strict=True) for a, b in bounds]
        encoded = iter(self._encode([_SPACES.sub(" ", piece) for piece in pieces]))
        prompt = np.array(self._encode([self.prompt.rstrip()])[0].ids, np.int32)
        return [
            _join([_piece(next(encoded), text[a:b], a) for a, b in bounds], prompt)
            for text, bounds in zip(texts, spans, strict=True)
        ]

    def _given(self, texts: list[str]) -> list[Tokenized]:
        """Given chunks, tokenized together with the separator between them (arXiv 2505.24782 §4.1)."""
        separator = self.fast.id_to_token(self.special.separator)
        joined = [text.replace(CHUNK, separator) for text in texts]
        encoded = self._encode([self.prompt + text for text in joined])
        tokenized = [_one(item, len(self.prompt), 0) for item in encoded]
        return [
            _parted(tokens, text, separator, int(self.special.separator or 0))
            for tokens, text in zip(tokenized, texts, strict=True)
        ]


def _parted(tokens: Tokenized, text: str, separator: str, number: int) -> Tokenized:
    """The tokens of a joined text without its separators, spans counted in the text as given."""
    breaks = np.array([i for i, character in enumerate(text) if character == CHUNK], np.int64)
    longer = len(separator) - len(CHUNK)
    places = breaks + longer * np.arange(len(breaks))  # where separators stand in the joined text
    spans = tokens.spans.astype(np.int64)
    nearest = np.searchsorted(places, spans[:, 0])
    hit = np.append(places, -1)[nearest]
    between = (tokens.ids == number) & (spans[:, 0] <= hit) & (hit < spans[:, 1])
    if between.sum() != len(breaks):
        raise DataError(
            f"the tokenizer did not keep the separator {separator!r} between given chunks; "
            "use --gran with a number of tokens"
        )
    chunk = np.cumsum(between)[~between]
    back = (spans[~between] - longer * chunk[:, None]).astype(np.int32)
    ends = np.append(np.flatnonzero(between) - np.arange(len(breaks)), len(chunk))
    return Tokenized(tokens.ids[~between], back, tokens.prompt, ends.astype(np.int32))


def _valid(text: str) -> str:
    """Lone surrogates (from broken json escapes) become '?', one for one, so that offsets hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _plain(context: str) -> str:
    return _valid(context).replace(CHUNK, " ").strip()


def _one(item: Any, prompt: int, lead: int) -> Tokenized:
    """Tokens that end inside the prompt are the prompt's; one that straddles is content."""
    ids = np.array(item.ids, dtype=np.int32)
    spans = np.array(item.offsets, dtype=np.int32).reshape(-1, 2) - prompt
    head = int(np.argmax(spans[:, 1] > 0)) if prompt and len(spans) and spans[-1, 1] > 0 else 0
    if prompt and len(spans) and spans[-1, 1] <= 0:
        head = len(ids)  # an empty text: all tokens are the prompt's
    return Tokenized(ids[head:], np.maximum(spans[head:], 0) + lead, ids[:head], None)


def _sentences(text: str) -> list[tuple[int, int]]:
    """Sentence spans; the whole text where splitting lost over a tenth of it (official rule)."""
    spans = sentence_spans(text)
    kept = sum(len(_SPACES.sub(" ", text[a:b])) for a, b in spans)
    body = text.strip()
    if body and kept < 0.9 * len(body):
        lead = len(text) - len(text.lstrip())
        return [(lead, lead + len(body))]
    return spans


def _piece(item: Any, piece: str, start: int) -> tuple[Ints, NDArray[np.int32]]:
    """Ids of one sentence, and spans in the text although runs of spaces were collapsed."""
    spans = np.array(item.offsets, dtype=np.int32).reshape(-1, 2)
    if "  " in piece:
        spaces = np.array([character == " " for character in piece])
        kept = np.flatnonzero(~(spaces & np.concatenate([[False], spaces[:-1]])))
        spans = np.concatenate([kept, [len(piece)]])[spans].astype(np.int32)
    return np.array(item.ids, dtype=np.int32), spans + start


def _join(pieces: list[tuple[Ints, NDArray[np.int32]]], prompt: Ints) -> Tokenized:
    pieces = [piece for piece in pieces if len(piece[0])]
    if not pieces:
        return Tokenized(
            np.zeros(0, np.int32), np.zeros((0, 2), np.int32), prompt, np.zeros(0, np.int32)
        )
    ends = np.cumsum([len(ids) for ids, _ in pieces]).astype(np.int32)
    return Tokenized(
        np.concatenate([ids for ids, _ in pieces]),
        np.concatenate([spans for _, spans in pieces]),
        prompt,
        ends,
    )


def open_tokenizer(folder: ModelFolder, side: EncoderConfig) -> Tokenizer:
    """The tokenizer of one side, with its prompt and splitter; DataError without a fast one."""
    with loading(f"the tokenizer of {folder.name}"):
        loaded = _opened(folder, side.trust_remote_code)
    if not loaded.is_fast:
        raise DataError(
            f"{folder.name} has only a slow tokenizer without offsets; save it with a tokenizer.json"
        )
    if len(loaded) - len(set(loaded.all_special_ids)) <= _MADE_UP:
        raise DataError(
            f"the tokenizer of {folder.name} has no vocabulary: its files (tokenizer.json, vocab.txt …) "
            f"are missing from {folder.encoder}"
        )
    fast = loaded.backend_tokenizer
    fast.no_truncation()
    fast.no_padding()
    if folder.lower_case:
        parts = [normalizers.Lowercase(), *([fast.normalizer] if fast.normalizer else [])]
        fast.normalizer = normalizers.Sequence(parts)
    special = special_tokens_of(loaded, side)._replace(cuts_suffix=folder.cuts_suffix)
    if side.splitter == "given" and special.separator is None:
        raise UsageError(
            f"--gran given needs a tokenizer with a SEP or PAD token, and {folder.name} has neither"
        )
    return Tokenizer(fast, special, side.prompt, side.splitter)


def _opened(folder: ModelFolder, trust: bool) -> Any:
    """TITE's tokenizer claims to be BERT's and is not: its file, without special tokens, is read instead."""
    whole = folder.kind == "tite" and (folder.encoder / "tokenizer.json").is_file()
    opener = PreTrainedTokenizerFast if whole else AutoTokenizer
    if (
        folder.kind != "transformer"
    ):  # transformers asks for the configuration of this architecture too
        catalog.load(catalog.MODELS, folder.kind, "model kind")
    return opener.from_pretrained(str(folder.encoder), trust_remote_code=trust)


def special_tokens_of(loaded: Any, side: EncoderConfig) -> SpecialTokens:
    """What the tokenizer's own template puts around content, found by encoding a word."""
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
    if side.prefix_token is not None:
        prefix = (*prefix[:1], side.prefix_token, *prefix[1:])
    return SpecialTokens(prefix, suffix, cls, landmark, separator, mask=loaded.mask_token_id)
