"""Train: train a retrieval model on examples."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.operations.options import Destination, NewOutput, output_flag
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.recipe import POOLER_OPTIONS, Model, RecipeOptions
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, Offline
from lmkcli.text.formatting import counted, duration, size
from lmkcli.training.train_settings import DevSettings, TrainSettings

if TYPE_CHECKING:
    from lmkcli.encoding.sentence_folder import ExportedModel
    from lmkcli.evaluation.scoring import DevSet
    from lmkcli.training.loop.development import Dev
    from lmkcli.training.loop.dry_run import DryRun, DryRunJob
    from lmkcli.training.training_job import TrainJob
    from lmkcli.training.training_record import Evaluation


@dataclass(frozen=True, kw_only=True)
class ModelOutput(NewOutput):
    """The output of a training, a dry run, and the use of the network."""

    example: ClassVar[str] = "model/"
    output: Annotated[Path | None, output_flag("Folder for the model.")] = None
    dry_run: Annotated[
        bool,
        Flag(
            "Count examples, print placed examples, time five steps and print the plan; write "
            "nothing.",
            role="mode",
        ),
    ] = False
    offline: Offline = False


@dataclass(frozen=True)
class Trained(Result):
    """A model folder and the number of steps of its training."""

    output: Path
    steps: int


@dataclass(frozen=True)
class TrainPlan(Trained):
    """Estimated counts, memory and time of a training, from five timed steps (`--dry-run`).

    The folder is not written.
    """

    rehearsal: "DryRun"
    scored: bool  # whether development sets are scored

    def as_json(self) -> Any:
        """Return the counts, and the first placed examples."""
        shown = [[text._asdict() for text in example] for example in self.rehearsal.shown]
        return {**self.rehearsal._asdict(), "shown": shown}

    def blocks(self) -> Iterator[Table | str]:
        """Yield the placed examples, one per line, then the counts with units."""
        for number, example in enumerate(self.rehearsal.shown, 1):
            for text in example:
                gran = f"gran {text.gran}, " if text.gran else ""
                gap = f" up to {text.reach:,}" if text.reach > text.positions else ""
                placed = f"{gran}{text.positions} positions{gap}"
                yield f"{number} {text.side} ({placed}): {text.words}"
        plan = self.rehearsal
        rows: list[list[Any]] = [
            ["examples", plan.examples],
            ["steps", plan.steps],
            ["tokens", f"about {plan.tokens:,}, from {plan.counted} batches"],
            ["longest input", f"{plan.longest:,} positions in these batches"],
            ["pace", f"{round(plan.tokens_per_second):,} tokens/s in {plan.timed} steps"],
            ["memory", f"{size(plan.memory)} at the peak of these steps"],
            ["time", f"about {duration(plan.seconds)} on this machine"],
        ]
        if self.scored:
            rows.append(["scoring", f"about {duration(plan.scoring)} of this time"])
        yield Table(["dry run", ""], rows)


def plan_training(
    job: "DryRunJob", dev: "Dev | None", output: Path | None, report: Report
) -> TrainPlan:
    """Count and time a training without writing anything."""
    from lmkcli.training.loop.dry_run import rehearse

    with report.job("dry run") as job_report:
        plan = rehearse(job, dev, job_report)
        return TrainPlan(output or Path(), plan.steps, plan, dev is not None)


@dataclass(frozen=True)
class TrainedEncoder(Trained):
    """A model folder, the number of steps, and how to load it.

    `measure`, `score` and `step` describe the kept checkpoint if development sets were scored. The training
    read only a part of `cut_queries` queries and `cut_documents` documents; a text counts each time.
    """

    export: "ExportedModel"
    dev: "Evaluation | None"
    measure: str = ""
    cut_queries: int = 0
    cut_documents: int = 0

    def as_json(self) -> Any:
        """Return the folder, the steps, what was cut, and the score on the development sets."""
        dev = {"dev": self.dev} if self.dev else {}
        cut = {"cut_queries": self.cut_queries, "cut_documents": self.cut_documents}
        return {
            "output": str(self.output), "steps": self.steps, **cut, **dev, **self.export._asdict()
        }  # fmt: skip

    def notes(self) -> Iterator[str]:
        """Yield a note on texts that were cut."""
        if self.cut_queries or self.cut_documents:
            yield (
                f"cut, each time that they were read: {counted(self.cut_queries, 'query', 'queries')} "
                f"(--query-max-length), {counted(self.cut_documents, 'document')} (--max-length)"
            )

    def blocks(self) -> Iterator[Table | str]:
        """Yield the folder, the best weights, and how to load the model."""
        best = ""
        if self.measure and self.dev:
            score = f"{self.measure} {self.dev['score']:.4f}"
            best = f"; weights of step {self.dev['step']}, {score}"
            if "doc_terms" in self.dev:
                best += f", {self.dev['doc_terms']:.1f} terms per document"
        yield f"{self.output}: {self.steps:,} steps{best}; {self.export.loaded_by}"


@dataclass(frozen=True)
class Train(Operation[Trained], ModelOutput, DevSettings, TrainSettings, RecipeOptions):
    """Train a bi-encoder with the pooling, the granularities and the prompts of its later use.

    --gran accepts a list, such as 32,64,128,256: lmk draws a granularity for each text, and the model folder
    declares the first one. With --window chunk, each chunk is read by itself; another window is only stored
    in the model folder, for lmk encode. You can stop a training at any time; the same command continues.
    """

    verb: ClassVar[str] = "train"
    # The layout of a sentence-transformers folder cannot store these.
    unused: ClassVar[tuple[str, ...]] = (
        *("overlap", "context", "pad_to_max", "dim"),
        *POOLER_OPTIONS,
    )

    sources: Annotated[
        list[str],
        Flag(
            "Files of examples, or collections with judgements such as beir/scifact:train.",
            argument=True,
            metavar="EXAMPLES…",
            role="collection",
            suggest_for="--train-file --train-data --dataset --input",
        ),
    ]
    model: Model = field(kw_only=True)

    def execute(self, report: Report) -> Trained:
        """Train, or estimate the work."""
        destination = None if self.dry_run else Destination(self)
        from lmkcli.encoding.resolution import check_grans

        recipe, settings = self.part(RecipeOptions), self.part(TrainSettings)
        check_grans(recipe)
        from lmkcli.evaluation.scoring import read_devsets
        from lmkcli.training.request import resolve_training

        request = resolve_training(self.sources, recipe, settings, self.offline)
        sets = read_devsets(self.dev or [], self.dev_measure)
        from lmkcli.training.loop import training_run as execution
        from lmkcli.training.training_job import describe_training, planned

        job = planned(request, settings)
        if sets:
            job = self._scored(job, sets)
        for line in describe_training(job):
            report.note(line)
        if destination is None:
            return plan_training(job, job.dev, self.output, report)
        if destination.replaces:
            job.task(execution.Start())
        folder = destination.path
        execution.in_first(lambda: destination.prepare(report), folder, job.settings)
        with report.job("train") as job_report:
            execution.run(job, folder, job_report)
        return self._result(job, folder)

    def _scored(self, job: "TrainJob", sets: "tuple[DevSet, ...]") -> "TrainJob":
        """Return the same training, with evaluations on development sets."""
        from lmkcli.evaluation.dev_scorer import DevScorer
        from lmkcli.training.loop.development import Dev

        scorer = DevScorer(job.scored, self.dev_measure, sets)
        every = self.dev_every or max(1, job.settings.steps // 10)
        return replace(job, dev=Dev(scorer, every, self.patience))

    def _result(self, job: "TrainJob", folder: Path) -> TrainedEncoder:
        from lmkcli.encoding.sentence_folder import exported
        from lmkcli.training.training_record import read_training_record

        record = read_training_record(folder)
        assert record is not None  # the training is finished
        dev = record.get("dev")
        return TrainedEncoder(
            folder,
            job.settings.steps,
            exported(job.resolved),
            dev["published"] if dev else None,
            job.dev.scorer.measure if job.dev else "",
            record.get("cut_queries", 0),
            record.get("cut_documents", 0),
        )
