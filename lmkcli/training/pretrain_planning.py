"""Planning a pre-training: what was asked, a new model where one is made, and the texts."""

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
from lmkcli.training.asking import AskedTexts, Beginning
from lmkcli.training.corpus import Corpus, in_blocks, read_corpus
from lmkcli.training.masked_texts import TextLayout
from lmkcli.training.placing import TrainingSide
from lmkcli.training.pretrain_job import CreatedModel, PretrainJob
from lmkcli.training.settings import PretrainSettings


def plan(
    sources: Sequence[str], beginning: Beginning, settings: PretrainSettings, offline: bool = False
) -> PretrainJob:
    """Reads everything but the model; UsageError and DataError for what cannot be pre-trained."""
    return planned(
        asking.ask_texts(sources, beginning, settings, offline), beginning, settings, offline
    )


def planned(
    asked: AskedTexts, beginning: Beginning, settings: PretrainSettings, offline: bool = False
) -> PretrainJob:
    """The pre-training of what was asked: its model, if that is a new one, and its texts, tokenized."""
    options, created = beginning.first, _created(beginning, settings.seed, offline)
    if created:
        options = replace(options, model=created.folder.name)
    resolved = asked.resolved or resolve_whole(options, offline)
    check_exportable(resolved)
    tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    layout = _layout(resolved, tokenizer, beginning.grans, settings)
    corpus = read_corpus(asked.sources, options, tokenizer, offline)
    if settings.blocks:
        corpus = _in_blocks(corpus, layout)
    settings = settings.counted(len(corpus))
    if created:
        named = f"{beginning.architecture}"
        resolved = resolved._replace(recipe=resolved.recipe.moved(named))
    return PretrainJob(resolved, layout, tokenizer, asked.sources, corpus, settings, created)


def _created(beginning: Beginning, seed: int, offline: bool) -> CreatedModel | None:
    """The folder of a new model; None where one that is there goes on."""
    if not beginning.architecture:
        return None
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
    grans = asking.check_layout(resolved, grans, settings)
    return TextLayout(TrainingSide.of(doc, tokenizer, grans), grans, settings.official_quirks)


def _in_blocks(corpus: Corpus, layout: TextLayout) -> Corpus:
    """Texts joined by the token between chunks, unless landmarks are that token."""
    placer = layout.side.placers[0]
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
