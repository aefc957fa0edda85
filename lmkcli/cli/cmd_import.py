"""lmk import: vectors that another tool imported."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmkcli.cli import console, recording
from lmkcli.cli.flags import Given, Subset, with_flags
from lmkcli.cli.options import MapIds, NewOutput, names_of, no_effect
from lmkcli.errors import UsageError
from lmkcli.recipe import Recipe, RecipeOptions
from lmkcli.settings import Flag, Offline

if TYPE_CHECKING:
    from lmkcli.exchange.importing import Incoming

# Another tool cut its texts as it did; what remains to be said is what a vector stands for.
_WITHOUT = ("window", "overlap", "context", "extend", "pad_to_max")


@dataclass(frozen=True)
class SourceOptions:
    """What is imported, and who wrote it."""

    origin: Annotated[
        Literal["numpy", "pyserini"], Flag("Which tool wrote it.", long="--from", often=True)
    ]
    ids: Annotated[Path | None, Flag("numpy: the ids of the rows, one per line.")] = None
    map_ids: MapIds = False
    offline: Offline = False


@with_flags
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A .npy file or a folder, as --from says.")
    ],
    files: SourceOptions,
    recipe: Annotated[RecipeOptions, Subset(without=_WITHOUT)],
    output: NewOutput,
    given: Given,
) -> None:
    """Vectors of another tool become a vectors folder, which can be indexed, searched and exported.

    -m and the flags of the recipe say what made them, and so how queries are encoded; without a model
    they cannot be searched with text.
    """
    output.path("vectors/")
    _check_unit(recipe.unit or "doc", files.origin)
    if not recipe.model:
        unsaid = [name for name in names_of(RecipeOptions) if name != "unit"]
        no_effect(given, unsaid, "an import that names no model (-m)")
    from lmkcli.exchange.importing import open_incoming, run_import

    incoming = open_incoming(source, files.origin, files.ids)
    made_by = _recipe(recipe, incoming, files.offline)
    folder = output.prepared("vectors/")
    with console.reporting("import", recording.call()) as report:
        imported = run_import(incoming, made_by, folder, files.map_ids, report)
    if imported.normalized:
        count = console.number(imported.normalized)
        console.note(
            f"{count} vectors were not of unit length, as {recipe.model} needs them, and now are"
        )
    if output.json:
        return console.plain_json({"output": str(folder), **imported._asdict()})
    console.say(
        f"{folder}: {console.number(imported.documents)} documents, {imported.dim} dimensions"
    )


def _check_unit(unit: str, origin: str) -> None:
    """UsageError for vectors that have no place in these files."""
    if unit not in ("doc", "chunk") or (unit == "chunk" and origin != "numpy"):
        raise UsageError(
            f"--unit {unit}: a vector a document is read from any tool's files, and a vector a chunk "
            "(--unit chunk) from --from numpy, where the rows of a document repeat its id"
        )


def _recipe(asked: RecipeOptions, incoming: "Incoming", offline: bool) -> Recipe:
    from lmkcli.encoding.resolving import resolve
    from lmkcli.exchange.importing import check_width, unknown_recipe

    if not asked.model:
        console.note(
            "no model (-m): these vectors can be indexed and exported, not searched with text"
        )
        return unknown_recipe(asked.unit or "doc")
    resolved = resolve(asked, offline)
    for line in resolved.notes:
        console.note(line)
    check_width(incoming, resolved)
    return resolved.recipe
