"""lmk train: examples and a model to a model that pools as it was taught."""

from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli.cli import console, recording
from lmkcli.cli.flags import Subset, with_flags
from lmkcli.cli.options import NewOutput
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import Offline, TrainSettings

if TYPE_CHECKING:
    from lmkcli.training.job import TrainJob

# What a model's folder cannot say in the layout of sentence-transformers.
_WITHOUT = ("unit", "window", "overlap", "extend", "pad_to_max", "dim")


@with_flags
def train(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="EXAMPLES…",
            help="Files of examples, or collections with judgements such as beir/scifact:train.",
        ),
    ],
    recipe: Annotated[RecipeOptions, Subset(without=_WITHOUT, required=("model",))],
    settings: TrainSettings,
    output: NewOutput,
    offline: Offline = False,
) -> None:
    """Train a bi-encoder with the pooling, the granularities and the prompts that it will be used with.

    --gran takes a list here, such as 32,64,128,256: each text is cut by one that is drawn for it, and
    the model's folder declares the first. Stop it at any moment, and the same command continues.
    """
    output.path("model/")
    from lmkcli.training import job as training

    job = training.plan(sources, recipe, settings, offline)
    for line in training.describe(job):
        console.note(line)
    folder = output.prepared("model/")
    with console.reporting("train", recording.call()) as report:
        training.run_train(job, folder, report)
    _summary(job, str(folder), output.json)


def _summary(job: "TrainJob", folder: str, json: bool) -> None:
    from lmkcli.encoding.sentence_folder import exported

    found = exported(job.resolved)
    if json:
        return console.plain_json(
            {"output": folder, "steps": job.settings.steps, **found._asdict()}
        )
    console.say(f"{folder}: {console.number(job.settings.steps)} steps; {found.loaded_by}")
