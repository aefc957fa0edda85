"""The layout of sentence-transformers: pooling, prompts, lengths and similarity from its JSON files."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from lmkcli.errors import DataError, UsageError
from lmkcli.models.files import (
    check_files,
    check_inside,
    listed_modules,
    read_fields,
    read_json,
)
from lmkcli.models.folder import (
    LANDMARKS,
    LATENT,
    MARKED,
    NO_LIMIT,
    PLACED,
    RUN_BY_LMK,
    TABLE,
    ModelFolder,
    SentenceModule,
    declared_length,
)
from lmkcli.models.late import MASK, Vocabulary, is_late, read_late
from lmkcli.models.sentence_classes import SentenceClass, class_of, sentence_classes
from lmkcli.models.sentence_settings import (
    check_settings,
    declared_lengths,
    read_settings,
    tokenizer_options,
    unknown_keys,
)
from lmkcli.spec.values import is_count

_POOLING = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
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
    "Pooling": 1, MARKED: 1, "Dense": 2,
    "LayerNorm": 2, "Dropout": 2, MASK: 3, "Normalize": 4,
}  # fmt: skip
_LANDMARK_GRAN = 32  # the default of LandmarkTransformer


def sentence_folder(path: Path, name: str, commit: str) -> ModelFolder:
    """Return the declarations of a folder with a modules.json.

    DataError for modules that lmk does not read.
    """
    modules, static_queries = _modules(path)
    encoder = modules[0][1]
    config = read_json(path / "config_sentence_transformers.json")
    length = read_settings(encoder)
    folders = dict(modules)
    late_model, special = is_late(config, list(folders)), class_of(folders)
    task = special.task if special else ""
    check_settings(length, encoder / "sentence_bert_config.json", task, late_model)
    doc_length, query_length = declared_lengths(length)
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
        gran=placed.get("gran", ""),
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
        normalize=any(kind == "Normalize" for kind, _ in modules),
        static_queries=static_queries,
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


def _modules(path: Path) -> tuple[list[tuple[str, Path]], Path | None]:
    """Return the kind and the folder of every module of documents, and the folder of a table for queries.

    DataError for a module that lmk does not read, or an order in which lmk does not apply modules.
    """
    listed = listed_modules(path)
    if not listed:
        raise DataError(f"{path}/modules.json lists no module; download the model again")
    modules = [(_kind(module["type"]), path / module["path"]) for module in listed]
    classes = sentence_classes()
    places = {each.transformer: 0 for each in classes} | {each.pooling: 1 for each in classes}
    allowed = {**_ORDER, **places}
    static_queries = None
    if modules[0][0] == "Router":
        static_queries, documents = _routes(modules[0][1])
        modules[:1] = documents
    kinds = [kind for kind, _ in modules]
    unknown = [kind for kind in kinds if kind not in allowed]
    if unknown or allowed[kinds[0]] != 0:
        raise DataError(
            f"{path}/modules.json has the module {', '.join(unknown) or kinds[0]}, which lmk does not "
            f"read (it reads {', '.join(allowed)}, Transformer first)"
        )
    order = [allowed[kind] for kind in kinds]
    if order != sorted(order) or order.count(0) > 1 or order.count(1) > 1:
        raise DataError(
            f"{path}/modules.json has its modules in the order {', '.join(kinds)}; lmk applies one "
            "Transformer, one Pooling, Dense and LayerNorm, and Normalize last"
        )
    for kind, where in modules:
        if where.is_dir():
            check_files(where)
        if (
            kind in ("Pooling", "Dense", "LayerNorm", *(each.pooling for each in classes))
            and not (where / "config.json").is_file()
        ):
            raise DataError(f"{where}/config.json is missing; download the model again")
    if static_queries is not None and class_of(kinds) is None:
        needed = " or ".join(each.pooling for each in classes)
        raise DataError(
            f"{path} has a table of weights for queries, but no {needed} for documents; lmk reads both "
            "together only"
        )
    return modules, static_queries


def _kind(declared: str) -> str:
    """The class name of a declared type."""
    return declared.rsplit(".", 1)[-1]


class _Routes(TypedDict):
    types: dict[str, str]
    structure: dict[str, list[str]]


def _routes(router: Path) -> tuple[Path, list[tuple[str, Path]]]:
    """Return the folder of a table for queries, and the modules of documents, of a Router."""
    file = router / "router_config.json"
    declared = read_fields(file, _Routes)
    routes: dict[str, list[tuple[str, Path]]] = {}
    for name, modules in declared["structure"].items():
        for module in modules:
            check_inside(module, file)
            if module not in declared["types"]:
                raise DataError(f"{file} declares no type of {module!r}; download the model again")
        routes[name] = [(_kind(declared["types"][each]), router / each) for each in modules]
    queries, documents = routes.get("query", []), routes.get("document", [])
    tables = [each.table for each in sentence_classes()]
    read = len(queries) == 1 and queries[0][0] in tables
    if len(routes) > 2 or not read or not documents:
        raise DataError(
            f"{file} has other routes than lmk reads: a route 'query' to one table of weights "
            f"({' or '.join(tables) or 'no installed package reads any'}), and a route 'document'; give the "
            "folder of one of its models"
        )
    table = queries[0][1]
    if not table.is_dir():
        raise DataError(f"{table} is missing; download the model again")
    check_files(table)
    return table, documents


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
    if len(modes) == 1 and modes[0] in _POOLING:
        return _POOLING[modes[0]]
    if not modes:
        return "mean"  # the default of sentence-transformers
    raise DataError(
        f"{path} pools by {'+'.join(modes)}, which is no average of marked positions; "
        "give another model"
    )


def _similarity(config: dict[str, Any], path: Path, special: SentenceClass | None) -> str:
    name = config.get("similarity_fn_name") or (special.similarity if special else "cosine")
    if name not in ("cosine", "dot"):
        raise UsageError(
            f"{path} declares the similarity '{name}'; lmk scores by dot products (cosine or dot)"
        )
    return str(name)
