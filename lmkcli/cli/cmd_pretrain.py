"""lmk pretrain: texts, and a model or an architecture, to an encoder that was taught by them alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lmkcli.cli import completion, console, recording
from lmkcli.cli.dryrun import ModelOutput, dry_run
from lmkcli.cli.flags import Subset, with_flags
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import Flag
from lmkcli.training.settings import PretrainSettings

# What belongs to queries, or has no place in an encoder's folder.
_WITHOUT = (
    *("unit", "window", "overlap", "context", "extend", "dim", "normalize"),
    *("query_max_length", "query_prompt", "doc_prompt"),
)


@dataclass(frozen=True)
class NewModelOptions:
    """A model that is made instead of one that is there."""

    architecture: Annotated[
        Path | None,
        Flag("A new model: the JSON of a config.json, or its keys in TOML; random weights."),
    ] = None
    tokenizer: Annotated[str, Flag("The new model's tokenizer: a folder or a hub name.")] = ""
    init_from: Annotated[
        str, Flag("A model whose weights the new one begins with, where name and shape fit.")
    ] = ""


@with_flags
def pretrain(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="COLLECTION…",
            help="Collections or tokens folders; NAME,weight=0.3 weighs one.",
            autocompletion=completion.collections,
        ),
    ],
    recipe: Annotated[RecipeOptions, Subset(without=_WITHOUT)],
    new: NewModelOptions,
    settings: Annotated[PretrainSettings, Subset(without=("skip_positions",))],
    output: ModelOutput,
) -> None:
    """Pre-train an encoder on texts alone: masked tokens, RetroMAE, DupMAE, or TITE's objectives.

    The vector that RetroMAE decodes from is pooled as --pool says, with landmarks too. Stop it at any
    moment, and the same command continues.
    """
    if not output.dry_run:
        output.path("model/")
    from lmkcli.encoding.asking import check_grans

    check_grans(recipe)
    from lmkcli.training.asking import Beginning, ask_texts

    begun = Beginning(recipe, new.architecture, new.tokenizer, new.init_from)
    asked = ask_texts(sources, begun, settings, output.offline)
    from lmkcli.training import (  # here, after what torch is not needed for
        pretrain_planning,
        running,
    )

    job = pretrain_planning.planned(asked, begun, settings, output.offline)
    for line in pretrain_planning.describe_pretraining(job):
        console.note(line)
    if output.dry_run:
        return dry_run(job, None, output.json)
    if output.replaces:
        job.learning(running.Start())
    folder = output.prepared("model/")
    with console.reporting("pretrain", recording.call()) as report:
        running.run(job, folder, report)
    if output.json:
        return console.plain_json({"output": str(folder), "steps": job.settings.steps})
    console.say(f"{folder}: {console.number(job.settings.steps)} steps")
