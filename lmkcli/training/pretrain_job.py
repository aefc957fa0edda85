"""A pre-training: what is learned, from what, how. pretrain_planning.py makes it, running.py runs it."""

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
from lmkcli.training.gradients import recompute_states
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
from lmkcli.training.sources import Source, described
from lmkcli.training.trainer import Learning

_PROBE = 2  # texts whose gradients show which weights take part


class CreatedModel(NamedTuple):
    """A new model's folder, as long as it is needed; what it is made of; notes on its weights."""

    folder: tempfile.TemporaryDirectory[str]
    identity: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class PretrainJob:
    """What will be learned, from what, and how."""

    resolved: Resolved
    layout: TextLayout
    tokenizer: Tokenizer
    sources: tuple[Source, ...]
    corpus: Corpus
    settings: PretrainSettings
    created: CreatedModel | None = None  # a new model; None where one that is there goes on

    @cached_property
    def kind(self) -> Any:
        """The objective's class."""
        return catalog.load(catalog.PRETEXTS, self.settings.objective, "objective")

    @property
    def masking(self) -> Masking:
        """The objective's masking, as far as nothing else is asked for."""
        settings = self.settings
        masking: Masking = self.kind.masking
        asked: dict[str, Any] = {
            "share": settings.mask,
            "whole_words": settings.whole_words,
            "decoder_share": settings.decoder_mask,
            "decoder_rows": settings.mask_pool,
        }
        return replace(masking, **{name: v for name, v in asked.items() if v is not None})

    @property
    def identity(self) -> dict[str, Any]:
        """What two trainings must share to be one."""
        recipe = self.resolved.recipe.identity()
        if self.created:  # random weights follow from the seed
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
        """Texts, or blocks of them."""
        return len(self.corpus)

    def unscored(self) -> "PretrainJob":
        """The same without checkpoints."""
        return replace(self, settings=self.settings.unsaved())

    def shown(self, batch: PretrainBatch) -> list[list[PlacedText]]:
        """The first texts of a batch, as they are masked for the encoder."""
        gran = ",".join(self.layout.grans)
        masked = [text.input._replace(ids=text.shown) for text in batch.texts[:SHOWN]]
        return [[placed_text([one], "text", gran, self.tokenizer)] for one in masked]

    def feed(self, start: Start) -> Feed[Masked]:
        """The batches of one process."""
        settings, vocabulary = self.settings, Vocabulary.of(self.tokenizer)
        place = Masked(
            self.corpus, self.layout, self.masking, vocabulary, settings.seed, start.shard
        )
        weights = [source.weight for source in self.sources]
        return Feed(self.corpus, weights, Sampling.of(settings), place, settings.steps, start.step)

    def learning(self, start: Start) -> Learning:
        """The encoder and the heads, opened."""
        feed = self.feed(start)
        model = self._model()
        heads = self._heads(model, start)
        module = Pretraining(model, heads)
        parts.freeze_unused(module, module(next(self.feed(Start()).batches()).texts[:_PROBE]))
        step = PretextStep(heads, budget(model, self.settings, start.note, parts=2))
        return Learning(module, step, feed, self.settings)

    def facts(self, history: list[dict[str, float]]) -> dict[str, Any]:
        """What training.json says beside what it says of every training."""
        return {
            "base": self.resolved.recipe.doc.model,
            "objective": self.settings.objective,
            "sources": described(self.sources, self.corpus.sources),
            "loaded_by": exported(self.resolved).loaded_by,
        }

    def publish(
        self, folder: Path, module: nn.Module, learned: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """The encoder as a model folder, the heads in a folder of their own in it."""
        checkpoints.publish(folder, self.resolved, module, learned, facts)

    def _model(self) -> Model:
        settings, doc = self.settings, self.resolved.recipe.doc
        options = ModelOptions(
            settings.dtype, settings.device, doc.trust_remote_code, doc.extend, doc.pad_to_max, True
        )
        torch.manual_seed(settings.seed)
        model = open_forward(doc, self.resolved.folder, options).model
        if settings.gradient_checkpointing:
            recompute_states(model.module)
        return model

    def _heads(self, model: Model, start: Start) -> Pretext:
        """The objective's heads, with the weights that the model's folder has for them."""
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
        own = heads.state_dict()
        given = _known_heads(self.resolved)
        fitting = {k: v for k, v in given.items() if k in own and own[k].shape == v.shape}
        heads.load_state_dict(own | fitting)
        if not start.step and not self.created:
            start.note(_begun(own, fitting, self.resolved.folder.name))
        placed: Pretext = heads.to(model.device, TORCH[model.dtype])
        return placed


def _known_heads(resolved: Resolved) -> dict[str, Tensor]:
    """Weights for heads that the model's folder has, by the names of ours."""
    file = resolved.folder.path / HEADS / "model.safetensors"
    if file.is_file():
        return load_file(file)
    return {f"language.{name}": value for name, value in released(resolved.folder).items()}


def _begun(own: dict[str, Tensor], fitting: dict[str, Tensor], name: str) -> str:
    lacking = sorted({key.split(".")[0] for key in own.keys() - fitting.keys()})
    if not lacking:
        return f"the heads go on from those of {name}"
    which = ", ".join(lacking)
    return f"random at the beginning: {which} ({len(fitting)} of {len(own)} tensors are {name}'s)"
