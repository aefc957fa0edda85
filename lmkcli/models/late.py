"""The declarations of a late-interaction (ColBERT) folder: prefix tokens, skip list, lengths, query
expansion.

Two layouts are read. PyLate writes everything into config_sentence_transformers.json. The multi-vector
encoders of sentence-transformers have ordinary prompts as prefixes, and a module for the skip list.
"""

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lmkcli.errors import DataError
from lmkcli.models.model_files import loading

MASK = "MultiVectorMask"  # the module with the skip list
_PYLATE_KEYS = ("query_prefix", "document_prefix", "do_query_expansion", "skiplist_words")
_QUERY_LENGTH, _DOC_LENGTH = 32, 180  # PyLate's defaults
Settings = dict[str, Any]


@dataclass(frozen=True)
class LateInteraction:
    """The declarations of a ColBERT folder. Lengths count all positions.

    Prefix tokens follow CLS. Documents drop the vectors of the tokens in `skip`. With an `expansion_id`,
    queries are filled up to `query_length` with this token, and its states are scored too. The other
    tokens attend to it only with `attend_expansion`.
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
    """The tokens of a folder's tokenizer.json; `settings` is its tokenizer_config.json."""

    folder: Path
    settings: Settings

    def ids(self, tokens: list[str]) -> list[int | None]:
        """Return the id of each token, None for unknown ones. DataError without a tokenizer.json."""
        file = self.folder / "tokenizer.json"
        if not file.is_file():
            raise DataError(f"{file} is missing; a ColBERT model needs it for its special tokens")
        with loading(str(file)):
            fast = Tokenizer.from_file(str(file))
        return [fast.token_to_id(token) for token in tokens]

    def id_of(self, token: str) -> int:
        """Return the id of one token. DataError if it is unknown."""
        token_id = self.ids([token])[0]
        if token_id is None:
            raise DataError(
                f"{self.folder}/tokenizer.json has no token '{token}', which the model declares; "
                "download the model again"
            )
        return token_id

    def expansion_token(self) -> int:
        """Return the token that expands queries: MASK, or EOS if the tokenizer has no MASK."""
        for name in ("mask_token", "eos_token"):
            token = self.settings.get(name)
            if token:
                return self.id_of(token["content"] if isinstance(token, dict) else token)
        raise DataError(
            f"{self.folder}/tokenizer_config.json names neither a mask_token nor an eos_token to "
            "expand queries with; add one"
        )


def is_late(config: Settings, kinds: list[str]) -> bool:
    """Return whether a folder is a ColBERT.

    `config` is its config_sentence_transformers.json, `kinds` are the kinds of its modules.
    """
    return _is_pylate(config) or MASK in kinds


def _is_pylate(config: Settings) -> bool:
    return config.get("model_type") == "ColBERT" or any(key in config for key in _PYLATE_KEYS)


def read_late(
    config: Settings, lengths: Settings, mask: Settings, vocabulary: Vocabulary
) -> LateInteraction:
    """Read the settings of the model, of its transformer, and of its mask module (PyLate has none)."""
    if _is_pylate(config):
        return _pylate(config, vocabulary)
    return _multi_vector(lengths, mask, vocabulary)


def _pylate(config: Settings, vocabulary: Vocabulary) -> LateInteraction:
    query, doc = config.get("query_prefix", "[Q] "), config.get("document_prefix", "[D] ")
    skipped = config.get("skiplist_words")
    expands = config.get("do_query_expansion") is not False
    return LateInteraction(
        vocabulary.id_of(query) if query else None,
        vocabulary.id_of(doc) if doc else None,
        _skip(list(string.punctuation) if skipped is None else skipped, vocabulary),
        config.get("query_length") or _QUERY_LENGTH,
        config.get("document_length") or _DOC_LENGTH,
        vocabulary.expansion_token() if expands else None,
        bool(config.get("attend_to_expansion_tokens")),
    )


def _multi_vector(lengths: Settings, mask: Settings, vocabulary: Vocabulary) -> LateInteraction:
    if mask.get("keep_only_token_ids") or mask.get("skiplist_tasks", ["document"]) != ["document"]:
        raise DataError(
            f"{vocabulary.folder}: its {MASK} drops more than the skip list of documents, and lmk does "
            "not support this; choose another model"
        )
    skip = _skip(mask.get("skiplist_words") or [], vocabulary)
    query, doc = lengths.get("query_length"), lengths.get("document_length")
    expansion = lengths.get("query_expansion")
    if not expansion:
        return LateInteraction(None, None, skip, query, doc)
    if expansion.get("strategy") != "fixed":
        raise DataError(
            f"{vocabulary.folder}: queries are expanded by the strategy '{expansion.get('strategy')}'; "
            "lmk expands to a fixed length; choose another model"
        )
    token = expansion.get("token")
    token_id = vocabulary.id_of(token) if token else vocabulary.expansion_token()
    length = expansion.get("length") or _QUERY_LENGTH
    return LateInteraction(None, None, skip, length, doc, token_id, bool(expansion.get("attend")))


def _skip(tokens: list[str], vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the ids of the words that are one token. Longer words never occur as one token."""
    return tuple(sorted(token_id for token_id in vocabulary.ids(tokens) if token_id is not None))
