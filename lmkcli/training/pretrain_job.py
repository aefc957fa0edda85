"""A pre-training: planned from what was asked for; running.py runs it."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lmkcli import __version__, catalog
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolving import Resolved, granularity, resolve
from lmkcli.encoding.sentence_folder import check_exportable, exported
from lmkcli.errors import MissingExtra, UsageError
from lmkcli.models.creating import NewModel, create, read_architecture
from lmkcli.models.devices import TORCH
from lmkcli.models.folder import HEADS, read_model
from lmkcli.models.forward import Model, ModelOptions
from lmkcli.models.language import released
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.pooling.landmark import Landmark
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import PretrainSettings
from lmkcli.training import checkpoints
from lmkcli.training.corpus import Corpus, check_sources, in_blocks, read_corpus
from lmkcli.training.feeding import Feed
from lmkcli.training.masked_texts import Layout, Masked
from lmkcli.training.masking import Masking, Vocabulary
from lmkcli.training.placing import TrainingSide
from lmkcli.training.pretraining import HeadOptions, Pretext, PretextStep, Pretraining
from lmkcli.training.running import Start, budget
from lmkcli.training.sampling import Sampling
from lmkcli.training.sources import Source, parse_source
from lmkcli.training.trainer import Learning

_PROBE = 2  # texts whose gradients show which weights take part
_CHOICES = ("mask", "whole_words", "decoder_mask", "mask_pool", "query_stream")


class Beginning(NamedTuple):
    """Whose encoder is trained on: a model's, or a new one of an architecture."""

    options: RecipeOptions
    architecture: Path | None = None
    tokenizer: str = ""
    init_from: str = ""


class Made(NamedTuple):
    """A new model's folder, as long as it is needed; what it is made of; notes on its weights."""

    folder: tempfile.TemporaryDirectory[str]
    identity: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class PretrainJob:
    """What will be learned, from what, and how."""

    resolved: Resolved
    layout: Layout
    tokenizer: Tokenizer
    sources: tuple[Source, ...]
    corpus: Corpus
    settings: PretrainSettings
    made: Made | None = None  # a new model; None where one that is there goes on

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
        machine = ("device", "batch_tokens", "save_every", "log_every")
        recipe = self.resolved.recipe.identity()
        if self.made:  # random weights follow from the seed
            recipe = {side: config | {"weights": ""} for side, config in recipe.items()}
        return {
            "recipe": recipe,
            "granularities": list(self.layout.grans),
            "data": self.corpus.digest,
            "sources": [{"weight": source.weight} for source in self.sources],
            "settings": {k: v for k, v in asdict(self.settings).items() if k not in machine},
            **({"new": self.made.identity} if self.made else {}),
        }

    def feed(self, start: Start) -> Feed[Masked]:
        """The batches of one process."""
        settings, vocabulary = self.settings, Vocabulary.of(self.tokenizer)
        place = Masked(
            self.corpus, self.layout, self.masking, vocabulary, settings.seed, start.shard
        )
        weights = [source.weight for source in self.sources]
        return Feed(self.corpus, weights, _sampling(settings), place, settings.steps, start.step)

    def learning(self, start: Start) -> Learning:
        """The encoder and the heads, opened."""
        feed = self.feed(start)
        model = self._model()
        heads = self._heads(model, start)
        module = Pretraining(model, heads)
        _freeze_unused(module, self.feed(Start()))
        step = PretextStep(heads, budget(model, self.settings, start.note))
        return Learning(module, step, feed, self.settings)

    def facts(self, history: list[dict[str, float]]) -> dict[str, Any]:
        """What training.json says."""
        counts = [int((self.corpus.sources == i).sum()) for i in range(len(self.sources))]
        return {
            "version": __version__,
            "base": self.resolved.recipe.doc.model,
            "steps": self.settings.steps,
            "objective": self.settings.objective,
            "data": self.corpus.digest,
            "sources": [
                {"name": source.name, "examples": count, "weight": source.weight}
                for source, count in zip(self.sources, counts, strict=True)
            ],
            "granularities": list(self.layout.grans),
            "recipe": self.resolved.recipe.identity(),
            "settings": asdict(self.settings),
            "loaded_by": exported(self.resolved).loaded_by,
            "curve": [line for line in history if "loss" in line],
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
            module: Any = model.module
            if not module.supports_gradient_checkpointing:
                raise UsageError(
                    f"--gradient-checkpointing: {type(module).__name__} cannot do it; drop it, and use "
                    "--batch-tokens for less memory"
                )
            module.gradient_checkpointing_enable()
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
        if not start.step and not self.made:
            start.note(_begun(own, fitting, self.resolved.folder.name))
        made: Pretext = heads.to(model.device, TORCH[model.dtype])
        return made


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


def _freeze_unused(module: Pretraining, feed: Feed[Masked]) -> None:
    """Weights without a gradient (a pooler that nobody asks) would stall several processes."""
    texts = next(feed.batches()).texts[:_PROBE]
    module(texts).sum().backward()
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None


def plan(
    sources: Sequence[str], beginning: Beginning, settings: PretrainSettings, offline: bool = False
) -> PretrainJob:
    """Reads everything but the model; UsageError and DataError for what cannot be pre-trained."""
    if find_spec("accelerate") is None:
        raise MissingExtra("accelerate", "train", "lmk pretrain")
    _check_choices(settings)
    parsed = tuple(parse_source(each) for each in sources)
    check_sources(parsed)
    grans = tuple(filter(None, (beginning.options.gran or "").split(",")))
    options = replace(beginning.options, gran=grans[0] if grans else None)
    made = _made(beginning, settings.seed, offline)
    options = replace(options, model=made.folder.name) if made else options
    resolved = resolve(options, offline)
    check_exportable(resolved)
    tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    layout = _layout(resolved, tokenizer, grans, settings)
    corpus = read_corpus(parsed, options, tokenizer, offline)
    if settings.blocks:
        corpus = _in_blocks(corpus, layout)
    steps = settings.steps or max(1, int(settings.epochs * len(corpus)) // settings.batch_size)
    settings = replace(settings, steps=steps)
    if made:
        named = f"{beginning.architecture}"
        resolved = resolved._replace(recipe=resolved.recipe.moved(named))
    return PretrainJob(resolved, layout, tokenizer, parsed, corpus, settings, made)


def _check_choices(settings: PretrainSettings) -> None:
    kind = catalog.load(catalog.PRETEXTS, settings.objective, "objective")
    given = [name for name in _CHOICES if getattr(settings, name) is not None]
    if useless := [name for name in given if name not in kind.choices]:
        flag = useless[0].replace("_", "-")
        raise UsageError(f"--{flag} has no effect with --objective {settings.objective}; drop it")


def _made(beginning: Beginning, seed: int, offline: bool) -> Made | None:
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
    return Made(folder, identity, notes)


def _layout(
    resolved: Resolved, tokenizer: Tokenizer, grans: tuple[str, ...], settings: PretrainSettings
) -> Layout:
    doc = resolved.recipe.doc
    grans = tuple(granularity(doc.pool, each) for each in grans or filter(None, [doc.gran]))
    if len(grans) > 1 and not all(gran.isdigit() for gran in grans):
        raise UsageError(
            f"--gran {','.join(grans)}: of several lengths one is drawn for each chunk, so that all "
            "must be numbers of tokens"
        )
    if settings.official_quirks and doc.pool != "lmk":
        raise UsageError(f"--official-quirks has no effect with --pool {doc.pool}; drop it")
    return Layout(TrainingSide.of(doc, tokenizer, grans), grans, settings.official_quirks)


def _in_blocks(corpus: Corpus, layout: Layout) -> Corpus:
    """Texts joined by the token between chunks, unless landmarks are that token."""
    placer = layout.side.placers[0]
    if placer.gran and not placer.gran.isdigit():
        raise UsageError(f"--blocks joins texts, which --gran {placer.gran} cannot cut; drop one")
    separator = None if isinstance(placer.pooler, Landmark) else placer.special.separator
    if not placer.special.suffix:
        separator = None
    return in_blocks(corpus, layout.kept(placer.limit), separator)


def _sampling(settings: PretrainSettings) -> Sampling:
    return Sampling(
        settings.batch_size,
        settings.batches,
        settings.sampling_temperature,
        settings.like_length,
        settings.seed,
    )


def describe(job: PretrainJob) -> Iterator[str]:
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
    yield from job.made.notes if job.made else job.resolved.notes
