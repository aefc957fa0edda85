"""Planning a pre-training: resolve the request, create a new model if requested, and read the texts."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmkcli.encoding.resolving import Resolved
from lmkcli.encoding.sentence_folder import check_exportable, resolve_whole
from lmkcli.models.creating import NewModel, create
from lmkcli.models.files import read_architecture
from lmkcli.models.finding import read_model
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.pooling.landmark import Landmark
from lmkcli.training import asking
from lmkcli.training.asking import BaseModelSpec, ResolvedPretraining
from lmkcli.training.corpus import Corpus, in_blocks, read_corpus
from lmkcli.training.masked_texts import TextLayout
from lmkcli.training.placing import TrainingSide
from lmkcli.training.pretrain_job import CreatedModel, PretrainJob
from lmkcli.training.settings import PretrainSettings


def plan(
    sources: Sequence[str],
    base_model: BaseModelSpec,
    settings: PretrainSettings,
    offline: bool = False,
) -> PretrainJob:
    """Read everything except the model's weights. Raises UsageError and DataError for invalid requests."""
    return planned(
        asking.resolve_pretraining(sources, base_model, settings, offline),
        base_model,
        settings,
        offline,
    )


def planned(
    request: ResolvedPretraining,
    base_model: BaseModelSpec,
    settings: PretrainSettings,
    offline: bool = False,
) -> PretrainJob:
    """Return the job of a resolved request: create the model if it is new, and tokenize the texts."""
    options, created = base_model.first, _created(base_model, settings.seed, offline)
    if created:
        options = replace(options, model=created.folder.name)
    resolved = request.resolved or resolve_whole(options, offline)
    check_exportable(resolved)
    tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    layout = _layout(resolved, tokenizer, base_model.grans, settings)
    corpus = read_corpus(request.sources, options, tokenizer, offline)
    if settings.blocks:
        corpus = _in_blocks(corpus, layout)
    settings = settings.with_steps(len(corpus))
    if created:
        resolved = resolved._replace(recipe=resolved.recipe.moved(f"{base_model.architecture}"))
    return PretrainJob(resolved, layout, tokenizer, request.sources, corpus, settings, created)


def _created(base_model: BaseModelSpec, seed: int, offline: bool) -> CreatedModel | None:
    """Create the folder of a new model. Return None if the training continues an existing model."""
    if not base_model.architecture:
        return None
    folder = tempfile.TemporaryDirectory(prefix="lmk-new-")
    new = NewModel(
        base_model.architecture, base_model.tokenizer, base_model.init_from, seed, offline
    )
    notes = create(new, Path(folder.name))
    identity: dict[str, Any] = {"architecture": read_architecture(new.architecture)}
    if new.init_from:
        identity["init_from"] = read_model(new.init_from, None, offline).weights_digest
    return CreatedModel(folder, identity, notes)


def _layout(
    resolved: Resolved, tokenizer: Tokenizer, grans: tuple[str, ...], settings: PretrainSettings
) -> TextLayout:
    doc = resolved.recipe.doc
    grans = asking.check_layout(resolved, grans, settings)
    return TextLayout(TrainingSide.of(doc, tokenizer, grans), grans, settings.official_quirks)


def _in_blocks(corpus: Corpus, layout: TextLayout) -> Corpus:
    """Cut the joined texts into blocks. The separator token joins texts, except with landmark pooling."""
    placer = layout.side.placers[0]
    separator = None if isinstance(placer.pooler, Landmark) else placer.special.separator
    if not placer.special.suffix:
        separator = None
    return in_blocks(corpus, layout.kept(placer.limit), separator)


def describe_pretraining(job: PretrainJob) -> Iterator[str]:
    """Yield lines that describe the resolved model, settings and texts."""
    doc, settings, masking = job.resolved.recipe.doc, job.settings, job.masking
    grans = f" gran {' '.join(job.layout.grans)}" if job.layout.grans else ""
    masked = "words" if masking.whole_words else "tokens"
    yield (
        f"{doc.model}: {settings.objective}, pool {doc.pool}{grans}, max length {doc.max_length}, "
        f"{masking.share:.0%} of {masked} hidden"
    )
    blocks = job.corpus.block
    for number, source in enumerate(job.sources):
        rows = job.corpus.sources == number
        tokens = int(job.corpus.lengths[rows].sum())
        cut = int((job.corpus.lengths[rows] > job.layout.kept(doc.max_length)).sum())
        form = f"blocks of {blocks} tokens" if blocks else f"texts ({cut:,} are cut)"
        yield f"{source.name}: {int(rows.sum()):,} {form}, {tokens:,} tokens"
    if job.corpus.empty:
        yield f"{job.corpus.empty:,} texts without a token are left out"
    yield from job.created.notes if job.created else job.resolved.notes
