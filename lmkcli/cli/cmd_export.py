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
_WITHOUT = ("unit", "window", "overlap", "context", "extend", "pad_to_max", "dim")
_MODEL = "sentence-transformers"  # the only target that takes a model; all others take vectors
Target = Literal["numpy", "parquet", "pyserini", "tevatron", "sentence-transformers"]


@dataclass(frozen=True)
class TargetOptions:
    """What is exported to."""

    to: Annotated[Target, Flag("Which tool, or which files.", often=True)]
    offline: Offline = False


@with_flags
def export(
    source: Annotated[Path | None, typer.Argument(metavar="[VECTORS]", help="A vectors folder.")],
    target: TargetOptions,
    recipe: Annotated[RecipeOptions, Subset(without=_WITHOUT)],
    output: NewOutput,
    given: Given,
) -> None:
    """Vectors as files of other tools; or, with -m, a model and its pooling for sentence-transformers.

    The result is a folder that appears whole, with a manifest of what it was made of.
    """
    output.path("exported/")
    to = target.to
    if to == _MODEL:
        if source is not None or not recipe.model:
            raise UsageError(f"--to {to} takes a model and no vectors: give it with -m")
        return _model(recipe, output, target.offline)
    if source is None:
        raise UsageError(f"--to {to} takes a vectors folder, such as: lmk export vectors/ …")
    no_effect(given, names_of(RecipeOptions), f"--to {to}: vectors are what they are")
    _vectors(source, to, output)


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
    from lmkcli.encoding.resolving import resolve
    from lmkcli.encoding.sentence_folder import export_model

    resolved = resolve(recipe, offline)
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
