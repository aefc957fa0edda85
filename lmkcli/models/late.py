"""What a late-interaction (ColBERT) folder declares: prefix tokens, skip list, lengths, expansion.

Two layouts are read: PyLate's, which keeps everything in config_sentence_transformers.json, and that
of sentence-transformers' multi-vector encoders, whose prefixes are ordinary prompts and whose skip
list is a module's.
"""

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lmkcli.errors import DataError
from lmkcli.models.files import loading

MASK = "MultiVectorMask"  # the module that keeps the skip list
_MARKERS = ("query_prefix", "document_prefix", "do_query_expansion", "skiplist_words")
_QUERY_LENGTH, _DOC_LENGTH = 32, 180  # PyLate's defaults
Settings = dict[str, Any]


@dataclass(frozen=True)
class Late:
    """Prefix tokens follow CLS; documents drop the vectors of `skip`; lengths count all positions.

    With an `expansion_id` queries are filled up to `query_length` with it, and the filling is scored;
    it is attended to only where `attend_expansion` says so.
    """

    query_prefix_id: int | None = None
    doc_prefix_id: int | None = None
    skip: tuple[int, ...] = ()
    query_length: int | None = None
    doc_length: int | None = None
    expansion_id: int | None = None
    attend_expansion: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's folder and its tokenizer_config.json; ids come from its tokenizer.json."""

    folder: Path
    settings: Settings

    def ids(self, tokens: list[str]) -> list[int | None]:
        """The id of each token, None for what is no token; DataError without a tokenizer.json."""
        file = self.folder / "tokenizer.json"
        if not file.is_file():
            raise DataError(f"{file} is missing; the tokens of a ColBERT model are looked up there")
        with loading(str(file)):
            fast = Tokenizer.from_file(str(file))
        return [fast.token_to_id(token) for token in tokens]

    def id_of(self, token: str) -> int:
        """The id of one token; DataError when it is none."""
        token_id = self.ids([token])[0]
        if token_id is None:
            raise DataError(
                f"{self.folder}/tokenizer.json has no token '{token}', which the model declares; "
                "download the model again"
            )
        return token_id

    def filler(self) -> int:
        """The token that queries are filled up with: MASK, or EOS where there is none."""
        for name in ("mask_token", "eos_token"):
            token = self.settings.get(name)
            if token:
                return self.id_of(token["content"] if isinstance(token, dict) else token)
        raise DataError(
            f"{self.folder}/tokenizer_config.json names neither a mask_token nor an eos_token to "
            "expand queries with; add one"
        )


def is_late(config: Settings, kinds: list[str]) -> bool:
    """Whether a folder is a ColBERT: by its config_sentence_transformers.json and its modules."""
    return _is_pylate(config) or MASK in kinds


def _is_pylate(config: Settings) -> bool:
    return config.get("model_type") == "ColBERT" or any(key in config for key in _MARKERS)


def read_late(config: Settings, lengths: Settings, mask: Settings, words: Vocabulary) -> Late:
    """From the settings of the model, of its transformer and of its mask module (PyLate has none)."""
    if _is_pylate(config):
        return _pylate(config, words)
    return _multi_vector(lengths, mask, words)


def _pylate(config: Settings, words: Vocabulary) -> Late:
    query, doc = config.get("query_prefix", "[Q] "), config.get("document_prefix", "[D] ")
    skipped = config.get("skiplist_words")
    expands = config.get("do_query_expansion") is not False
    return Late(
        words.id_of(query) if query else None,
        words.id_of(doc) if doc else None,
        _skip(list(string.punctuation) if skipped is None else skipped, words),
        config.get("query_length") or _QUERY_LENGTH,
        config.get("document_length") or _DOC_LENGTH,
        words.filler() if expands else None,
        bool(config.get("attend_to_expansion_tokens")),
    )


def _multi_vector(lengths: Settings, mask: Settings, words: Vocabulary) -> Late:
    if mask.get("keep_only_token_ids") or mask.get("skiplist_tasks", ["document"]) != ["document"]:
        raise DataError(
            f"{words.folder}: its {MASK} drops more than the skip list of documents, which lmk does "
            "not do; choose another model"
        )
    skip, query, doc = (
        _skip(mask.get("skiplist_words") or [], words),
        lengths.get("query_length"),
        lengths.get("document_length"),
    )
    expansion = lengths.get("query_expansion")
    if not expansion:
        return Late(None, None, skip, query, doc)
    if expansion.get("strategy") != "fixed":
        raise DataError(
            f"{words.folder}: queries are expanded by the strategy '{expansion.get('strategy')}'; "
            "lmk expands to a fixed length; choose another model"
        )
    filler = words.id_of(expansion["token"]) if expansion.get("token") else words.filler()
    length = expansion.get("length") or _QUERY_LENGTH
    return Late(None, None, skip, length, doc, filler, bool(expansion.get("attend")))


def _skip(tokens: list[str], words: Vocabulary) -> tuple[int, ...]:
    """The ids of those that are one token; the others never occur as such."""
    return tuple(sorted(token_id for token_id in words.ids(tokens) if token_id is not None))
