"""A pre-training job: model, texts and settings, planned from a request.

Planning creates a new model if requested and reads the texts. `loop.training_run` runs the job.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lmkcli import catalog
from lmkcli.artifact.kinds import ModelIdentity
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolution import ResolvedRecipe
from lmkcli.encoding.sentence_folder import check_exportable, exported, resolve_whole
from lmkcli.models.devices import TORCH_DTYPES
from lmkcli.models.forward import Model, ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.model_files import read_architecture
from lmkcli.models.model_folder import HEADS
from lmkcli.models.new_model import NewModel, create
from lmkcli.models.prediction_head import released_head
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.plugins.pretrain.corpus import Corpus, in_blocks, read_corpus
from lmkcli.plugins.pretrain.held_out import MaskedAccuracy
from lmkcli.plugins.pretrain.masked_batches import MaskedBatches, TextLayout
from lmkcli.plugins.pretrain.masking import Masking, MaskingVocabulary
from lmkcli.plugins.pretrain.pretext import (
    HeadOptions,
    Pretext,
    PretextStep,
    PretrainBatch,
    Pretraining,
)
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.plugins.pretrain.pretraining_request import (
    BaseModelSpec,
    ResolvedPretraining,
    check_layout,
    check_sources,
    joined_sources,
    resolve_pretraining,
)
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.system.atomic import temporary_folder
from lmkcli.training.data.batches import Feed
from lmkcli.training.data.inputs import SHOWN, PlacedText, TrainingSide, placed_text
from lmkcli.training.data.sampling import Sampling
from lmkcli.training.data.sources import Source, describe_sources, parse_source
from lmkcli.training.loop import checkpoints
from lmkcli.training.loop.development import Dev
from lmkcli.training.loop.trainer import TrainingTask
from lmkcli.training.loop.training_run import MACHINE, Start, budget
from lmkcli.training.step import trainable
from lmkcli.training.step.gradients import enable_gradient_checkpointing
from lmkcli.training.training_record import JobRecord, TrainingRecord

_PROBE = 2  # number of texts in the forward pass that finds unused weights


class CreatedModel(NamedTuple):
    """A new model: its temporary folder, its identity, and notes on its weights."""

    folder: TemporaryDirectory[str]
    identity: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class PretrainJob:
    """The model, texts, objective and settings of a pre-training."""

    resolved: ResolvedRecipe
    layout: TextLayout
    tokenizer: Tokenizer
    sources: tuple[Source, ...]
    corpus: Corpus
    settings: PretrainSettings
    created: CreatedModel | None = None  # the new model; None if an existing model is trained
    dev: Dev | None = None  # held-out texts

    @cached_property
    def kind(self) -> Any:
        """The objective's class."""
        return catalog.PRETEXTS.load(self.settings.objective)

    @property
    def masking(self) -> Masking:
        """The objective's masking, overridden by the settings."""
        settings = self.settings
        masking: Masking = self.kind.masking
        overrides: dict[str, Any] = {
            "share": settings.mask,
            "whole_words": settings.whole_words,
            "decoder_share": settings.decoder_mask,
            "decoder_rows": settings.mask_pool,
        }
        return replace(masking, **{name: v for name, v in overrides.items() if v is not None})

    @property
    def identity(self) -> ModelIdentity:
        """The values that a resumed training must share with the original."""
        recipe = self.resolved.recipe
        if self.created:  # the settings contain the seed, which determines the random weights
            recipe = Recipe(replace(recipe.doc, weights=""), replace(recipe.query, weights=""))
        return ModelIdentity(
            recipe=recipe,
            granularities=list(self.layout.grans),
            data=self.corpus.digest,
            sources=[{"weight": source.weight} for source in self.sources],
            settings={k: v for k, v in asdict(self.settings).items() if k not in MACHINE},
            new=self.created.identity if self.created else {},
            dev=self.dev.identity if self.dev else {},
        )

    def __len__(self) -> int:
        """Return the number of texts or blocks."""
        return len(self.corpus)

    def without_scoring(self) -> "PretrainJob":
        """Return the same job without checkpoints and held-out texts."""
        return replace(self, settings=self.settings.without_checkpoints(), dev=None)

    def held_out(
        self, names: Sequence[str], every: int, mask: float | None, offline: bool
    ) -> "PretrainJob":
        """Return the same job with an accuracy on other texts, every so many steps (0: a tenth of all).

        `mask` is the share of their masked tokens; None stands for that of the training.
        """
        sources = tuple(map(parse_source, names))
        check_sources(sources)
        masking = self.masking if mask is None else replace(self.masking, share=mask)
        options = RecipeOptions(model=str(self.resolved.folder.path))
        texts = {}
        for source in sources:
            corpus = read_corpus([source], options, self.tokenizer, offline)
            joined = joined_sources([source], self.settings)
            if any(joined):
                corpus = _in_blocks(corpus, self.layout, joined)
            texts[source.name] = MaskedBatches(
                corpus,
                self.layout,
                masking,
                MaskingVocabulary.of(self.tokenizer),
                self.settings.seed,
            )
        scorer = MaskedAccuracy(texts, self.settings.batch_tokens)
        return replace(self, dev=Dev(scorer, every or max(1, self.settings.steps // 10)))

    def shown(self, batch: PretrainBatch) -> list[list[PlacedText]]:
        """Return the first texts of a batch, masked as the encoder reads them."""
        gran = ",".join(self.layout.grans)
        masked = [text.input._replace(ids=text.shown) for text in batch.texts[:SHOWN]]
        return [[placed_text([one], "text", gran, self.tokenizer)] for one in masked]

    def feed(self, start: Start) -> Feed[MaskedBatches]:
        """Return the batches of one process."""
        settings, vocabulary = self.settings, MaskingVocabulary.of(self.tokenizer)
        place = MaskedBatches(
            self.corpus, self.layout, self.masking, vocabulary, settings.seed, start.shard
        )
        weights = [source.weight for source in self.sources]
        return Feed(self.corpus, weights, Sampling.of(settings), place, settings.steps, start.step)

    def task(self, start: Start) -> TrainingTask:
        """Open the encoder and the heads, and return the task of pre-training."""
        feed = self.feed(start)
        model = self._model()
        heads = self._heads(model, start)
        module = Pretraining(model, heads)
        trainable.freeze_unused(module, module(next(self.feed(Start()).batches()).texts[:_PROBE]))
        step = PretextStep(heads, budget(model, self.settings, start.note, parts=2))
        return TrainingTask(module, step, feed, self.settings, self.dev)

    def record(self, history: list[dict[str, float]]) -> JobRecord:
        """Return the entries of training.json that each kind of job writes in its own way."""
        record: JobRecord = {
            "base": self.resolved.recipe.doc.model,
            "objective": self.settings.objective,
            "sources": describe_sources(self.sources, self.corpus.sources),
            "loaded_by": exported(self.resolved).loaded_by,
        }
        if self.dev:
            record["dev"] = self.dev.record(history)
        return record

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], record: TrainingRecord
    ) -> None:
        """Write the encoder as a model folder, and the heads into a subfolder of it."""
        checkpoints.publish(folder, self.resolved, module, learned, record)

    def _model(self) -> Model:
        settings, doc = self.settings, self.resolved.recipe.doc
        options = ModelOptions(
            settings.dtype, settings.device, doc.trust_remote_code, doc.extend, doc.pad_to_max, True
        )
        torch.manual_seed(settings.seed)
        model = open_forward(doc, self.resolved.folder, options).model
        if settings.gradient_checkpointing:
            enable_gradient_checkpointing(model.module)
        return model

    def _heads(self, model: Model, start: Start) -> Pretext:
        """Build the objective's heads and load the weights that the model's folder has for them."""
        settings = self.settings
        torch.manual_seed(settings.seed)
        heads: Any = self.kind(
            model,
            HeadOptions(
                settings.query_stream == "raw",
                self.resolved.recipe.doc.max_length,
                self.masking.decoder_share,
            ),
        )
        initial = heads.state_dict()
        saved = _saved_heads(self.resolved)
        fitting = {k: v for k, v in saved.items() if k in initial and initial[k].shape == v.shape}
        heads.load_state_dict(initial | fitting)
        if not start.step and not self.created:
            start.note(_heads_note(initial, fitting, self.resolved.folder.name))
        placed: Pretext = heads.to(model.device, TORCH_DTYPES[model.dtype])
        return placed


def _saved_heads(resolved: ResolvedRecipe) -> dict[str, Tensor]:
    """Return the head weights in the model's folder, under the names of our heads."""
    file = resolved.folder.path / HEADS / "model.safetensors"
    saved = load_file(file) if file.is_file() else {}
    language = released_head(resolved.folder)
    return {f"language.{name}": value for name, value in language.items()} | saved


def _heads_note(initial: dict[str, Tensor], fitting: dict[str, Tensor], name: str) -> str:
    """Return a note on the initial weights of the heads."""
    missing = sorted({key.split(".")[0] for key in initial.keys() - fitting.keys()})
    if not missing:
        return f"all heads start with the weights of {name}"
    heads = ", ".join(missing)
    return (
        f"randomly initialised heads: {heads} "
        f"({len(fitting)} of {len(initial)} tensors come from {name})"
    )


def plan(
    sources: Sequence[str],
    base_model: BaseModelSpec,
    settings: PretrainSettings,
    offline: bool = False,
) -> PretrainJob:
    """Read everything except the model's weights. Raises UsageError and DataError for invalid requests."""
    return planned(
        resolve_pretraining(sources, base_model, settings, offline),
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
    joined = joined_sources(request.sources, settings)
    grans = check_layout(resolved, base_model.grans, settings, any(joined))
    side = TrainingSide.of(resolved.recipe.doc, tokenizer, grans)
    layout = TextLayout(side, grans, settings.official_quirks)
    corpus = read_corpus(request.sources, options, tokenizer, offline)
    if any(joined):
        corpus = _in_blocks(corpus, layout, joined)
    settings = settings.with_steps(len(corpus))
    if created:
        resolved = resolved._replace(recipe=resolved.recipe.moved(f"{base_model.architecture}"))
    return PretrainJob(resolved, layout, tokenizer, request.sources, corpus, settings, created)


def _created(base_model: BaseModelSpec, seed: int, offline: bool) -> CreatedModel | None:
    """Create the folder of a new model. Return None if the training continues an existing model."""
    if not base_model.architecture:
        return None
    folder = temporary_folder("new")
    new = NewModel(
        base_model.architecture, base_model.tokenizer, base_model.init_from, seed, offline
    )
    notes = create(new, Path(folder.name))
    identity: dict[str, Any] = {"architecture": read_architecture(new.architecture)}
    if new.init_from:
        identity["init_from"] = read_model(new.init_from, None, offline).weights_digest
    return CreatedModel(folder, identity, notes)


def _in_blocks(corpus: Corpus, layout: TextLayout, joined: Sequence[bool]) -> Corpus:
    """Cut the joined texts of some sources into blocks.

    The separator token joins texts, unless the pooler marks it.
    """
    placer = layout.side.placers[0]
    separator = None if placer.pooler.marks_separator else placer.special.separator
    if not placer.special.suffix:
        separator = None
    return in_blocks(corpus, layout.kept(placer.limit), separator, joined)


def describe_pretraining(job: PretrainJob) -> Iterator[str]:
    """Yield lines that describe the resolved model, settings and texts."""
    doc, settings, masking = job.resolved.recipe.doc, job.settings, job.masking
    grans = f" gran {' '.join(job.layout.grans)}" if job.layout.grans else ""
    masked = "words" if masking.whole_words else "tokens"
    yield (
        f"{doc.model}: {settings.objective}, pool {doc.pool}{grans}, max length {doc.max_length}, "
        f"{masking.share:.0%} of {masked} hidden"
    )
    for number, source in enumerate(job.sources):
        rows = job.corpus.sources == number
        tokens = int(job.corpus.lengths[rows].sum())
        cut = int((job.corpus.lengths[rows] > job.layout.kept(doc.max_length)).sum())
        block = job.corpus.block_of(number)
        form = f"blocks of {block} tokens" if block else f"texts ({cut:,} are cut)"
        yield f"{source.name}: {int(rows.sum()):,} {form}, {tokens:,} tokens"
    if job.corpus.empty:
        yield f"{job.corpus.empty:,} texts without a token are left out"
    yield from job.created.notes if job.created else job.resolved.notes
