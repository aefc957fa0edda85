"""The declarations of a model folder: files, pooling, prompts, lengths and digests.

`lookup.py` returns a ModelFolder for a name, and `sentence_layout.py` reads the files of
sentence-transformers. The three read only JSON; they import neither torch nor transformers.
"""

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypedDict

from lmkcli.catalog import MODELS, POOLERS, Config, ModelRow
from lmkcli.errors import DataError
from lmkcli.models.late import LateInteraction
from lmkcli.models.model_files import read_fields, read_json
from lmkcli.models.weight_files import digested_files
from lmkcli.system.input_files import check_finite, file_digest

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
TRANSFORMER = "transformer"  # the kind of all models that no other kind claims
# Read only without a tokenizer.json.
_SLOW_TOKENIZER_FILES = (
    *(
        "sentencepiece.model",
        "spm.model",
        "spm_char.model",
        "source.spm",
        "target.spm",
        "bpe.codes",
    ),
    *("bpe.model", "unigram.json", "dict.txt", "byte_maps.json", "emoji.json", "tekken.json"),
    *("tiktoken.model", "prophetnet.tokenizer", "entity_vocab.json", "vocab.bpe", "encoder.json"),
    *("word_shape.json", "word_pronunciation.json"),
)
NO_LIMIT = (1 << 31) - 1  # the limit of models without a table of positions
# Architectures in which the first position id follows the id of the padding.
_AFTER_PADDING = (
    *("roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "ibert", "xlm-roberta-xl"),
    *("xmod", "roberta-prelayernorm", "data2vec-text", "luke", "lilt", "markuplm"),
)
# Architectures that name their number of positions n_positions
_N_POSITIONS = ("gpt2", "gptj", "gpt_bigcode", "codegen", "ctrl", "openai-gpt")
# Facts about the usual architectures, so that errors appear before transformers is imported: encoders
# that always have a table of max_position_embeddings positions, and encoders and decoders with rotary
# positions only.
_WITH_TABLE = (
    *("bert", "distilbert", "electra", "albert"),
    *("roberta", "xlm-roberta", "camembert", "mpnet"),
)
_ROTARY_ENCODERS = ("modernbert", "eurobert", "nomic_bert")
_ROTARY_DECODERS = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text"),
    "modernbert-decoder",
)
# Modules of exported models that run lmk (sentence_modules.py)
PLACED, MARKED, RUN_BY_LMK = "PlacedTransformer", "MarkedPooling", "LmkEncoder"
# The module that is proposed for sentence-transformers (pull request 3642)
LANDMARKS = "LandmarkTransformer"
TABLE = "StaticEmbedding"  # the module of a table of embeddings
WORD_WEIGHTS = "WordWeights"  # the module with factors of the states of tokens, such as idf
TRAINED = "training.json"  # the last file that a training writes
# The first splitter of a tokenizer.json, alone or in a sequence, and those that drop white space
_SPLITTER = re.compile(
    r'"pre_tokenizer"\s*:\s*\{\s*(?:"type"\s*:\s*"Sequence"\s*,\s*"pretokenizers"\s*:\s*\[\s*\{\s*)?'
    r'"type"\s*:\s*"(\w+)"'
)
_AT_SPACE = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
HEADS = "heads"  # the folder of the prediction heads of pre-training
LATENT = "latent_attn_model"  # the folder of a learned token head, as LMK's training names it


class _StaticTable(TypedDict, total=False):
    path: str  # a JSON file with the weights of tokens


@dataclass(frozen=True)
class SentenceModule:
    """A module of sentence-transformers after pooling: its kind, and the folder of its weights."""

    kind: str
    folder: Path


@dataclass(frozen=True)
class ModelFolder:
    """The declarations of a folder. `pool` is empty if the folder declares no pooling (a plain folder)."""

    path: Path
    name: str
    revision: str = ""
    encoder: Path = Path()  # the folder of config.json and the weights
    other_tokenizer: Path | None = None  # the folder of the tokenizer, if it is another one
    pool: str = ""
    pool_package: str = ""  # the package of the pooler, if it is not part of lmk
    gran: str = ""  # declared by folders that lmk exported, if the pooler has chunks
    trained_poolers: tuple[str, ...] = ()  # in training, apart from `pool`
    include_prompt: bool = True
    append_eos: bool = False
    window: str = ""  # the declared windows of documents, such as "512" or "even:512", else empty
    landmark_token: int | None = None  # declared by folders with LandmarkTransformer
    max_length: int | None = None
    query_length: int | None = None  # None: the same as for documents
    lower_case: bool = False
    tokenizer_options: tuple[tuple[str, str | int | bool], ...] = ()  # for transformers
    table: bool = False  # whether the model is a table of embeddings, without special tokens
    strips: bool = False  # whether texts are stripped before tokenization
    query_prompt: str = ""
    doc_prompt: str = ""
    similarity: str = "cosine"
    normalize: bool = False
    dim: int = 0  # the leading dimensions that vectors keep; 0: all
    cross_encoder: bool = False  # declared by sentence-transformers; such a folder makes no vectors
    modules: tuple[SentenceModule, ...] = field(default=())
    word_weights: Path | None = None  # the folder of the weights of tokens (WordWeights)
    projections: tuple[
        SentenceModule, ...
    ] = ()  # Dense modules of a ColBERT folder; they act on states
    late: LateInteraction | None = None  # only for ColBERT folders
    static_queries: Path | None = None  # a folder with a table of the weights of query terms
    queries: "ModelFolder | None" = None  # the encoder of queries, if a Router gives them their own
    notes: tuple[str, ...] = ()  # about declarations that lmk does not use, for people

    def route(self, weights: str, tokenizer: str) -> "ModelFolder":
        """Return the encoder with these digests: that of queries, or by default that of documents."""
        asked = self.queries
        if asked and (asked.weights_digest, asked.tokenizer_digest) == (weights, tokenizer):
            return asked
        return self

    @property
    def poolers(self) -> frozenset[str]:
        """The declared pooler and those of the training; empty for a plain folder."""
        return frozenset(filter(None, (self.pool, *self.trained_poolers)))

    @property
    def latent(self) -> Path | None:
        """The folder of a latent attention that acts on states, if present."""
        folder = self.path / LATENT
        return folder if folder.is_dir() else None

    @property
    def tokenizer_path(self) -> Path:
        """The folder with the files of the tokenizer."""
        return self.other_tokenizer or self.encoder

    @property
    def config(self) -> Config:
        """The contents of config.json; a table of embeddings has none."""
        config = read_json(self.encoder / "config.json")
        return config or ({"model_type": "static-embedding"} if self.table else {})

    @property
    def kind(self) -> str:
        """The model kind that opens the folder: a name of catalog.MODELS."""
        return self.row.name

    @property
    def row(self) -> ModelRow:
        """The row of the model kind that opens the folder."""
        return row_of(self.config)

    @property
    def dimensions(self) -> int | None:
        """The number of dimensions of a vector; None if only the opened model can tell."""
        dense = [module for module in (*self.projections, *self.modules) if module.kind == "Dense"]
        if dense:
            return _count(read_json(dense[-1].folder / "config.json").get("out_features"))
        config = read_json(self.encoder / "config.json")
        usual = config.get("model_type") in (*_WITH_TABLE, *_ROTARY_ENCODERS, *_ROTARY_DECODERS)
        concatenated = "+" in self.pool  # several vectors
        known = usual and not concatenated and not config.get("auto_map")
        return _count(config.get("hidden_size")) if known else None

    @property
    def makes_vector(self) -> bool:
        """Whether the model pools by itself and returns one vector per input instead of states."""
        return self.row.makes_vector(self.config)

    @property
    def causal(self) -> bool:
        """Whether the architecture is a decoder: it has a causal head and no masked one."""
        kind = read_json(self.encoder / "config.json").get("model_type") or ""
        if kind in (*_WITH_TABLE, *_ROTARY_ENCODERS, *_ROTARY_DECODERS):
            return kind in _ROTARY_DECODERS
        from lmkcli.models.architectures import is_causal  # imports transformers

        return is_causal(kind)

    @property
    def keeps_space(self) -> bool:
        """Whether white space at the ends of a text is tokenized, as in sentence-transformers.

        False also for tokenizers that split texts at white space: they have no tokens for it.
        """
        own = self.strips or self.latent is not None or self.late is not None
        usual = self.kind == TRANSFORMER or self.table
        return usual and not own and not _splits_at_space(self.tokenizer_path)

    @property
    def positions(self) -> int | None:
        """The declared length of a plain folder."""
        return None if self.table else declared_length(self.encoder)

    @property
    def limit(self) -> int | None:
        """The longest input that the positions allow; None if only the opened model can tell."""
        config: dict[str, Any] = read_json(self.encoder / "config.json")
        kind = config.get("model_type")
        if config.get("auto_map"):
            return None
        if kind in (*_ROTARY_ENCODERS, *_ROTARY_DECODERS):
            return NO_LIMIT
        if kind not in _WITH_TABLE:
            return None
        if config.get("position_embedding_type") not in (None, "absolute"):
            return None
        return _positions(config)

    @property
    def pooler_weights(self) -> list[Path]:
        """The subfolders with weights of poolers, such as latent attention."""
        names = sorted({row.weights for row in POOLERS.values() if row.weights})
        return [self.path / name for name in names if (self.path / name).is_dir()]

    def check_unchanged(self) -> None:
        """Raise DataError if a file has changed since its digest was computed.

        After a model is opened, this shows that its weights are those of the digest. A file is read again
        only if its size or times have changed.
        """
        for name, compute in (
            ("weights_digest", self._weights_digest),
            ("tokenizer_digest", self._tokenizer_digest),
        ):
            known = vars(self).get(name)
            try:
                changed = known is not None and compute() != known
            except OSError:
                changed = True
            if changed:
                raise DataError(
                    f"another program changed {self.path} while lmk read it; run the same command again when "
                    "it has finished"
                )

    @cached_property
    def weights_digest(self) -> str:
        """The sha256 of the weights, the configuration and the modules, each with its file name."""
        return self._weights_digest()

    @cached_property
    def tokenizer_digest(self) -> str:
        """The sha256 of the tokenizer's files, and its options."""
        return self._tokenizer_digest()

    def _weights_digest(self) -> str:
        files = [*digested_files(self.encoder), *self.encoder.glob("config.json")]
        folders = [module.folder for module in (*self.modules, *self.projections)]
        others = filter(None, (self.static_queries, self.word_weights))
        for folder in [*folders, *self.pooler_weights, *others]:
            files += sorted(file for file in folder.iterdir() if file.is_file())
        if self.static_queries is not None:
            table = static_table(self.static_queries, self.path)
            if table is not None and table not in files:
                files.append(table)
        return _digest(files, self.path)

    def _tokenizer_digest(self) -> str:
        folder = self.tokenizer_path
        names: tuple[str, ...] = TOKENIZER_FILES
        if not (folder / "tokenizer.json").exists():
            # transformers also accepts names such as tokenizer.model.v3
            others = sorted(path.name for path in folder.glob("tokenizer.model.*"))
            names = (*names, *_SLOW_TOKENIZER_FILES, *others)
        files = [folder / name for name in names if (folder / name).exists()]
        options = "".join(f":{name}={value}" for name, value in self.tokenizer_options)
        return _digest(files, folder) + (":lower" if self.lower_case else "") + options


def static_table(folder: Path, root: Path) -> Path | None:
    """Return the JSON file with the weights of query terms that the configuration of a table names.

    It is next to the configuration, or at the top of the model folder `root`. Return None if the table has
    another format. DataError if the file is missing.
    """
    named = read_fields(folder / "config.json", _StaticTable).get("path", "")
    if not named.endswith(".json"):
        return None
    files = [each / Path(named).name for each in (folder, root)]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise DataError(
            f"{files[0]}, the table of query weights, is missing; download the model again"
        )
    return found


def no_language_head(folder: ModelFolder, reason: str) -> str:
    """Return the message for a model without a language head, for a pooling that needs it."""
    return (
        f"{folder.name} has no masked-language-model head ({reason}), which this pooling needs; give a model "
        "such as one trained as BertForMaskedLM"
    )


def _splits_at_space(folder: Path) -> bool:
    """Return whether the tokenizer of a folder splits texts at white space, and drops it."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return (folder / "vocab.txt").is_file()
    check_finite(file)
    # The vocabulary is large, and parsing it takes long. In it, quotes are escaped.
    splitter = _SPLITTER.search(file.read_text(encoding="utf-8", errors="replace"))
    return splitter is not None and splitter[1] in _AT_SPACE


def row_of(config: Config) -> ModelRow:
    """Return the row of the model kind that opens a model with this configuration."""
    found = (row for row in MODELS.values() if row.matches(config))
    return next(found, None) or MODELS[TRANSFORMER]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _digest(files: list[Path], root: Path) -> str:
    total = hashlib.sha256()
    for file in files:
        check_finite(file)
        facts = file.stat()
        state = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
        part = bytes.fromhex(_state_digest(file, state))
        total.update(file.relative_to(root).as_posix().encode() + b"\0" + part)
    return total.hexdigest()[:32]


@cache
def _state_digest(file: Path, state: tuple[int, int, int]) -> str:
    """Return the digest of a file. It is cached by the size and the times of change of the file.

    A plan of many steps needs the digest many times.
    """
    return file_digest(file)


def declared_length(encoder: Path) -> int | None:
    """Return the smaller of the lengths of the tokenizer and of the model; None if neither declares one."""
    tokenizer = read_json(encoder / "tokenizer_config.json").get("model_max_length")
    model = _positions(read_json(encoder / "config.json"))
    lengths = [int(n) for n in (tokenizer, model) if n and 0 < n < 1_000_000_000]
    return min(lengths, default=None)


def _positions(config: dict[str, Any]) -> int | None:
    """Return the declared positions of a configuration, without positions that no input uses."""
    declared: int | None = config.get("max_position_embeddings")
    if config.get("model_type") in _N_POSITIONS:
        declared = config.get("n_positions") or declared
    if declared and config.get("model_type") in _AFTER_PADDING:
        padding = config.get("pad_token_id")
        return declared - (1 if padding is None else int(padding)) - 1
    return declared
