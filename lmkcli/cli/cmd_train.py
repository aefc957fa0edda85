"""lmk train: examples and a base model to a retrieval model."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli.cli import completion, console, recording
from lmkcli.cli.dryrun import ModelOutput, dry_run
from lmkcli.cli.flags import Subset, with_flags
from lmkcli.recipe import RecipeOptions
from lmkcli.training.settings import DevSettings, TrainSettings

if TYPE_CHECKING:
    from lmkcli.evaluation.devsets import DevSet
    from lmkcli.training.job import TrainJob

# What a model's folder cannot say in the layout of sentence-transformers.
_WITHOUT = ("overlap", "context", "pad_to_max", "dim")


@with_flags
def train(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="EXAMPLES…",
            help="Files of examples, or collections with judgements such as beir/scifact:train.",
            autocompletion=completion.collections,
        ),
    ],
    recipe: Annotated[RecipeOptions, Subset(without=_WITHOUT, required=("model",))],
    settings: TrainSettings,
    dev: DevSettings,
    output: ModelOutput,
) -> None:
    """Train a bi-encoder with the pooling, the granularities and the prompts that it will be used with.

    --gran takes a list here, such as 32,64,128,256: each text is cut by one that is drawn for it, and
    the model's folder declares the first. --window is what the folder declares, too: texts are learned from
    whole, and documents encoded in such windows later. Stop it at any moment, and the same command continues.
    """
    if not output.dry_run:
        output.path("model/")
    from lmkcli.encoding.asking import check_grans

    check_grans(recipe)
    from lmkcli.evaluation import devsets
    from lmkcli.training.asking import ask

    asked = ask(sources, recipe, settings, output.offline)
    sets = devsets.read(dev.dev or [], dev.dev_measure)
    from lmkcli.training import planning, running  # here, after all that can be said without torch

    job = planning.planned(asked, settings)
    if sets:
        job = _scored(job, dev, sets)
    for line in planning.describe_training(job):
        console.note(line)
    if output.dry_run:
        return dry_run(job, job.dev, output.json)
    if output.replaces:
        job.learning(running.Start())
    folder = output.prepared("model/")
    with console.reporting("train", recording.call()) as report:
        running.run(job, folder, report)
    _summary(job, folder, output.json)


def _scored(job: "TrainJob", dev: DevSettings, sets: "tuple[DevSet, ...]") -> "TrainJob":
    """The same training, scored as it goes."""
    from lmkcli.evaluation.development import DevScorer
    from lmkcli.training.development import Dev

    scorer = DevScorer(job.resolved, dev.dev_measure, sets)
    every = dev.dev_every or max(1, job.settings.steps // 10)
    return replace(job, dev=Dev(scorer, every, dev.patience))


def _summary(job: "TrainJob", folder: Path, json: bool) -> None:
    from lmkcli.encoding.sentence_folder import exported
    from lmkcli.models.files import read_json
    from lmkcli.models.folder import TRAINED

    export = exported(job.resolved)
    scored = read_json(folder / TRAINED).get("dev", {}).get("published")
    if json:
        dev = {"dev": scored} if scored else {}
        return console.plain_json(
            {"output": str(folder), "steps": job.settings.steps, **dev, **export._asdict()}
        )
    best = ""
    if job.dev and scored:
        measure = f"{job.dev.scorer.measure} {scored['score']:.4f}"
        best = f"; these are the weights of step {scored['step']}, {measure}"
    console.say(f"{folder}: {console.number(job.settings.steps)} steps{best}; {export.loaded_by}")
