"""What a model folder says: where its files are, how it pools, its prompts, its length, its digests.

finding.py makes one of a name, and sentence_layout.py of the files of sentence-transformers. Nothing is
loaded in the three but JSON, and no heavy library imported.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from lmkcli.models.files import read_json
from lmkcli.models.late import Late
from lmkcli.reading import check_finite, file_digest

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
NO_LIMIT = (1 << 31) - 1  # positions of a model without a table of them
# Model kinds beside 'transformer', by the model_type of a config.json.
_KINDS = {"tite": "tite", "m2-bert": "m2bert", "m2_bert": "m2bert", "m2bert": "m2bert"}
# Architectures whose position ids begin after that of the padding.
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
# What the usual architectures are, for a mistake to be answered before transformers is imported: encoders
# that have a table of max_position_embeddings positions whatever else is configured, and encoders and
# decoders that have rotary positions alone.
_WITH_TABLE = (
    *("bert", "distilbert", "electra", "albert"),
    *("roberta", "xlm-roberta", "camembert", "mpnet"),
)
_ROTARY_ENCODERS = ("modernbert", "eurobert", "nomic_bert")
_ROTARY_DECODERS = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text"),
    "modernbert-decoder",
)
# lmk's own modules (sentence_modules.py)
PLACED, MARKED, RUN_BY_LMK = "PlacedTransformer", "MarkedPooling", "LmkEncoder"
TRAINED = "training.json"  # what a training writes last
HEADS = "heads"  # the folder of what pre-training predicts by
LATENT = "latent_attn_model"  # the folder of a learned token head, as LMK's training names it


@dataclass(frozen=True)
class Module:
    """One sentence module after pooling: its kind and the folder of its weights."""

    kind: str
    folder: Path


@dataclass(frozen=True)
class ModelFolder:
    """What a folder declares. `pool` is empty where it declares none (a plain folder)."""

    path: Path
    name: str
    revision: str = ""
    encoder: Path = Path()  # where config.json and the weights are
    pool: str = ""
    gran: str = ""  # with a pool that has chunks, as a folder that lmk exported declares it
    include_prompt: bool = True
    append_eos: bool = False
    window: str = ""  # positions of the windows that documents are read in, where it declares any
    max_length: int | None = None
    query_length: int | None = None  # None: as long as documents
    lower_case: bool = False
    query_prompt: str = ""
    doc_prompt: str = ""
    similarity: str = "cosine"
    normalize: bool = False
    modules: tuple[Module, ...] = field(default=())
    projections: tuple[Module, ...] = ()  # of a ColBERT folder: Dense modules that act on states
    late: Late | None = None  # what only a ColBERT folder declares

    @property
    def latent(self) -> Path | None:
        """The folder of a latent attention that acts on states, where there is one."""
        folder = self.path / LATENT
        return folder if folder.is_dir() else None

    @property
    def kind(self) -> str:
        """The model kind that opens it, a name of catalog.MODELS."""
        return kind_of(read_json(self.encoder / "config.json"))

    @property
    def dimensions(self) -> int | None:
        """Those of its vectors; None where it takes the opened model to know."""
        dense = [module for module in (*self.projections, *self.modules) if module.kind == "Dense"]
        if dense:
            return _count(read_json(dense[-1].folder / "config.json").get("out_features"))
        config = read_json(self.encoder / "config.json")
        usual = config.get("model_type") in (*_WITH_TABLE, *_ROTARY_ENCODERS, *_ROTARY_DECODERS)
        return _count(config.get("hidden_size")) if usual and not config.get("auto_map") else None

    @property
    def makes_vector(self) -> bool:
        """Whether the model makes one vector of an input itself, and leaves no states to be pooled."""
        if self.kind != "tite":
            return self.kind == "m2bert"
        kernels = read_json(self.encoder / "config.json").get("kernel_sizes")
        return any(kernels) if isinstance(kernels, list) else kernels is not None

    @property
    def sees_padding(self) -> bool:
        """Whether vectors depend on padding, so that inputs are padded to full length."""
        return self.kind == "m2bert"

    @property
    def cuts_suffix(self) -> bool:
        """Whether texts are cut after the special tokens were added (docs/m2bert.md)."""
        return self.kind == "m2bert"

    @property
    def causal(self) -> bool:
        """Whether the architecture is a decoder: one that has a causal head and no masked one."""
        kind = read_json(self.encoder / "config.json").get("model_type") or ""
        if kind in (*_WITH_TABLE, *_ROTARY_ENCODERS, *_ROTARY_DECODERS):
            return kind in _ROTARY_DECODERS
        from lmkcli.models.architectures import is_causal

        return is_causal(kind)

    @property
    def positions(self) -> int | None:
        """The length that a plain folder was made for."""
        return declared_length(self.encoder)

    @property
    def limit(self) -> int | None:
        """The longest input that positions allow; None where it takes the opened model to know."""
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

    @cached_property
    def weights_digest(self) -> str:
        """sha256 over the weights, the configuration and the modules, each with its name."""
        files = [*self.encoder.glob("*.safetensors"), *self.encoder.glob("pytorch_model*.bin")]
        files += self.encoder.glob("model.bin")  # as M2-BERT is released too
        files = [*_one_format(files), self.encoder / "config.json"]
        places = [module.folder for module in (*self.modules, *self.projections)]
        for place in [*places, *([self.latent] if self.latent else [])]:
            files += sorted(file for file in place.iterdir() if file.is_file())
        return _digest(files, self.path)

    @cached_property
    def tokenizer_digest(self) -> str:
        """sha256 over the tokenizer's files."""
        files = [self.encoder / name for name in TOKENIZER_FILES if (self.encoder / name).exists()]
        return _digest(files, self.encoder) + (":lower" if self.lower_case else "")


def kind_of(config: Mapping[str, Any]) -> str:
    """The model kind of a configuration, a name of catalog.MODELS."""
    if config.get("monarch_mixer_sequence_mixing"):  # whatever type an M2-BERT calls itself
        return "m2bert"
    # lightning-ir has both
    named = config.get("backbone_model_type") or config.get("model_type")
    return _KINDS.get(named or "", "transformer")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _one_format(files: list[Path]) -> list[Path]:
    safe = sorted(file for file in files if file.suffix == ".safetensors")
    return safe or sorted(files)


def _digest(files: list[Path], root: Path) -> str:
    whole = hashlib.sha256()
    for file in files:
        check_finite(file)
        facts = file.stat()
        part = bytes.fromhex(_state_digest(file, facts.st_size, facts.st_mtime_ns))
        whole.update(file.relative_to(root).as_posix().encode() + b"\0" + part)
    return whole.hexdigest()[:32]


@cache
def _state_digest(file: Path, size: int, changed: int) -> str:
    """That of a file, read once for each state of it: a plan of many steps asks for it many times."""
    return file_digest(file)


def declared_length(encoder: Path) -> int | None:
    """The least of what the tokenizer and the model allow; None where neither says."""
    tokenizer = read_json(encoder / "tokenizer_config.json").get("model_max_length")
    model = _positions(read_json(encoder / "config.json"))
    said = [int(length) for length in (tokenizer, model) if length and 0 < length < 1_000_000_000]
    return min(said, default=None)


def _positions(config: dict[str, Any]) -> int | None:
    """What a configuration says of its positions, less those that no input has."""
    said: int | None = config.get("max_position_embeddings")
    if said and config.get("model_type") in _AFTER_PADDING:
        padding = config.get("pad_token_id")
        return said - (1 if padding is None else int(padding)) - 1
    return said
