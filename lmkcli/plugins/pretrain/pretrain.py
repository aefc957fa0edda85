"""Pretrain: train an encoder on texts, from a model or from an architecture."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from lmkcli.errors import UsageError
from lmkcli.operations.options import Destination
from lmkcli.operations.train import ModelOutput, Trained, plan_training
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.recipe import POOLER_OPTIONS, RecipeOptions
from lmkcli.spec.result import Table
from lmkcli.spec.settings import Flag, Settings
from lmkcli.training.train_settings import DevelopmentSettings


@dataclass(frozen=True)
class Pretrained(Trained):
    """A model folder and the number of steps."""

    def blocks(self) -> Iterator[Table | str]:
        """Yield the folder and the steps."""
        yield f"{self.output}: {self.steps:,} steps"


@dataclass(frozen=True, kw_only=True)
class NewModelOptions(Settings):
    """A new model instead of an existing one."""

    architecture: Annotated[
        Path | None,
        Flag(
            "Create a model with random weights: a config.json, or its keys in TOML.",
            role="file",
            suggest_for="--from-scratch --config-name",
        ),
    ] = None
    tokenizer: Annotated[
        str,
        Flag(
            "Tokenizer of the new model: a folder or a hub name.",
            role="model",
            aliases="--tokenizer-name",
        ),
    ] = ""
    init_from: Annotated[
        str,
        Flag(
            "Copy weights of the same name and shape from this model into the new one.",
            role="model",
            suggest_for="--initialize-from",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions(DevelopmentSettings):
    """Texts on which the accuracy of masked tokens is measured during a pre-training."""

    remedy: ClassVar[str] = "add texts"
    dev: Annotated[
        list[str] | None,
        Flag(
            "mlm: texts to measure the accuracy on; repeatable.",
            role="collection",
            suggest_for="--eval --validation --validation-file --dev-set",
        ),
    ] = None
    dev_mask: Annotated[
        float | None,
        Flag("Share of masked tokens.", min=0, max=1, shown="as in training"),
    ] = None


@dataclass(frozen=True)
class Pretrain(
    Operation[Trained],
    ModelOutput,
    PretrainSettings,
    HeldOutOptions,
    NewModelOptions,
    RecipeOptions,
):
    """Pre-train an encoder on texts: masked tokens, RetroMAE, DupMAE, or the objectives of TITE.

    --pool selects the pooling of the vector that RetroMAE and DupMAE decode, such as landmarks. You can stop
    a training at any time; the same command continues.
    """

    verb: ClassVar[str] = "pretrain"
    # These settings apply to queries, or an encoder folder cannot store them.
    unused: ClassVar[tuple[str, ...]] = (
        *("unit", "window", "overlap", "context", "extend", "dim", "normalize"),
        *("query_max_length", "query_prompt", "doc_prompt"),
        *POOLER_OPTIONS,
    )

    sources: Annotated[
        list[str],
        Flag(
            "Collections or tokens folders; NAME,weight=0.3 sets the weight of one.",
            argument=True,
            metavar="COLLECTION…",
            role="collection",
            suggest_for="--train-file --dataset --corpus --input",
        ),
    ]

    def execute(self, report: Report) -> Trained:
        """Pre-train, or estimate the work."""
        destination = None if self.dry_run else Destination(self)
        from lmkcli.encoding.resolution import check_grans

        recipe, settings = self.part(RecipeOptions), self.part(PretrainSettings)
        check_grans(recipe)
        if self.dev and self.objective != "mlm":
            raise UsageError(
                f"--dev measures the accuracy of masked tokens, which --objective {self.objective} does not "
                "have; use --objective mlm, or drop it"
            )
        from lmkcli.plugins.pretrain.pretraining_request import BaseModelSpec, resolve_pretraining

        base_model = BaseModelSpec(recipe, self.architecture, self.tokenizer, self.init_from)
        request = resolve_pretraining(self.sources, base_model, settings, self.offline)
        from lmkcli.plugins.pretrain.pretraining_job import describe_pretraining, planned
        from lmkcli.training.loop import training_run as execution

        job = planned(request, base_model, settings, self.offline)
        if self.dev:
            job = job.held_out(self.dev, self.dev_every, self.dev_mask, self.offline)
        for line in describe_pretraining(job):
            report.note(line)
        if destination is None:
            return plan_training(job, job.dev, self.output, report)
        if destination.replaces:
            job.task(execution.Start())
        folder = destination.path
        execution.in_first(lambda: destination.prepare(report), folder, job.settings)
        with report.job("pretrain") as job_report:
            execution.run(job, folder, job_report)
        return Pretrained(folder, job.settings.steps)
