"""lmk export: vectors, or a model with its pooling, in the form that other tools read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from lmkcli.cli import console, recording
from lmkcli.cli.flags import Given, Subset, with_flags
from lmkcli.cli.options import NewOutput, names_of, no_effect
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import Flag, Offline

# What a model's folder cannot say in the layout of sentence-transformers.
_WITHOUT = ("unit", "overlap", "context", "extend", "pad_to_max", "dim")
_MODEL = "sentence-transformers"  # the only target that takes a model; all others take vectors
_EXAMPLES = "tevatron-train"  # which takes what lmk train takes
Target = Literal[
    "numpy", "parquet", "pyserini", "tevatron", "tevatron-train", "sentence-transformers"
]


@dataclass(frozen=True)
class TargetOptions:
    """What is exported to."""

    to: Annotated[Target, Flag("Which tool, or which files.", often=True)]
    offline: Offline = False


@with_flags
def export(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[VECTORS]",
            help="A vectors folder; for tevatron-train a source of examples, as of lmk train.",
        ),
    ],
    target: TargetOptions,
    recipe: Annotated[RecipeOptions, Subset(without=_WITHOUT)],
    output: NewOutput,
    given: Given,
) -> None:
    """Vectors or training examples as files of other tools; with -m, a model for sentence-transformers.

    The result is a folder that appears whole, with a manifest of what it was made of.
    """
    output.path("exported/")
    to = target.to
    if to == _MODEL:
        if source is not None or not recipe.model:
            raise UsageError(f"--to {to} takes a model and no vectors: give it with -m")
        return _model(recipe, output, target.offline)
    if source is None:
        kind = "a source of examples" if to == _EXAMPLES else "a vectors folder"
        example = "beir/scifact:train" if to == _EXAMPLES else "vectors/"
        raise UsageError(f"--to {to} takes {kind}, such as: lmk export {example} …")
    no_effect(given, names_of(RecipeOptions), f"--to {to}: no model is used")
    if to == _EXAMPLES:
        return _examples(source, output)
    _vectors(Path(source), to, output)


def _examples(source: str, output: NewOutput) -> None:
    from lmkcli.exchange.training_examples import export_examples

    folder = output.prepared("exported/")
    with console.progress("export") as progress:
        tally = export_examples(source, folder, Report(progress, call=recording.call())).found()
    if output.json:
        return console.plain_json({"output": str(folder), "to": _EXAMPLES, **tally})
    said = [f"{name.replace('_', ' ')} {console.number(count)}" for name, count in tally.items()]
    console.say(f"{folder}: {', '.join(said)}")


def _vectors(source: Path, to: Target, output: NewOutput) -> None:
    from lmkcli.exchange.exporting import export as write
    from lmkcli.store.vectors import Vectors

    vectors = Vectors(source)
    folder = output.prepared("exported/")
    with console.progress("export") as progress:
        rows = write(vectors, to, folder, Report(progress, call=recording.call()))
    facts = {"documents": vectors.rows, "vectors": rows, "dimensions": vectors.dim}
    if output.json:
        return console.plain_json({"output": str(folder), "to": to, **facts})
    console.say(
        f"{folder}: " + ", ".join(f"{console.number(n)} {name}" for name, n in facts.items())
    )


def _model(recipe: RecipeOptions, output: NewOutput, offline: bool) -> None:
    from lmkcli.encoding.sentence_folder import export_model, resolve_whole

    resolved = resolve_whole(recipe, offline)
    for line in resolved.notes:
        console.note(line)
    folder = output.prepared("exported/")
    exported = export_model(resolved, folder, Report(call=recording.call()))
    if output.json:
        return console.plain_json({"output": str(folder), **exported._asdict()})
    config = resolved.recipe.doc
    gran = f" gran {config.gran}" if config.gran else ""
    console.say(
        f"{folder}: {resolved.folder.name}, pool {config.pool}{gran}; load it with "
        f"{exported.loaded_by}"
    )
