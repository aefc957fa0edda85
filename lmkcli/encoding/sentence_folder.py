"""Sentence-transformers folders for recipes: the files of the model, and modules with the pooling of lmk.

sentence-transformers has the poolings cls, mean and last, so a folder with one of them loads everywhere.
Other poolers add tokens. For them, the folder uses the modules of `sentence_modules.py`, which need
lmkcli. For lmk, it can also use the module LandmarkTransformer, which is proposed for sentence-transformers.
This module only writes files and does not need sentence-transformers.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ExportFacts, ExportIdentity, ExportManifest
from lmkcli.artifact.outputs import write_once
from lmkcli.catalog import pooler_row
from lmkcli.encoding.resolution import ResolvedRecipe, open_pooler, representation_of, resolve
from lmkcli.errors import DataError, UsageError
from lmkcli.models.late import Vocabulary
from lmkcli.models.model_files import (
    CODE,
    TEXTS,
    WEIGHTS,
    check_link,
    copy_files,
    loading,
    model_files,
    read_json,
)
from lmkcli.models.model_folder import (
    LANDMARKS,
    TOKENIZER_FILES,
    TRAINED,
    TRANSFORMER,
    WORD_WEIGHTS,
    ModelFolder,
)
from lmkcli.models.sentence_classes import SentenceClass
from lmkcli.models.weight_files import INDEX, gather, is_scattered, weight_files
from lmkcli.pooling.table import MEAN_ONLY
from lmkcli.progress import Report
from lmkcli.spec.recipe import EncoderConfig, Recipe, RecipeOptions
from lmkcli.spec.values import FULL, Window

_LMK_MODULES, _SENTENCE_MODULES = "lmkcli.sentence_modules", "sentence_transformers.models"
_ALL_MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens",
              "weightedmean_tokens", "lasttoken")  # fmt: skip
_NEW_MODES = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "weightedmean_tokens": "weightedmean",
}
_WRITTEN = {"modules.json", "config_sentence_transformers.json", TRAINED, manifest.NAME}
_CARD = "README.md"
_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")  # names of the width of states in config.json


class ExportedModel(NamedTuple):
    """The classes of an exported folder, and whether loading them needs trust_remote_code."""

    modules: list[str]
    trust_remote_code: bool
    late: bool = False
    opened_by: str = "SentenceTransformer"

    @property
    def loaded_by(self) -> str:
        """The Python expression that loads the folder."""
        trust = ", trust_remote_code=True" if self.trust_remote_code else ""
        if self.late:
            return "pylate.models.ColBERT(folder)"
        return f"{self.opened_by}(folder{trust})"

    @property
    def proposed(self) -> bool:
        """Whether the folder needs a sentence-transformers with the proposed LandmarkTransformer."""
        return self.modules[0].endswith(f".{LANDMARKS}")


class _Module(NamedTuple):
    """One line of modules.json. `config` is written into the folder `path`, or `weights` are copied to it."""

    type: str
    path: str
    config: dict[str, Any] | None = None
    weights: Path | None = None


def resolve_whole(options: RecipeOptions, offline: bool = False) -> ResolvedRecipe:
    """Return the recipe of a model for training or export: one input for a whole text.

    The new folder declares the requested window, or else the window of the model. Raises UsageError for a
    window that a folder cannot declare: modules after the pooling would act on each window instead of the
    average, and models that lmk runs read one input.
    """
    resolved = resolve(replace(options, window=FULL), offline)
    doc, folder = resolved.recipe.doc, resolved.folder
    requested = options.window or FULL
    placeable = doc.unit == "doc" and doc.landmark_token is None and not run_by_lmk(resolved)
    declarable = placeable and not folder.modules and _class(doc) is None
    if requested != FULL and not (declarable and requested.positions):
        raise UsageError(
            f"--window {requested} cannot be declared by this folder: write a number of positions, for a "
            "model with one vector per text and no modules after its pooling; for other models, use "
            "--window with lmk encode"
        )
    if requested.positions > doc.max_length:
        raise UsageError(f"--window {requested} is longer than --max-length {doc.max_length}")
    window = requested if options.window else Window(folder.window or FULL)
    declared = str(window) if declarable and 0 < window.positions <= doc.max_length else ""
    return resolved._replace(folder=replace(folder, window=declared))


def check_exportable(resolved: ResolvedRecipe) -> None:
    """Raise UsageError for a recipe that a sentence-transformers folder cannot express."""
    side, source = resolved.recipe.doc, resolved.folder
    if special := _class(side):
        kind = representation_of(side.pool).kind
        raise UsageError(
            f"--pool {side.pool} makes {kind} vectors, which this command does not support; "
            f"{_opening(resolved, special)}"
        )
    if source.late:
        raise UsageError(
            f"{source.name} makes a vector of every token, and sentence-transformers makes one of a text; "
            "export its vectors instead"
        )
    if source.table:
        raise UsageError(
            f"{source.name} is a table of embeddings, which sentence-transformers opens without an export; "
            "copy its folder"
        )
    if source.queries:
        raise UsageError(
            f"{source.name} has a model of its own for queries (Router), and an exported folder has one; "
            "copy its folder, or give the folder of one of its models"
        )
    if source.word_weights and not (_is_native(side) and not source.window):
        raise UsageError(
            f"{source.name} weights its tokens ({WORD_WEIGHTS}); sentence-transformers does that only for "
            "its own poolings without windows; drop --pool and --window"
        )
    if run_by_lmk(resolved) and source.modules:
        raise UsageError(
            f"{source.name} has modules after it, and a folder that lmk runs cannot have modules; export its "
            "vectors instead"
        )
    if side.unit != "doc" or side.window != "full" or side.extend:
        raise UsageError(
            "sentence-transformers makes one vector of one input: its folders cannot express several vectors "
            "per document, windows or extended positions"
        )


def _class(side: EncoderConfig) -> SentenceClass | None:
    """Return the class of sentence-transformers of such models; None for SentenceTransformer."""
    return representation_of(side.pool).sentence_class


def _opening(resolved: ResolvedRecipe, special: SentenceClass) -> str:
    """Return how sentence-transformers opens a model of a special class, for a message.

    It opens the folders of the class, and takes the usual pooler of the class for a plain model.
    """
    side, source = resolved.recipe.doc, resolved.folder
    if side.pool == (source.pool or special.usual):
        return (
            "sentence-transformers opens this model without an export: "
            f"{special.name}({side.model!r})"
        )
    return (
        f"lmk train --pool {side.pool} trains such a model, and {special.name} of sentence-transformers "
        "opens its folder"
    )


def with_landmark_transformer(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """Return a recipe that is exported with the module LandmarkTransformer, and has the same vectors.

    UsageError for a recipe that the module cannot express.
    """
    from lmkcli.models.tokenizer_folder import open_tokenizer  # here, because it imports torch

    doc, query = resolved.recipe.doc, resolved.recipe.query
    if doc.landmark_token is not None:
        return resolved
    if not (fault := _landmark_fault(resolved)):
        special = open_tokenizer(resolved.folder, doc).special
        first = () if special.cls is None else (special.cls,)
        shortest = len(first) + doc.gran.tokens + 1
        if special.prefix != first:
            fault = "starts a text with CLS or BOS, and the tokenizer of this model does not"
        elif doc.max_length < shortest:
            fault = f"needs positions for one chunk; use --max-length {shortest} or more"
    if fault:
        raise UsageError(f"--landmark-transformer: the module {fault}")
    doc, query = (replace(side, landmark_token=special.landmark) for side in (doc, query))
    return resolved._replace(recipe=Recipe(doc, query))


def _landmark_fault(resolved: ResolvedRecipe) -> str:
    """Return the reason why LandmarkTransformer cannot express a recipe, and what to do; empty if it can."""
    doc, query, source = resolved.recipe.doc, resolved.recipe.query, resolved.folder
    if doc.pool != "lmk" or not doc.gran.tokens or run_by_lmk(resolved):
        return "needs --pool lmk and a number of tokens as --gran"
    if source.window:
        declared = Window(source.window).length
        return f"has no windows, and this model declares windows of {declared}; add --window full"
    if doc.prompt or query.prompt:
        return (
            "counts the tokens of a prompt in the first chunk; drop the prompts with --doc-prompt '' and "
            "--query-prompt ''"
        )
    if query.max_length != doc.max_length:
        return f"has one length for all texts; add --query-max-length {doc.max_length}"
    return ""


def check_trainable(resolved: ResolvedRecipe) -> None:
    """Raise UsageError for a recipe that neither sentence-transformers nor PyLate folders can express."""
    doc = resolved.recipe.doc
    if _class(doc):
        if doc.extend:
            raise UsageError(f"--extend {doc.extend} is for dense vectors; drop it")
    elif doc.unit == "token":
        if open_pooler(doc.pool).module:
            raise UsageError(
                f"--pool {doc.pool} has weights, and a folder of PyLate cannot contain them; use --pool mean "
                "with --unit token"
            )
    else:
        check_exportable(resolved)


def run_by_lmk(resolved: ResolvedRecipe) -> bool:
    """Return whether lmk runs the whole model, because sentence-transformers has no such modules.

    That is the case for model kinds such as TITE and M2-BERT, and for poolers with weights.
    """
    return resolved.folder.kind != TRANSFORMER or bool(open_pooler(resolved.recipe.doc.pool).module)


def is_placed(resolved: ResolvedRecipe) -> bool:
    """Return whether sentence-transformers needs the modules of lmk that place and mark tokens."""
    windowed = bool(resolved.folder.window)
    return not run_by_lmk(resolved) and (windowed or not _is_native(resolved.recipe.doc))


def _is_native(doc: EncoderConfig) -> bool:
    """Return whether sentence-transformers itself has the pooling."""
    if doc.landmark_token is not None or _class(doc):
        return True
    return doc.unit == "token" or (bool(open_pooler(doc.pool).sentence_mode) and not doc.append_eos)


def export_model(
    resolved: ResolvedRecipe, folder: Path, report: Report = Report(), card: str = ""
) -> ExportedModel:
    """Write `folder` atomically, for the hub with a model card.

    Raises UsageError for a recipe that the folder cannot express.
    """
    recipe, source = resolved.recipe, resolved.folder
    check_exportable(resolved)
    described = ExportManifest(
        identity=ExportIdentity(
            to="hub" if card else "sentence-transformers",
            recipe=recipe,
            window=source.window,
            card=manifest.digest(card) if card else "",
        ),
        facts=ExportFacts(
            **manifest.environment(report.call), made_of=source.name, models=recipe.located()
        ),
    )

    def write(growing: Path) -> None:
        write_files(resolved, growing)
        if card:
            (growing / _CARD).write_text(card, encoding="utf-8")

    write_once(folder, described, write)
    return exported(resolved)


def exported(resolved: ResolvedRecipe) -> ExportedModel:
    """Return the classes of the folder of a recipe."""
    recipe = resolved.recipe
    modules = list(_modules(resolved))
    lmk = any(module.type.startswith(_LMK_MODULES) for module in modules)
    trust = lmk or recipe.doc.trust_remote_code
    late = recipe.doc.unit == "token"
    kinds = [module.type for module in modules]
    special = _class(recipe.doc)
    return ExportedModel(kinds, trust, late, special.name if special else "SentenceTransformer")


def write_files(resolved: ResolvedRecipe, growing: Path) -> None:
    """Copy the files of the model, and write the files of a sentence-transformers folder."""
    recipe, source = resolved.recipe, resolved.folder
    modules = list(_modules(resolved))
    copy_files(list(encoder_files(source)), growing)
    if is_scattered(source.encoder):
        gather(source.encoder, growing)
    weights = pooler_row(recipe.doc.pool).weights
    if weights and (source.path / weights).is_dir():
        copy_files(_module_files(source.path / weights, source), growing / weights)
    for module in modules:
        if module.weights is not None:
            copy_files(_module_files(module.weights, source), growing / module.path)
            continue
        (growing / module.path).mkdir(exist_ok=True)
        name = "config.json" if module.path else "sentence_bert_config.json"
        _write(growing / module.path / name, module.config)
    lines = [
        {"idx": number, "name": str(number), "path": module.path, "type": module.type}
        for number, module in enumerate(modules)
    ]
    _write(growing / "modules.json", lines)
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": recipe.query.prompt, "document": recipe.doc.prompt},
        "default_prompt_name": None,
        "similarity_fn_name": recipe.doc.similarity,
    }
    if recipe.doc.dim:
        settings["truncate_dim"] = recipe.doc.dim
    if special := _class(recipe.doc):
        settings["model_type"] = special.name
    if recipe.doc.unit == "token":
        late = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim"}
        settings |= late | _late_settings(recipe, source)
    _write(growing / "config_sentence_transformers.json", settings)


def encoder_files(source: ModelFolder) -> Iterator[Path]:
    """Yield the files to copy unchanged: configuration, tokenizer, code and weights.

    Pickled weights are copied only if the model has no other weights. Weights in subfolders get other names
    (`gather`).
    """
    read = set(weight_files(source.encoder))
    files = model_files(source.encoder, TEXTS | CODE | WEIGHTS, inside=source.path)
    if is_scattered(source.encoder):
        for file in read:
            check_link(file, source.path)
        files = [file for file in files if file not in read and not file.name.endswith(INDEX)]
    safe = any(file.suffix == ".safetensors" for file in (*files, *read))
    if other := source.other_tokenizer:
        yield from (
            file for file in model_files(other, TEXTS, other) if file.name in TOKENIZER_FILES
        )
    for file in files:
        rewritten = file.name in _WRITTEN or file.match("sentence_*_config.json")
        weights = file.match("pytorch_model*.bin") or file.name == "model.bin"
        if not rewritten and (file.suffix != ".bin" or (weights and not safe)):
            yield file


def _module_files(folder: Path, source: ModelFolder) -> list[Path]:
    return model_files(folder, TEXTS | WEIGHTS, inside=source.path)


def module_folders(source: ModelFolder) -> list[str]:
    """Return the folders of the sentence modules in an exported folder."""
    return [f"{number}_{module.kind}" for number, module in enumerate(source.modules, start=2)]


def projection_folders(source: ModelFolder) -> list[str]:
    """Return the folders of the projections of states in a late-interaction folder."""
    return [f"{number}_{module.kind}" for number, module in enumerate(source.projections, start=1)]


def _modules(resolved: ResolvedRecipe) -> Iterator[_Module]:
    """Yield the modules of the folder of a recipe, in order."""
    doc, query, source = resolved.recipe.doc, resolved.recipe.query, resolved.folder
    settings: dict[str, Any] = {
        "max_seq_length": doc.max_length,
        "do_lower_case": source.lower_case,
    }
    if query.max_length != doc.max_length:
        settings["query_length"] = query.max_length
    if doc.unit == "token":
        yield _Module(f"{_SENTENCE_MODULES}.Transformer", "", settings)
        for module, path in zip(source.projections, projection_folders(source), strict=True):
            yield _Module(f"pylate.models.{module.kind}.{module.kind}", path, weights=module.folder)
        return
    if special := _class(doc):
        config = dict(special.poolers[doc.pool])
        yield _Module(f"{special.package}.{special.transformer}", "", settings)
        yield _Module(f"{special.package}.{special.pooling}", f"1_{special.pooling}", config)
    elif run_by_lmk(resolved):
        yield _Module(f"{_LMK_MODULES}.LmkEncoder", "", settings | _placement(resolved))
    elif doc.landmark_token is not None:
        before = read_json(source.encoder / "sentence_bert_config.json")
        settings |= {
            "eval_splitter_granularity": doc.gran.tokens,
            "train_splitter_granularity": before.get("train_splitter_granularity"),
            "lmk_token_id": doc.landmark_token,
        }
        yield _Module(f"{_SENTENCE_MODULES}.{LANDMARKS}", "", settings)
        yield _Module(f"{_SENTENCE_MODULES}.Pooling", "1_Pooling", _pooling(doc, source))
    else:
        yield from _pooled(resolved, settings)
    for module, path in zip(source.modules, module_folders(source), strict=True):
        yield _Module(f"{_SENTENCE_MODULES}.{module.kind}", path, weights=module.folder)
    if doc.normalize:
        number = len(source.modules) + 2
        yield _Module(f"{_SENTENCE_MODULES}.Normalize", f"{number}_Normalize", {})


def _pooled(resolved: ResolvedRecipe, settings: dict[str, Any]) -> Iterator[_Module]:
    """Yield encoder and pooling: those of sentence-transformers, or those of lmk, which place tokens."""
    doc, source = resolved.recipe.doc, resolved.folder
    if is_placed(resolved):
        how = open_pooler(doc.pool).reductions
        pooling = {} if how == MEAN_ONLY else {"reductions": list(how)}
        yield _Module(f"{_LMK_MODULES}.PlacedTransformer", "", settings | _placement(resolved))
        yield _Module(f"{_LMK_MODULES}.MarkedPooling", "1_MarkedPooling", pooling)
        return
    yield _Module(f"{_SENTENCE_MODULES}.Transformer", "", settings)
    if source.word_weights:
        path = f"1_{WORD_WEIGHTS}"
        yield _Module(f"{_SENTENCE_MODULES}.{WORD_WEIGHTS}", path, weights=source.word_weights)
    yield _Module(f"{_SENTENCE_MODULES}.Pooling", "1_Pooling", _pooling(doc, source))


def _placement(resolved: ResolvedRecipe) -> dict[str, Any]:
    """Return the settings of a module of lmk that places the tokens of a text and marks some of them.

    They are empty for a model that makes one vector by itself.
    """
    doc, window = resolved.recipe.doc, resolved.folder.window
    if resolved.folder.makes_vector:
        return {}
    package = {"pool_package": doc.pool_package} if doc.pool_package else {}
    settings = {
        "pool": doc.pool,
        **package,
        "gran": doc.gran,
        "include_prompt": doc.include_prompt,
        "append_eos": doc.append_eos,
        "keep_space": doc.keep_space,
    }
    known = resolved.folder.poolers
    others = sorted(known - {doc.pool}) if doc.pool in known else []
    settings |= {"trained_poolers": others} if others else {}
    return settings | ({"window": window} if window else {})


def _pooling(doc: EncoderConfig, source: ModelFolder) -> dict[str, Any]:
    """Return the configuration of Pooling in its old spelling, which every version reads."""
    config = read_json(source.encoder / "config.json")
    config = config.get("text_config") or config
    width = next((config[name] for name in _WIDTHS if name in config), None)
    if width is None:
        raise DataError(
            f"{source.encoder}/config.json has none of the fields {', '.join(_WIDTHS)}, so the width of the "
            "states is unknown"
        )
    pooler = open_pooler(doc.pool)
    # LandmarkTransformer shows the landmarks alone to the pooling
    mode = "mean_tokens" if doc.landmark_token is not None else pooler.sentence_mode
    modes = mode.split("+")
    if modes == [name for name in _ALL_MODES if name in modes]:
        how: dict[str, Any] = {f"pooling_mode_{name}": name in modes for name in _ALL_MODES}
    else:  # another order, which only the new spelling can express
        how = {"pooling_mode": [_NEW_MODES.get(name, name) for name in modes]}
    return {
        "word_embedding_dimension": int(width),
        **how,
        # a prompt changes nothing if the last position is pooled
        "include_prompt": doc.include_prompt or pooler.marked == "last",
    }


def _late_settings(recipe: Recipe, source: ModelFolder) -> dict[str, Any]:
    """Return the late-interaction settings of config_sentence_transformers.json, under the names of PyLate.

    Raises UsageError if queries are expanded with a token that PyLate would not choose.
    """
    doc, query = recipe.doc, recipe.query
    file = source.encoder / "tokenizer.json"
    with loading(str(file)):
        fast = Tokenizer.from_file(str(file))

    def words(*ids: int) -> list[str]:
        return [str(fast.id_to_token(one)) for one in ids]

    def prefix(one: int | None) -> str:
        return "" if one is None else words(one)[0]

    if query.expansion is not None:
        vocabulary = Vocabulary(source.encoder, read_json(source.encoder / "tokenizer_config.json"))
        if vocabulary.expansion_token() != query.expansion:
            raise UsageError(
                f"queries of {source.name} are filled up with {words(query.expansion)[0]!r}, and a folder of "
                "PyLate cannot express that; train with another base model"
            )
    return {
        "query_prefix": prefix(query.prefix_token),
        "document_prefix": prefix(doc.prefix_token),
        "query_length": query.max_length,
        "document_length": doc.max_length,
        "do_query_expansion": query.expansion is not None,
        "attend_to_expansion_tokens": query.attend_expansion,
        "skiplist_words": words(*doc.skip),
    }


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
