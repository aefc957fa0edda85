"""The layout of sentence-transformers: what its files say of pooling, prompts, lengths and similarity."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lmkcli.errors import DataError, UsageError
from lmkcli.models.files import ListedModule, read_json, read_shape
from lmkcli.models.folder import (
    LATENT,
    MARKED,
    PLACED,
    RUN_BY_LMK,
    ModelFolder,
    Module,
    declared_length,
)
from lmkcli.models.late import MASK, Late, Vocabulary, is_late, read_late
from lmkcli.recipe import is_count

_POOLING = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_QUERY_PROMPTS, _DOC_PROMPTS = ("query",), ("document", "passage", "corpus")
# The modules that lmk reads, and the order in which it applies them.
_ORDER = {
    "Transformer": 0, PLACED: 0, RUN_BY_LMK: 0, "Pooling": 1, MARKED: 1, "Dense": 2, "LayerNorm": 2,
    "Dropout": 2, MASK: 3, "Normalize": 4,
}  # fmt: skip


def sentence_folder(path: Path, name: str, commit: str) -> ModelFolder:
    """What a folder with a modules.json declares; DataError for modules that lmk does not read."""
    kinds = _modules(path)
    encoder = kinds[0][1]
    config = read_json(path / "config_sentence_transformers.json")
    lengths = [read_json(file) for file in sorted(encoder.glob("sentence_*_config.json"))]
    length = lengths[0] if lengths else {}
    places = dict(kinds)
    pooling = read_json(places["Pooling"] / "config.json") if "Pooling" in places else {}
    placed = length if PLACED in places else {}
    declared = _pooling(pooling, path) if "Pooling" in places else undeclared(path)
    late = _late(kinds, config, length)
    folder = ModelFolder(
        path,
        name,
        commit,
        encoder=encoder,
        pool=placed.get("pool", declared),
        gran=placed.get("gran", ""),
        window=_window(placed, path),
        include_prompt=(placed or pooling).get("include_prompt", True),
        append_eos=bool(placed.get("append_eos", False)),
        max_length=length.get("max_seq_length") or declared_length(encoder),
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
    return _as_late(folder, late) if late else folder


def _window(placed: dict[str, Any], path: Path) -> str:
    """The positions of a window, where one is declared; DataError for what is no number of them."""
    declared = placed.get("window", "")
    if declared and not (isinstance(declared, str) and is_count(declared)):
        raise DataError(
            f"{path}/sentence_bert_config.json declares the window {declared!r}: write a number of positions "
            'in quotes, such as "512", or take the line out'
        )
    return str(declared)


def undeclared(path: Path) -> str:
    """The pooling of a folder that does not name one."""
    return "latent" if (path / LATENT).is_dir() else ""


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


def _as_late(folder: ModelFolder, late: Late) -> ModelFolder:
    """A ColBERT: its modules act on states, and every state is a unit vector of its own."""
    return replace(
        folder, late=late, projections=folder.modules, modules=(), pool="mean", normalize=True,
        max_length=late.doc_length or folder.max_length, query_length=late.query_length,
    )  # fmt: skip


def _modules(path: Path) -> list[tuple[str, Path]]:
    """Kind and folder of every module; DataError for one that lmk does not read, or not in its place."""
    listed = read_shape(path / "modules.json", list[ListedModule])
    if not listed:
        raise DataError(f"{path}/modules.json lists no module; download the model again")
    modules = [(module["type"].rsplit(".", 1)[-1], path / module["path"]) for module in listed]
    kinds = [kind for kind, _ in modules]
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
    for kind, where in modules:
        if kind in ("Pooling", "Dense", "LayerNorm") and not (where / "config.json").is_file():
            raise DataError(f"{where}/config.json is missing; download the model again")
    return modules


def _prompt(config: dict[str, Any], *names: str) -> str:
    """The first prompt that is declared; else the default, unless that is the other side's.

    sentence-transformers fills in empty prompts when it saves, so an empty one declares nothing.
    """
    prompts = config.get("prompts") or {}
    default = config.get("default_prompt_name") or ""
    others = {*_QUERY_PROMPTS, *_DOC_PROMPTS}.difference(names)
    candidates = (prompts.get(name) for name in (*names, default) if name not in others)
    return next((prompt for prompt in candidates if prompt), "")


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
