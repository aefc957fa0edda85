"""Planning a pre-training: everything read and checked that needs no weights, but a new model's."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli import catalog
from lmkcli.encoding.asking import granularity
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.encoding.sentence_folder import check_exportable
from lmkcli.errors import UsageError
from lmkcli.models.creating import NewModel, create, read_architecture
from lmkcli.models.finding import read_model
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.pooling.landmark import Landmark
from lmkcli.recipe import RecipeOptions
from lmkcli.training.corpus import Corpus, check_sources, in_blocks, read_corpus
from lmkcli.training.masked_texts import TextLayout
from lmkcli.training.placing import TrainingSide
from lmkcli.training.pretrain_job import CreatedModel, PretrainJob
from lmkcli.training.running import check_installed
from lmkcli.training.settings import PretrainSettings
from lmkcli.training.sources import parse_source

_CHOICES = ("mask", "whole_words", "decoder_mask", "mask_pool", "query_stream")


class Beginning(NamedTuple):
    """Whose encoder is trained on: a model's, or a new one of an architecture."""

    options: RecipeOptions
    architecture: Path | None = None
    tokenizer: str = ""
    init_from: str = ""


def plan(
    sources: Sequence[str], beginning: Beginning, settings: PretrainSettings, offline: bool = False
) -> PretrainJob:
    """Reads everything but the model; UsageError and DataError for what cannot be pre-trained."""
    check_installed(settings, "lmk pretrain")
    _check_choices(settings)
    parsed = tuple(parse_source(each) for each in sources)
    check_sources(parsed)
    grans = tuple(filter(None, (beginning.options.gran or "").split(",")))
    options = replace(beginning.options, gran=grans[0] if grans else None)
    created = _created(beginning, settings.seed, offline)
    options = replace(options, model=created.folder.name) if created else options
    resolved = resolve(options, offline)
    check_exportable(resolved)
    tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    layout = _layout(resolved, tokenizer, grans, settings)
    corpus = read_corpus(parsed, options, tokenizer, offline)
    if settings.blocks:
        corpus = _in_blocks(corpus, layout)
    settings = settings.counted(len(corpus))
    if created:
        named = f"{beginning.architecture}"
        resolved = resolved._replace(recipe=resolved.recipe.moved(named))
    return PretrainJob(resolved, layout, tokenizer, parsed, corpus, settings, created)


def _check_choices(settings: PretrainSettings) -> None:
    kind = catalog.load(catalog.PRETEXTS, settings.objective, "objective")
    given = [name for name in _CHOICES if getattr(settings, name) is not None]
    if useless := [name for name in given if name not in kind.choices]:
        flag = useless[0].replace("_", "-")
        raise UsageError(f"--{flag} has no effect with --objective {settings.objective}; drop it")


def _created(beginning: Beginning, seed: int, offline: bool) -> CreatedModel | None:
    """The folder of a new model; None where one that is there goes on."""
    if not beginning.architecture:
        if beginning.tokenizer or beginning.init_from:
            raise UsageError(
                "--tokenizer and --init-from are for a new model, of an --architecture"
            )
        if not beginning.options.model:
            raise UsageError(
                "-m/--model is missing, or --architecture with --tokenizer for a new one"
            )
        return None
    if beginning.options.model or not beginning.tokenizer:
        raise UsageError(
            "--architecture makes a new model: give --tokenizer with it, and no --model"
        )
    folder = tempfile.TemporaryDirectory(prefix="lmk-new-")
    new = NewModel(beginning.architecture, beginning.tokenizer, beginning.init_from, seed, offline)
    notes = create(new, Path(folder.name))
    identity: dict[str, Any] = {"architecture": read_architecture(new.architecture)}
    if new.init_from:
        identity["init_from"] = read_model(new.init_from, None, offline).weights_digest
    return CreatedModel(folder, identity, notes)


def _layout(
    resolved: Resolved, tokenizer: Tokenizer, grans: tuple[str, ...], settings: PretrainSettings
) -> TextLayout:
    doc = resolved.recipe.doc
    grans = tuple(granularity(doc.pool, each) for each in grans or filter(None, [doc.gran]))
    if len(grans) > 1 and not all(gran.isdigit() for gran in grans):
        raise UsageError(
            f"--gran {','.join(grans)}: of several lengths one is drawn for each chunk, so that all "
            "must be numbers of tokens"
        )
    if settings.official_quirks and doc.pool != "lmk":
        raise UsageError(f"--official-quirks has no effect with --pool {doc.pool}; drop it")
    return TextLayout(TrainingSide.of(doc, tokenizer, grans), grans, settings.official_quirks)


def _in_blocks(corpus: Corpus, layout: TextLayout) -> Corpus:
    """Texts joined by the token between chunks, unless landmarks are that token."""
    placer = layout.side.placers[0]
    if placer.gran and not placer.gran.isdigit():
        raise UsageError(f"--blocks joins texts, which --gran {placer.gran} cannot cut; drop one")
    separator = None if isinstance(placer.pooler, Landmark) else placer.special.separator
    if not placer.special.suffix:
        separator = None
    return in_blocks(corpus, layout.kept(placer.limit), separator)


def describe_pretraining(job: PretrainJob) -> Iterator[str]:
    """What was found and resolved, in lines for people."""
    doc, settings, masking = job.resolved.recipe.doc, job.settings, job.masking
    grans = f" gran {' '.join(job.layout.grans)}" if job.layout.grans else ""
    what = "words" if masking.whole_words else "tokens"
    yield (
        f"{doc.model}: {settings.objective}, pool {doc.pool}{grans}, max length {doc.max_length}, "
        f"{masking.share:.0%} of {what} hidden"
    )
    blocks = job.corpus.block
    for number, source in enumerate(job.sources):
        mine = job.corpus.sources == number
        tokens = int(job.corpus.lengths[mine].sum())
        cut = int((job.corpus.lengths[mine] > job.layout.kept(doc.max_length)).sum())
        form = f"blocks of {blocks} tokens" if blocks else f"texts ({cut:,} are cut)"
        yield f"{source.name}: {int(mine.sum()):,} {form}, {tokens:,} tokens"
    if job.corpus.empty:
        yield f"{job.corpus.empty:,} texts without a token are left out"
    yield from job.created.notes if job.created else job.resolved.notes
