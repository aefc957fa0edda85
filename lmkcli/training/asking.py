"""Asking: what can be said of a training before torch is loaded, so that a mistake is answered at once."""

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lmkcli import catalog, manifest
from lmkcli.data.collection import open_collection
from lmkcli.encoding.asking import granularity, open_pooler
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.encoding.sentence_folder import check_exportable, check_trainable, resolve_whole
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.models.files import read_architecture
from lmkcli.models.folder import kind_of
from lmkcli.recipe import ROTARY, Recipe, RecipeOptions
from lmkcli.training import board
from lmkcli.training.examples import Examples, Tally
from lmkcli.training.settings import (
    LoopSettings,
    PretrainSettings,
    TrainSettings,
    check_dims,
    read_dims,
)
from lmkcli.training.sources import Source, parse_source, read_sources

# What accelerate's launcher says of engines that cut one model up among processes.
_SHARDING = {"FSDP": "ACCELERATE_USE_FSDP", "DeepSpeed": "ACCELERATE_USE_DEEPSPEED"}


class Asked(NamedTuple):
    """A training as it was asked for. `read` are its examples, None where they are documents in chunks."""

    resolved: Resolved
    grans: tuple[str, ...]
    sources: tuple[Source, ...]
    read: tuple[Examples, list[Tally]] | None
    teacher: Resolved | None


class Beginning(NamedTuple):
    """Whose encoder is trained on: a model's, or a new one of an architecture."""

    options: RecipeOptions
    architecture: Path | None = None
    tokenizer: str = ""
    init_from: str = ""

    @property
    def grans(self) -> tuple[str, ...]:
        """The granularities that are named."""
        return _grans(self.options)

    @property
    def first(self) -> RecipeOptions:
        """The options with the first of them."""
        return _with_first(self.options)


class AskedTexts(NamedTuple):
    """A pre-training as it was asked for; `resolved` is None for a model that is still to be made."""

    sources: tuple[Source, ...]
    resolved: Resolved | None


def ask(
    sources: Sequence[str], options: RecipeOptions, settings: TrainSettings, offline: bool = False
) -> Asked:
    """Everything but objective and model, read; UsageError and DataError for what cannot be trained."""
    check_installed(settings, "lmk train")
    dims = read_dims(settings.dims)
    _check_targets(settings)
    parsed = tuple(parse_source(each) for each in sources)
    _check_positions(options)
    resolved = resolve_whole(_with_first(options), offline)
    doc = resolved.recipe.doc
    grans = tuple(granularity(doc.pool, each, doc.unit) for each in _grans(options))
    check_trainable(published(resolved))  # what has no model folder to end in
    check_dims(dims, resolved.folder.dimensions)
    _check_chunks(resolved, settings)
    teacher = _teacher(settings, resolved, offline)
    read = None if doc.unit == "chunk" else read_sources(parsed)
    if read:
        check_found(len(read[0]), parsed)
    _check_scores(settings.loss, read[0] if read else None, parsed)
    return Asked(resolved, grans, parsed, read, teacher)


def _teacher(settings: TrainSettings, student: Resolved, offline: bool) -> Resolved | None:
    """The model that is imitated, which reads what is longer than its inputs in windows."""
    if not settings.teacher:
        return None
    trust = student.recipe.doc.trust_remote_code
    found = resolve(RecipeOptions(model=settings.teacher, trust_remote_code=trust), offline)
    doc = found.recipe.doc
    if (doc.unit, student.recipe.doc.unit) != ("doc", "doc"):
        raise UsageError(
            f"--teacher {settings.teacher} gives one vector for each text: both models must make one "
            "(--unit doc)"
        )
    windows = replace(doc, window=str(doc.max_length))
    return found._replace(recipe=replace(found.recipe, doc=windows))


def ask_texts(
    sources: Sequence[str], beginning: Beginning, settings: PretrainSettings, offline: bool = False
) -> AskedTexts:
    """The same of a pre-training, whose texts are read later, by the tokenizer."""
    check_installed(settings, "lmk pretrain")
    parsed = tuple(parse_source(each) for each in sources)
    check_sources(parsed)
    _check_beginning(beginning)
    for name in (source.name for source in parsed):
        if not (Path(name) / manifest.NAME).is_file():  # not a tokens folder
            open_collection(name)
    if beginning.architecture:
        check_encoder(kind_of(read_architecture(beginning.architecture)), settings.objective)
        return AskedTexts(parsed, None)
    resolved = resolve_whole(beginning.first, offline)
    check_encoder(resolved.folder.kind, settings.objective)
    check_exportable(resolved)
    check_layout(resolved, beginning.grans, settings)
    return AskedTexts(parsed, resolved)


def check_installed(settings: LoopSettings, command: str) -> None:
    """MissingExtra or UsageError, with what to do, where a library of training is missing or unfit."""
    if find_spec("accelerate") is None:
        raise MissingExtra("accelerate", "train", command)
    for engine, variable in _SHARDING.items():
        if os.environ.get(variable) == "true":
            raise UsageError(
                f"{command} has the whole model in every process and does not run under {engine}; use "
                "torchrun, or a configuration of accelerate without it; --lora and "
                "--gradient-checkpointing save memory"
            )
    if settings.tensorboard:
        board.check_installed()


def _grans(options: RecipeOptions) -> tuple[str, ...]:
    return tuple(filter(None, (options.gran or "").split(",")))


def _with_first(options: RecipeOptions) -> RecipeOptions:
    return replace(options, gran=next(iter(_grans(options)), None))


def _check_positions(options: RecipeOptions) -> None:
    if options.extend in ROTARY:
        raise UsageError(
            f"--extend {options.extend} has no effect on training: rotary positions have no end; drop it, "
            "and say how far with --max-length"
        )


def _check_targets(settings: TrainSettings) -> None:
    """UsageError for vectors of a teacher that is not named, and for a weight beside nothing."""
    alone = "targets" in catalog.OBJECTIVES[settings.loss].needs
    if alone and not settings.teacher:
        raise UsageError(
            f"--loss {settings.loss} learns from a teacher's vectors; give --teacher MODEL"
        )
    if settings.teacher_weight != 1 and (alone or not settings.teacher):
        raise UsageError(
            "--teacher-weight weighs a teacher's vectors beside a loss: it needs --teacher, "
            "and has no effect with --loss prediction"
        )


def _check_scores(loss: str, examples: Examples | None, sources: Sequence[Source]) -> None:
    if "teacher" in catalog.OBJECTIVES[loss].needs and not (examples and examples.scored):
        raise DataError(
            f"--loss {loss} learns from teacher scores, and {_named(sources)} has none; "
            "give them (teacher=RUN, or pos_scores and neg_scores), or use --loss infonce"
        )


def check_found(count: int, sources: Sequence[Source]) -> None:
    """DataError where the sources hold no example."""
    if not count:
        raise DataError(f"{_named(sources)}: no example was found to train on")


def _named(sources: Sequence[Source]) -> str:
    return ", ".join(source.name for source in sources)


def _check_chunks(resolved: Resolved, settings: TrainSettings) -> None:
    doc, loss = resolved.recipe.doc, settings.loss
    if "sequence" in catalog.OBJECTIVES[loss].needs and doc.unit != "chunk":
        raise UsageError(
            f"--loss {loss} learns from documents in chunks; add --unit chunk --gran given, and give such "
            "documents"
        )
    if doc.unit == "chunk" and doc.gran != "given":
        raise UsageError("--unit chunk trains on the chunks that documents bring: add --gran given")
    if doc.unit == "chunk" and settings.skip_positions:
        raise UsageError("--skip-positions has no effect on documents in chunks; drop it")


def check_encoder(kind: str, objective: str) -> None:
    """UsageError where an encoder of this kind cannot learn by the objective."""
    needs = catalog.PRETEXTS[objective].needs
    if "tite" in needs and kind != "tite":
        raise UsageError(
            f"--objective {objective} is for TITE alone; for other encoders use mlm, retromae or dupmae"
        )
    if "tokens" in needs and kind == "tite":
        raise UsageError(
            f"--objective {objective} predicts tokens behind a mask, and TITE pools its tokens away; use "
            "tite, tite-mae or tite-bow"
        )


def _check_beginning(beginning: Beginning) -> None:
    """UsageError for a new model and an old one at once, or for neither."""
    if beginning.architecture:
        if beginning.options.model or not beginning.tokenizer:
            raise UsageError(
                "--architecture makes a new model: give --tokenizer with it, and no --model"
            )
        return
    if beginning.tokenizer or beginning.init_from:
        raise UsageError("--tokenizer and --init-from are for a new model, of an --architecture")
    if not beginning.options.model:
        raise UsageError("-m/--model is missing, or --architecture with --tokenizer for a new one")


def check_sources(sources: Sequence[Source]) -> None:
    """UsageError for options that mean nothing where there are neither queries nor judgements."""
    for source in sources:
        if source != Source(source.name, source.weight):
            raise UsageError(
                f"'{source.name}': of the options of a source, weight alone has an effect on "
                "pre-training; drop the others"
            )


def check_layout(
    resolved: Resolved, grans: tuple[str, ...], settings: PretrainSettings
) -> tuple[str, ...]:
    """The granularities in their canonical spelling; UsageError where texts cannot be cut so."""
    doc = resolved.recipe.doc
    grans = tuple(granularity(doc.pool, each) for each in grans or filter(None, [doc.gran]))
    if len(grans) > 1 and not all(gran.isdigit() for gran in grans):
        raise UsageError(
            f"--gran {','.join(grans)}: of several lengths one is drawn for each chunk, so that all "
            "must be numbers of tokens"
        )
    if settings.blocks and grans and not grans[0].isdigit():
        raise UsageError(f"--blocks joins texts, which --gran {grans[0]} cannot cut; drop one")
    if settings.official_quirks and doc.pool != "lmk":
        raise UsageError(f"--official-quirks has no effect with --pool {doc.pool}; drop it")
    return grans


def published(resolved: Resolved) -> Resolved:
    """What the folder will declare: a lengthened table of positions is its own, and units are no model's."""
    recipe = resolved.recipe
    doc, query = (replace(side, extend="") for side in (recipe.doc, recipe.query))
    if doc.unit == "chunk":  # which chunks there are is said when texts are encoded
        doc = replace(doc, unit="doc", gran=doc.gran if open_pooler(doc.pool).chunked else "")
    return resolved._replace(recipe=Recipe(doc, query))
