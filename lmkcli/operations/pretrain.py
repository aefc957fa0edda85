"""Pretrain: texts, and a model or an architecture, to an encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from lmkcli.operations.options import Destination
from lmkcli.operations.train import ModelOutput, TrainPlan, plan_training
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import Flag, Settings
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result
from lmkcli.training.settings import PretrainSettings


@dataclass(frozen=True)
class Pretrained(Result):
    """A model folder and the number of steps."""

    output: Path
    steps: int

    def __str__(self) -> str:
        return f"{self.output}: {self.steps:,} steps"


@dataclass(frozen=True, kw_only=True)
class NewModelOptions(Settings):
    """A new model instead of an existing one."""

    architecture: Annotated[
        Path | None,
        Flag(
            "A new model: the JSON of a config.json, or its keys in TOML; random weights.",
            role="file",
        ),
    ] = None
    tokenizer: Annotated[
        str, Flag("The new model's tokenizer: a folder or a hub name.", role="model")
    ] = ""
    init_from: Annotated[
        str,
        Flag(
            "A model whose weights the new one begins with, where name and shape fit.", role="model"
        ),
    ] = ""


@dataclass(frozen=True)
class Pretrain(
    Operation[Pretrained | TrainPlan],
    ModelOutput,
    PretrainSettings,
    NewModelOptions,
    RecipeOptions,
):
    """Pre-train an encoder on texts alone: masked tokens, RetroMAE, DupMAE, or TITE's objectives.

    The vector that RetroMAE decodes from is pooled as --pool says, with landmarks too. Stop it at any
    moment, and the same command continues.
    """

    verb: ClassVar[str] = "pretrain"
    # These belong to queries, or have no place in an encoder's folder.
    unused: ClassVar[tuple[str, ...]] = (
        *("unit", "window", "overlap", "context", "extend", "dim", "normalize"),
        *("query_max_length", "query_prompt", "doc_prompt"),
    )

    sources: Annotated[
        list[str],
        Flag(
            "Collections or tokens folders; NAME,weight=0.3 weighs one.",
            argument=True,
            metavar="COLLECTION…",
            role="collection",
        ),
    ]

    def execute(self, report: Report) -> Pretrained | TrainPlan:
        """Pre-train, or count what that would take."""
        place = None if self.dry_run else Destination(self)
        from lmkcli.encoding.asking import check_grans

        recipe, settings = self.part(RecipeOptions), self.part(PretrainSettings)
        check_grans(recipe)
        from lmkcli.training.asking import BaseModelSpec, resolve_pretraining

        base_model = BaseModelSpec(recipe, self.architecture, self.tokenizer, self.init_from)
        request = resolve_pretraining(self.sources, base_model, settings, self.offline)
        from lmkcli.training import pretrain_planning, running  # after everything without torch

        job = pretrain_planning.planned(request, base_model, settings, self.offline)
        for line in pretrain_planning.describe_pretraining(job):
            report.note(line)
        if place is None:
            return plan_training(job, None, report)
        if place.replaces:
            job.task(running.Start())
        folder = place.prepare(report)
        with report.job("pretrain") as given:
            running.run(job, folder, given)
        return Pretrained(folder, job.settings.steps)
