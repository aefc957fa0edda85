"""Train: examples and a base model to a retrieval model."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.operations.options import Destination, NewOutput
from lmkcli.progress import Report
from lmkcli.recipe import Model, RecipeOptions
from lmkcli.settings import Flag, Offline
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.text.numbers import duration, size
from lmkcli.training.settings import DevSettings, TrainSettings

if TYPE_CHECKING:
    from lmkcli.encoding.sentence_folder import ExportedModel
    from lmkcli.evaluation.devsets import DevSet
    from lmkcli.training.development import Dev
    from lmkcli.training.job import TrainJob
    from lmkcli.training.rehearsal import Rehearsal, Rehearsed


@dataclass(frozen=True, kw_only=True)
class ModelOutput(NewOutput):
    """Where the model goes, unless this is a dry run, and whether the network may be used."""

    example: ClassVar[str] = "model/"
    dry_run: Annotated[
        bool,
        Flag(
            "Count, show placed examples, time five steps, print the plan; write nothing.",
            role="mode",
        ),
    ] = False
    offline: Offline = False


@dataclass(frozen=True)
class TrainPlan(Result):
    """What a training would read and take, from five timed steps (`--dry-run`)."""

    rehearsal: "Rehearsal"
    scored: bool  # whether development sets are scored

    def as_json(self) -> Any:
        """The counts, and the placed examples that were drawn first."""
        shown = [[text._asdict() for text in example] for example in self.rehearsal.shown]
        return {**self.rehearsal._asdict(), "shown": shown}

    def __str__(self) -> str:
        """The placed examples, a line each."""
        lines = []
        for number, example in enumerate(self.rehearsal.shown, 1):
            for text in example:
                gran = f"gran {text.gran}, " if text.gran else ""
                gap = f" up to {text.reach:,}" if text.reach > text.positions else ""
                placed = f"{gran}{text.positions} positions{gap}"
                lines.append(f"{number} {text.side} ({placed}): {text.words}")
        return "\n".join(lines)

    def table(self) -> Table:
        """The counts with units."""
        plan = self.rehearsal
        rows: list[list[Any]] = [
            ["examples", plan.examples],
            ["steps", plan.steps],
            ["tokens", f"about {plan.tokens:,}, from {plan.counted} batches"],
            ["longest input", f"{plan.longest:,} positions in these"],
            ["pace", f"{round(plan.tokens_per_second):,} tokens/s in {plan.timed} steps"],
            ["memory", f"{size(plan.memory)} at the peak of these"],
            ["time", f"about {duration(plan.seconds)} on this machine"],
        ]
        if self.scored:
            rows.append(["of it scoring", f"about {duration(plan.scoring)}"])
        return Table(["dry run", ""], rows)


def plan_training(job: "Rehearsed", dev: "Dev | None", report: Report) -> TrainPlan:
    """Count and time a training without writing anything."""
    from lmkcli.training.rehearsal import rehearse

    with report.job("dry run") as running:
        return TrainPlan(rehearse(job, dev, running), dev is not None)


@dataclass(frozen=True)
class Trained(Result):
    """A model folder, the number of steps, and how to load it.

    `measure`, `score` and `step` describe the kept checkpoint if development sets were scored.
    """

    output: Path
    steps: int
    export: "ExportedModel"
    dev: dict[str, Any]
    measure: str = ""

    def as_json(self) -> Any:
        """The folder, the steps, and the score on the development sets."""
        dev = {"dev": self.dev} if self.dev else {}
        return {"output": str(self.output), "steps": self.steps, **dev, **self.export._asdict()}

    def __str__(self) -> str:
        best = ""
        if self.measure and self.dev:
            score = f"{self.measure} {self.dev['score']:.4f}"
            best = f"; these are the weights of step {self.dev['step']}, {score}"
        return f"{self.output}: {self.steps:,} steps{best}; {self.export.loaded_by}"


@dataclass(frozen=True)
class Train(Operation[Trained | TrainPlan], ModelOutput, DevSettings, TrainSettings, RecipeOptions):
    """Train a bi-encoder with the pooling, the granularities and the prompts that it will be used with.

    --gran takes a list here, such as 32,64,128,256: each text is cut by one that is drawn for it, and
    the model's folder declares the first. --window is what the folder declares, too: texts are learned from
    whole, and documents encoded in such windows later. Stop it at any moment, and the same command continues.
    """

    verb: ClassVar[str] = "train"
    # These have no place in the layout of a sentence-transformers folder.
    unused: ClassVar[tuple[str, ...]] = ("overlap", "context", "pad_to_max", "dim")

    sources: Annotated[
        list[str],
        Flag(
            "Files of examples, or collections with judgements such as beir/scifact:train.",
            argument=True,
            metavar="EXAMPLES…",
            role="collection",
        ),
    ]
    model: Model = field(kw_only=True)

    def execute(self, report: Report) -> Trained | TrainPlan:
        """Train, or count what that would take."""
        place = None if self.dry_run else Destination(self)
        from lmkcli.encoding.asking import check_grans

        recipe, settings = self.part(RecipeOptions), self.part(TrainSettings)
        check_grans(recipe)
        from lmkcli.evaluation import devsets
        from lmkcli.training.asking import resolve_training

        request = resolve_training(self.sources, recipe, settings, self.offline)
        sets = devsets.read(self.dev or [], self.dev_measure)
        from lmkcli.training import planning, running  # after everything that needs no torch

        job = planning.planned(request, settings)
        if sets:
            job = self._scored(job, sets)
        for line in planning.describe_training(job):
            report.note(line)
        if place is None:
            return plan_training(job, job.dev, report)
        if place.replaces:
            job.task(running.Start())
        folder = place.prepare(report)
        with report.job("train") as given:
            running.run(job, folder, given)
        return self._result(job, folder)

    def _scored(self, job: "TrainJob", sets: "tuple[DevSet, ...]") -> "TrainJob":
        """The same training, scored on development sets while it runs."""
        from lmkcli.evaluation.development import DevScorer
        from lmkcli.training.development import Dev

        scorer = DevScorer(job.resolved, self.dev_measure, sets)
        every = self.dev_every or max(1, job.settings.steps // 10)
        return replace(job, dev=Dev(scorer, every, self.patience))

    def _result(self, job: "TrainJob", folder: Path) -> Trained:
        from lmkcli.encoding.sentence_folder import exported
        from lmkcli.models.files import read_json
        from lmkcli.models.folder import TRAINED

        scored = read_json(folder / TRAINED).get("dev", {}).get("published") or {}
        measure = job.dev.scorer.measure if job.dev else ""
        return Trained(folder, job.settings.steps, exported(job.resolved), scored, measure)
