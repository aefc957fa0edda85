"""A pre-training job: model, texts and settings. pretrain_planning.py creates it, running.py runs it."""

import tempfile
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lmkcli import catalog
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolving import Resolved
from lmkcli.encoding.sentence_folder import exported
from lmkcli.models.devices import TORCH
from lmkcli.models.folder import HEADS
from lmkcli.models.forward import Model, ModelOptions
from lmkcli.models.language import released
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.training import checkpoints, parts
from lmkcli.training.corpus import Corpus
from lmkcli.training.feeding import Feed
from lmkcli.training.gradients import enable_gradient_checkpointing
from lmkcli.training.masked_texts import Masked, TextLayout
from lmkcli.training.masking import Masking, Vocabulary
from lmkcli.training.pretraining import (
    HeadOptions,
    Pretext,
    PretextStep,
    PretrainBatch,
    Pretraining,
)
from lmkcli.training.running import MACHINE, Start, budget
from lmkcli.training.sampling import Sampling
from lmkcli.training.settings import PretrainSettings
from lmkcli.training.showing import SHOWN, PlacedText, placed_text
from lmkcli.training.sources import Source, describe_sources
from lmkcli.training.trainer import TrainingTask

_PROBE = 2  # number of texts in the forward pass that finds unused weights


class CreatedModel(NamedTuple):
    """A new model: its temporary folder, its identity, and notes on its weights."""

    folder: tempfile.TemporaryDirectory[str]
    identity: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class PretrainJob:
    """The model, texts, objective and settings of a pre-training."""

    resolved: Resolved
    layout: TextLayout
    tokenizer: Tokenizer
    sources: tuple[Source, ...]
    corpus: Corpus
    settings: PretrainSettings
    created: CreatedModel | None = None  # the new model; None if an existing model is trained

    @cached_property
    def kind(self) -> Any:
        """The objective's class."""
        return catalog.load(catalog.PRETEXTS, self.settings.objective, "objective")

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
    def identity(self) -> dict[str, Any]:
        """The values that a resumed training must share with the original."""
        recipe = self.resolved.recipe.identity()
        if self.created:  # the settings contain the seed, which determines the random weights
            recipe = {side: config | {"weights": ""} for side, config in recipe.items()}
        return {
            "recipe": recipe,
            "granularities": list(self.layout.grans),
            "data": self.corpus.digest,
            "sources": [{"weight": source.weight} for source in self.sources],
            "settings": {k: v for k, v in asdict(self.settings).items() if k not in MACHINE},
            **({"new": self.created.identity} if self.created else {}),
        }

    def __len__(self) -> int:
        """Return the number of texts or blocks."""
        return len(self.corpus)

    def without_scoring(self) -> "PretrainJob":
        """Return the same job without checkpoints."""
        return replace(self, settings=self.settings.without_checkpoints())

    def shown(self, batch: PretrainBatch) -> list[list[PlacedText]]:
        """Return the first texts of a batch, masked as the encoder reads them."""
        gran = ",".join(self.layout.grans)
        masked = [text.input._replace(ids=text.shown) for text in batch.texts[:SHOWN]]
        return [[placed_text([one], "text", gran, self.tokenizer)] for one in masked]

    def feed(self, start: Start) -> Feed[Masked]:
        """Return the batches of one process."""
        settings, vocabulary = self.settings, Vocabulary.of(self.tokenizer)
        place = Masked(
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
        parts.freeze_unused(module, module(next(self.feed(Start()).batches()).texts[:_PROBE]))
        step = PretextStep(heads, budget(model, self.settings, start.note, parts=2))
        return TrainingTask(module, step, feed, self.settings)

    def facts(self, history: list[dict[str, float]]) -> dict[str, Any]:
        """Return the entries of training.json that are specific to pre-training."""
        return {
            "base": self.resolved.recipe.doc.model,
            "objective": self.settings.objective,
            "sources": describe_sources(self.sources, self.corpus.sources),
            "loaded_by": exported(self.resolved).loaded_by,
        }

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Write the encoder as a model folder, and the heads into a subfolder of it."""
        checkpoints.publish(folder, self.resolved, module, learned, facts)

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
        placed: Pretext = heads.to(model.device, TORCH[model.dtype])
        return placed


def _saved_heads(resolved: Resolved) -> dict[str, Tensor]:
    """Return the head weights in the model's folder, under the names of our heads."""
    file = resolved.folder.path / HEADS / "model.safetensors"
    if file.is_file():
        return load_file(file)
    return {f"language.{name}": value for name, value in released(resolved.folder).items()}


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
