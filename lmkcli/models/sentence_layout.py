"""The layout of sentence-transformers: pooling, prompts, lengths and similarity from its JSON files."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from lmkcli.errors import DataError, UsageError
from lmkcli.models.late import MASK, Vocabulary, is_late, read_late
from lmkcli.models.model_files import (
    check_files,
    check_inside,
    listed_modules,
    read_fields,
    read_json,
)
from lmkcli.models.model_folder import (
    LANDMARKS,
    LATENT,
    MARKED,
    NO_LIMIT,
    PLACED,
    RUN_BY_LMK,
    TABLE,
    WORD_WEIGHTS,
    ModelFolder,
    SentenceModule,
    declared_length,
)
from lmkcli.models.sentence_classes import SentenceClass, class_of, sentence_classes
from lmkcli.models.sentence_settings import (
    PAIRS,
    STATES,
    Task,
    check_settings,
    declared_lengths,
    read_settings,
    tokenizer_options,
    unknown_keys,
)
from lmkcli.spec.values import is_count

# The pooler of each mode of Pooling
_POOLING = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt-len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_QUERY, _DOC = "query", "document"  # names of prompts
# The modules that lmk reads, and the order in which it applies them.
_ORDER = {
    "Transformer": 0, LANDMARKS: 0, PLACED: 0, RUN_BY_LMK: 0, TABLE: 0,
    WORD_WEIGHTS: 1, "Pooling": 2, MARKED: 2, "Dense": 3,
    "LayerNorm": 3, "Dropout": 3, MASK: 4, "Normalize": 5,
}  # fmt: skip
_VECTOR = "sentence_embedding"  # the name of the pooled vector in sentence-transformers
_ONCE = (0, 1, 2)  # steps that a model has at most once
_ROUTERS = ("Router", "Asym")  # Asym is the older name
_PACKAGES = ("sentence_transformers", "pylate", "lmkcli")  # with modules that lmk reads
_LANDMARK_GRAN = 32  # the default of LandmarkTransformer


def sentence_folder(path: Path, name: str, commit: str) -> ModelFolder:
    """Return the declarations of a folder with a modules.json.

    A Router may give queries another encoder or other modules; then `queries` has their declarations.
    DataError for modules that lmk does not read.
    """
    config = read_json(path / "config_sentence_transformers.json")
    if config.get("model_type") == "CrossEncoder":
        return _cross_encoder(path, name, commit, config)
    documents, queries = _modules(path, _DOC), _modules(path, _QUERY)
    if documents == queries:
        return _declared(path, name, commit, documents)
    classes = sentence_classes()
    if len(queries) == 1 and queries[0][0] in [each.table for each in classes]:
        if class_of(dict(documents)) is None:
            needed = " or ".join(each.pooling for each in classes)
            raise DataError(
                f"{path} has a table of weights for queries, but no {needed} for documents; lmk reads both "
                "together only"
            )
        table = queries[0][1]
        if not table.is_dir():
            raise DataError(f"{table} is missing; download the model again")
        check_files(table)
        return replace(_declared(path, name, commit, documents), static_queries=table)
    asked = _declared(path, f"{name} (its queries)", commit, queries)
    return replace(_declared(path, name, commit, documents), queries=asked)


def _cross_encoder(path: Path, name: str, commit: str, config: dict[str, Any]) -> ModelFolder:
    """Return the declarations of a cross-encoder. Its default prompt precedes queries."""
    modules = _modules(path, _QUERY)
    if [kind for kind, _ in modules] != ["Transformer"]:
        raise DataError(
            f"{path} is a cross-encoder with the modules {', '.join(kind for kind, _ in modules)}; lmk reads "
            "sequence classifiers, which have one Transformer; give another model"
        )
    encoder = modules[0][1]
    settings = read_settings(encoder)
    check_settings(settings, encoder / "sentence_bert_config.json", PAIRS, late=False)
    length, _ = declared_lengths(settings)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    return ModelFolder(
        path,
        name,
        commit,
        encoder=encoder,
        max_length=length,
        tokenizer_options=tokenizer_options(settings),
        query_prompt=(prompts.get(default) or "") if default else "",
        cross_encoder=True,
    )


def _declared(path: Path, name: str, commit: str, modules: list[tuple[str, Path]]) -> ModelFolder:
    """Return the declarations of the modules of one route, or of a model without routes.

    DataError for modules that lmk does not read, or an order in which lmk does not apply them.
    """
    _check_modules(path, modules)
    encoder = modules[0][1]
    config = read_json(path / "config_sentence_transformers.json")
    length = read_settings(encoder)
    folders = dict(modules)
    late_model, special = is_late(config, list(folders)), class_of(folders)
    task = Task(special.task, "logits") if special else STATES
    check_settings(length, encoder / "sentence_bert_config.json", task, late_model)
    doc_length, query_length = declared_lengths(length)
    if "Normalize" in folders and not late_model:
        _check_normalize(folders["Normalize"] / "config.json")
    pooling = read_json(folders["Pooling"] / "config.json") if "Pooling" in folders else {}
    own = bool({PLACED, RUN_BY_LMK} & set(folders))
    placed = length if own else {}  # declarations of tokens that a pooler adds
    declared = _pooling(pooling, path) if "Pooling" in folders else default_pool(path)
    if special:
        declared = special.pooler(folders[special.pooling])
    if LANDMARKS in folders:
        placed = _landmarks(length, declared, encoder)
    table = TABLE in folders
    if table:
        declared = _table(encoder)
    late = None
    if late_model:
        mask = read_json(folders[MASK] / "config.json") if MASK in folders else {}
        vocabulary = Vocabulary(encoder, read_json(encoder / "tokenizer_config.json"))
        late = read_late(config, length, mask, vocabulary)
    folder = ModelFolder(
        path,
        name,
        commit,
        encoder=encoder,
        pool=placed.get("pool", declared),
        pool_package=placed.get("pool_package", ""),
        gran=placed.get("gran", ""),
        trained_poolers=tuple(placed.get("trained_poolers") or ()),
        window=_window(placed, path),
        landmark_token=placed.get("lmk_token_id"),
        include_prompt=(length if own else pooling).get("include_prompt", True),
        append_eos=bool(placed.get("append_eos", False)),
        table=table,
        max_length=NO_LIMIT if table else doc_length or declared_length(encoder),
        query_length=query_length,
        tokenizer_options=tokenizer_options(length),
        strips=bool({PLACED, LANDMARKS, RUN_BY_LMK} & set(folders))
        and not placed.get("keep_space"),
        lower_case=bool(length.get("do_lower_case", False)),
        query_prompt=_prompt(config, _QUERY),
        doc_prompt=_prompt(config, _DOC),
        similarity="cosine" if late else _similarity(config, path, special),
        dim=_dim(config, path, any(kind == "Normalize" for kind, _ in modules)),
        normalize=any(kind == "Normalize" for kind, _ in modules),
        word_weights=folders.get(WORD_WEIGHTS),
        notes=(*_prompt_notes(config), *unknown_keys(length, pooling, config)),
        modules=tuple(
            SentenceModule(kind, where) for kind, where in modules if kind in ("Dense", "LayerNorm")
        ),
    )
    if late is None:
        return folder
    # In a ColBERT, the modules act on states, and each state is a unit vector of its own.
    return replace(
        folder, late=late, projections=folder.modules, modules=(), pool="mean", normalize=True,
        max_length=late.doc_length or folder.max_length, query_length=late.query_length,
    )  # fmt: skip


def _table(encoder: Path) -> str:
    """Return the pooling of a table of embeddings. DataError if its tokenizer cuts texts."""
    file = encoder / "tokenizer.json"
    if not file.is_file():
        raise DataError(f"{file} is missing; download the model again")
    head = file.read_text(encoding="utf-8", errors="replace")[:4096]
    if '"truncation":null' not in re.sub(r"\s", "", head):
        raise DataError(
            f"{file} cuts texts, which lmk does not do for a table of embeddings; write "
            '"truncation": null into it'
        )
    return "mean"


def default_pool(path: Path) -> str:
    """Return the pooling of a folder that does not declare one."""
    return "latent" if (path / LATENT).is_dir() else ""


def _landmarks(declared: dict[str, Any], pooling: str, encoder: Path) -> dict[str, Any]:
    """Return the pooler, the granularity and the landmark of a LandmarkTransformer.

    A first revision of the module writes `splitter_granularity`; if that is a list, the user has to choose
    with --gran. DataError for another pooling than the mean, or without a landmark.
    """
    if pooling != "mean":
        raise DataError(
            f"{encoder} has the module {LANDMARKS}, but pools by {pooling or 'nothing'} instead of mean; "
            "correct the configuration of its Pooling"
        )
    if declared.get("lmk_token_id") is None:
        raise DataError(
            f"{encoder} has the module {LANDMARKS}, but no lmk_token_id in sentence_bert_config.json; add "
            "the id of the landmark token, for instance of [SEP]"
        )
    early = declared.get("splitter_granularity")
    gran = early or declared.get("eval_splitter_granularity") or _LANDMARK_GRAN
    single = "" if isinstance(gran, list) else str(gran)
    return {"pool": "lmk", "gran": single, "lmk_token_id": declared["lmk_token_id"]}


def _window(placed: dict[str, Any], path: Path) -> str:
    """Return the declared window, such as '512' or 'even:512', or an empty string."""
    declared = placed.get("window", "")
    if declared and not (isinstance(declared, str) and is_count(declared.removeprefix("even:"))):
        raise DataError(
            f"{path}/sentence_bert_config.json declares the window {declared!r}: write a number of positions "
            'in quotes, such as "512" or "even:512", or remove the line'
        )
    return str(declared)


def _modules(path: Path, side: str) -> list[tuple[str, Path]]:
    """Return the kind and the folder of every module of one side: of documents or of queries.

    In place of a Router, these are the modules of its route for the side.
    """
    listed = listed_modules(path)
    if not listed:
        raise DataError(f"{path}/modules.json lists no module; download the model again")
    modules: list[tuple[str, Path]] = []
    for module in listed:
        kind, where = _kind(module["type"], path / "modules.json"), path / module["path"]
        modules += _route(where, side) if kind in _ROUTERS else [(kind, where)]
    return modules


def _check_modules(path: Path, modules: list[tuple[str, Path]]) -> None:
    """Raise DataError for a module that lmk does not read, or an order in which lmk applies no modules."""
    classes = sentence_classes()
    places = {each.transformer: 0 for each in classes} | {each.pooling: 2 for each in classes}
    allowed = {**_ORDER, **places}
    kinds = [kind for kind, _ in modules]
    unknown = [kind for kind in kinds if kind not in allowed]
    if unknown or allowed[kinds[0]] != 0:
        raise DataError(
            f"{path}/modules.json has the module {', '.join(unknown) or kinds[0]}, which lmk does not "
            f"read (it reads {', '.join(allowed)}, Transformer first); give another model"
        )
    order = [allowed[kind] for kind in kinds]
    if order != sorted(order) or any(order.count(step) > 1 for step in _ONCE):
        raise DataError(
            f"{path}/modules.json has its modules in the order {', '.join(kinds)}; lmk applies one "
            "Transformer, one Pooling, Dense and LayerNorm, and Normalize last; give another model"
        )
    for kind, where in modules:
        if where.is_dir():
            check_files(where)
        if (
            kind
            in (WORD_WEIGHTS, "Pooling", "Dense", "LayerNorm", *(each.pooling for each in classes))
            and not (where / "config.json").is_file()
        ):
            raise DataError(f"{where}/config.json is missing; download the model again")


def _check_normalize(file: Path) -> None:
    """Raise DataError for a Normalize that does not act on the pooled vector: lmk would normalise it."""
    config = read_json(file)
    source = config.get("module_input_name") or _VECTOR
    others = {source, config.get("module_output_name") or source} - {_VECTOR}
    if others:
        raise DataError(
            f"{file}: lmk applies Normalize to the pooled vector only, and this one has the input or output "
            f"{', '.join(sorted(others))}; give another model"
        )


def _kind(declared: str, file: Path) -> str:
    """Return the class name of a declared type.

    DataError for a class of the model's own code: it may compute something else than the class of that name
    in sentence-transformers.
    """
    package, _, name = declared.rpartition(".")
    known = (*_PACKAGES, *(each.package for each in sentence_classes()))
    if not f"{package}.".startswith(tuple(f"{each}." for each in known)):
        raise DataError(
            f"{file} has the module {declared}, which is code of the model, and lmk does not run it; if it "
            f"computes the same as sentence_transformers.models.{name}, write that name into the file, else "
            "give another model"
        )
    return name


class _Routes(TypedDict):
    types: dict[str, str]
    structure: dict[str, list[str]]
    parameters: NotRequired[dict[str, Any]]


def _route(router: Path, side: str) -> list[tuple[str, Path]]:
    """Return the modules of the route of a Router for one side, as sentence-transformers chooses it.

    DataError if the Router has no route for the texts of this side.
    """
    files = [router / name for name in ("router_config.json", "config.json")]
    file = next((each for each in files if each.is_file()), files[0])
    declared = read_fields(file, _Routes)
    structure = declared["structure"]
    for module in (module for modules in structure.values() for module in modules):
        check_inside(module, file)
        if module not in declared["types"]:
            raise DataError(f"{file} declares no type of {module!r}; download the model again")
    if (declared.get("parameters") or {}).get("route_mappings"):
        raise DataError(
            f"{file} chooses routes by route_mappings, which lmk does not read; give the folder of one of "
            "its models"
        )
    chosen = structure.get(side, structure.get("text"))
    if not chosen:
        raise DataError(
            f"{file} has no route '{side}' (it has {', '.join(structure)}); give the folder of one of its "
            "models"
        )
    return [(_kind(declared["types"][module], file), router / module) for module in chosen]


def _dim(config: dict[str, Any], path: Path, normalize: bool) -> int:
    """Return the declared number of leading dimensions to keep; 0 for all.

    DataError if sentence-transformers would score cut vectors that it normalised before: lmk normalises last.
    """
    dim = config.get("truncate_dim")
    if dim is None:
        return 0
    if not (isinstance(dim, int) and dim > 0):
        raise DataError(
            f"{path}/config_sentence_transformers.json: truncate_dim {dim!r} is no number of dimensions"
        )
    if normalize and config.get("similarity_fn_name") == "dot":
        raise DataError(
            f"{path} normalises vectors, cuts them to {dim} dimensions and scores them by dot products; lmk "
            "cuts them before it normalises: write the similarity cosine into its "
            "config_sentence_transformers.json"
        )
    return dim


def _prompt(config: dict[str, Any], name: str) -> str:
    """Return the prompt of one side, as encode_query and encode_document of sentence-transformers choose it.

    They use the prompts `query` and `document`, and neither other names nor the default prompt.
    """
    return (config.get("prompts") or {}).get(name) or ""


def _prompt_notes(config: dict[str, Any]) -> list[str]:
    """Return a note on the prompts that neither side uses."""
    prompts = config.get("prompts") or {}
    names = [name for name, text in prompts.items() if text and name not in (_QUERY, _DOC)]
    if not names:
        return []
    return [
        f"the model declares prompts that neither documents nor queries use ({', '.join(names)}); to use "
        "one, give its text with --doc-prompt or --query-prompt"
    ]


def _pooling(config: dict[str, Any], path: Path) -> str:
    modes = config.get("pooling_mode") or [mode for key, mode in _LEGACY.items() if config.get(key)]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if unknown := [str(mode) for mode in modes if mode not in _POOLING]:
        raise DataError(
            f"{path} pools by {unknown[0]}, which neither lmk nor sentence-transformers has; give another "
            "model"
        )
    return "+".join(
        _POOLING[mode] for mode in modes or ["mean"]
    )  # the default of sentence-transformers


def _similarity(config: dict[str, Any], path: Path, special: SentenceClass | None) -> str:
    name = config.get("similarity_fn_name") or (special.similarity if special else "cosine")
    if name not in ("cosine", "dot"):
        raise UsageError(
            f"{path} declares the similarity '{name}'; lmk scores by dot products (cosine or dot)"
        )
    return str(name)
