"""A recipe as a sentence-transformers folder: the model's own files, and modules that pool as lmk does.

cls, mean and last are sentence-transformers' own pooling, so such a folder loads anywhere. The other
poolers place tokens of their own, which the modules of `sentence_modules.py` do where lmkcli is
installed. Only files are written here: sentence-transformers itself is not needed.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli import manifest
from lmkcli.encoding.asking import read_window
from lmkcli.encoding.late_folder import late_settings
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.errors import DataError, UsageError
from lmkcli.manifest import Manifest
from lmkcli.models.files import read_json
from lmkcli.models.folder import ModelFolder
from lmkcli.progress import Report
from lmkcli.recipe import EncoderConfig, RecipeOptions
from lmkcli.store.outputs import write_once

_OWN, _THEIRS = "lmkcli.exchange.sentence_modules", "sentence_transformers.models"
_MODES = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
_ALL_MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens",
              "weightedmean_tokens", "lasttoken")  # fmt: skip
_SUFFIXES = {".json", ".jinja", ".model", ".py", ".safetensors", ".txt"}
_WRITTEN = {"modules.json", "config_sentence_transformers.json", manifest.NAME}
_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")  # what configurations call the states' width


class ExportedModel(NamedTuple):
    """The classes of an exported folder, and whether loading them takes trust_remote_code."""

    modules: list[str]
    trust_remote_code: bool
    late: bool = False

    @property
    def loaded_by(self) -> str:
        """The Python expression that loads it."""
        trust = ", trust_remote_code=True" if self.trust_remote_code else ""
        if self.late:
            return "pylate.models.ColBERT(folder)"
        return f"SentenceTransformer(folder{trust})"


class _Module(NamedTuple):
    """One line of modules.json; `config` is written into `path`, or `weights` copied to it."""

    type: str
    path: str
    config: dict[str, Any] | None = None
    weights: Path | None = None


def resolve_whole(options: RecipeOptions, offline: bool = False) -> Resolved:
    """The recipe of a model that is to be trained or exported: its inputs are texts as long as they are.

    The window that is asked for, else the model's own, is what the new folder will declare. UsageError
    for one that a folder cannot: cls, mean and last are sentence-transformers' own modules, which read
    no windows, and what comes after pooling is applied to a window there, not to their average.
    """
    resolved = resolve(replace(options, window="full"), offline)
    doc, folder = resolved.recipe.doc, resolved.folder
    asked = read_window(options.window) if options.window is not None else ""
    able = is_placed(resolved) and not folder.modules
    if asked not in ("", "full") and not (able and asked.isdigit()):
        raise UsageError(
            f"--window {asked} is nothing that a folder declares: write a number of positions, with "
            "--pool lmk, multicls or mean@k and no modules after it; elsewhere lmk encode takes --window"
        )
    if asked.isdigit() and int(asked) > doc.max_length:
        raise UsageError(f"--window {asked} is longer than --max-length {doc.max_length}")
    window = (asked or folder.window) if able else ""
    declared = window if window.isdigit() and int(window) <= doc.max_length else ""
    return resolved._replace(folder=replace(folder, window=declared))


def export_model(resolved: Resolved, folder: Path, report: Report = Report()) -> ExportedModel:
    """Write `folder`, whole or not at all; UsageError for a recipe that has no place in one."""
    recipe, source = resolved.recipe, resolved.folder
    check_exportable(resolved)
    facts = {**manifest.environment(report.call), "from": source.name, "models": recipe.located()}
    identity = {"to": "sentence-transformers", "recipe": recipe.identity()}
    identity |= {"window": source.window} if source.window else {}
    write_once(
        folder,
        Manifest("export", identity, facts=facts),
        lambda growing: write_files(resolved, growing),
    )
    return exported(resolved)


def exported(resolved: Resolved) -> ExportedModel:
    """What a folder of this recipe names."""
    recipe = resolved.recipe
    modules = list(_modules(recipe.doc, recipe.query, resolved.folder))
    own = any(module.type.startswith(_OWN) for module in modules)
    trust = own or recipe.doc.trust_remote_code
    late = recipe.doc.unit == "token"
    return ExportedModel([module.type for module in modules], trust, late)


def write_files(resolved: Resolved, growing: Path) -> None:
    """The files of the model, and those that make it a sentence-transformers folder."""
    recipe, source = resolved.recipe, resolved.folder
    modules = list(_modules(recipe.doc, recipe.query, source))
    for file in model_files(source.encoder):
        shutil.copyfile(file, growing / file.name)
    if source.latent is not None and recipe.doc.pool == "latent":
        shutil.copytree(source.latent, growing / source.latent.name)
    for module in modules:
        _write_module(growing, module)
    _write(growing / "modules.json", _listed(modules))
    settings = _settings(recipe.doc, recipe.query)
    if recipe.doc.unit == "token":
        late = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim"}
        settings |= late | late_settings(recipe, source)
    _write(growing / "config_sentence_transformers.json", settings)


def module_folders(source: ModelFolder) -> list[str]:
    """Where an exported folder keeps the weights of each sentence module."""
    return [f"{number}_{module.kind}" for number, module in enumerate(source.modules, start=2)]


def projection_folders(source: ModelFolder) -> list[str]:
    """Where a late-interaction folder keeps the weights of what acts on states."""
    return [f"{number}_{module.kind}" for number, module in enumerate(source.projections, start=1)]


def check_exportable(resolved: Resolved) -> None:
    """UsageError for a recipe that has no place in a sentence-transformers folder."""
    side, source = resolved.recipe.doc, resolved.folder
    if source.late:
        raise UsageError(
            f"{source.name} makes a vector of every token, and sentence-transformers makes one of a text; "
            "export its vectors instead"
        )
    if run_by_lmk(resolved) and source.modules:
        raise UsageError(
            f"{source.name} has modules after it, and no folder can say that lmk runs them; export its "
            "vectors instead"
        )
    if side.unit != "doc" or side.window != "full" or side.extend:
        raise UsageError(
            "sentence-transformers makes one vector of one input: several vectors a document, windows "
            "and extended positions have no place in its folders"
        )


def check_trainable(resolved: Resolved) -> None:
    """UsageError for a recipe that no folder can declare: those of sentence-transformers, and PyLate's."""
    if resolved.recipe.doc.unit != "token":
        check_exportable(resolved)


def run_by_lmk(resolved: Resolved) -> bool:
    """Whether sentence-transformers has no modules for it, so that lmk is one: latent, TITE, M2-BERT."""
    return resolved.folder.kind != "transformer" or resolved.recipe.doc.pool == "latent"


def is_placed(resolved: Resolved) -> bool:
    """Whether sentence-transformers needs lmk's own modules, which place tokens and mark them."""
    return not run_by_lmk(resolved) and not _is_theirs(resolved.recipe.doc)


def _is_theirs(doc: EncoderConfig) -> bool:
    """Whether the pooling is one of sentence-transformers' own."""
    return doc.unit == "token" or (doc.pool in _MODES and not doc.append_eos)


def _modules(doc: EncoderConfig, query: EncoderConfig, source: ModelFolder) -> Iterator[_Module]:
    settings: dict[str, Any] = {
        "max_seq_length": doc.max_length,
        "do_lower_case": source.lower_case,
    }
    if query.max_length != doc.max_length:
        settings["query_length"] = query.max_length
    if doc.unit == "token":
        yield _Module(f"{_THEIRS}.Transformer", "", settings)
        places = zip(source.projections, projection_folders(source), strict=True)
        for module, path in places:
            yield _Module(f"pylate.models.{module.kind}.{module.kind}", path, weights=module.folder)
        return
    if source.kind != "transformer" or doc.pool == "latent":
        yield _Module(f"{_OWN}.LmkEncoder", "", settings)
    elif _is_theirs(doc):
        yield _Module(f"{_THEIRS}.Transformer", "", settings)
        yield _Module(f"{_THEIRS}.Pooling", "1_Pooling", _pooling(doc, source))
    else:
        settings |= {
            "pool": doc.pool,
            "gran": doc.gran,
            "include_prompt": doc.include_prompt,
            "append_eos": doc.append_eos,
        } | ({"window": source.window} if source.window else {})
        yield _Module(f"{_OWN}.PlacedTransformer", "", settings)
        yield _Module(f"{_OWN}.MarkedPooling", "1_MarkedPooling", {})
    for module, path in zip(source.modules, module_folders(source), strict=True):
        yield _Module(f"{_THEIRS}.{module.kind}", path, weights=module.folder)
    if doc.normalize:
        yield _Module(f"{_THEIRS}.Normalize", f"{len(source.modules) + 2}_Normalize", {})


def _pooling(doc: EncoderConfig, source: ModelFolder) -> dict[str, Any]:
    """The old spelling, which every version reads. Only mean looks at whether prompts are included."""
    return {
        "word_embedding_dimension": _width(source),
        **{f"pooling_mode_{mode}": mode == _MODES[doc.pool] for mode in _ALL_MODES},
        "include_prompt": doc.include_prompt or doc.pool != "mean",
    }


def _width(source: ModelFolder) -> int:
    config = read_json(source.encoder / "config.json")
    config = config.get("text_config") or config
    width = next((config[name] for name in _WIDTHS if name in config), None)
    if width is None:
        raise DataError(
            f"{source.encoder}/config.json does not say how wide the states are: none of "
            f"{', '.join(_WIDTHS)} is in it"
        )
    return int(width)


def model_files(encoder: Path) -> Iterator[Path]:
    """What is taken over: configuration, tokenizer, code, weights (pickled ones only without others)."""
    files = [file for file in sorted(encoder.iterdir()) if file.is_file()]
    safe = any(file.suffix == ".safetensors" for file in files)
    for file in files:
        rewritten = file.name in _WRITTEN or file.match("sentence_*_config.json")
        weights = (file.match("pytorch_model*.bin") or file.name == "model.bin") and not safe
        if not rewritten and (file.suffix in _SUFFIXES or weights):
            yield file


def _write_module(growing: Path, module: _Module) -> None:
    if module.weights is not None:
        shutil.copytree(module.weights, growing / module.path)
        return
    (growing / module.path).mkdir(exist_ok=True)
    name = "config.json" if module.path else "sentence_bert_config.json"
    _write(growing / module.path / name, module.config)


def _listed(modules: list[_Module]) -> list[dict[str, Any]]:
    return [
        {"idx": number, "name": str(number), "path": module.path, "type": module.type}
        for number, module in enumerate(modules)
    ]


def _settings(doc: EncoderConfig, query: EncoderConfig) -> dict[str, Any]:
    return {
        "model_type": "SentenceTransformer",
        "prompts": {"query": query.prompt, "document": doc.prompt},
        "default_prompt_name": None,
        "similarity_fn_name": doc.similarity,
    }


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
