"""lmk import: vectors that another tool made."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli.cli import console, options
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import IfExists
from lmkcli.recipe import Recipe, RecipeOptions
from lmkcli.settings import Offline

if TYPE_CHECKING:
    from lmkcli.exchange.importing import Incoming


class Origin(StrEnum):
    """Which tool's files are read."""

    numpy = "numpy"
    pyserini = "pyserini"


@with_flags
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A .npy file or a folder, as --from says.")
    ],
    origin: Annotated[
        Origin, typer.Option("--from", envvar="LMK_IMPORT_FROM", help="Which tool wrote it.")
    ],
    output: options.Output = None,
    ids: Annotated[
        Path | None, typer.Option(help="numpy: whose the rows are, an id a line.")
    ] = None,
    model: options.Model = "",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    pool: options.Pool = "auto",
    gran: options.Gran = None,
    max_length: options.MaxLength = None,
    query_max_length: options.QueryMaxLength = None,
    query_prompt: options.QueryPrompt = None,
    doc_prompt: options.DocPrompt = None,
    dim: options.Dim = None,
    normalize: options.Normalize = None,
    map_ids: options.MapIds = False,
    offline: Offline = False,
    if_exists: options.IfExistsOption = IfExists.resume,
    json: options.Json = False,
) -> None:
    """Vectors of another tool become a vectors folder, which can be indexed, searched and exported.

    -m and the flags of the recipe say what made them, and so how queries are encoded; without a model
    they cannot be searched with text.
    """
    from lmkcli.exchange.importing import open_incoming, run_import
    from lmkcli.store.tokens import Report

    folder = options.need(output, "-o/--output", "vectors/")
    wishes = RecipeOptions(
        model, revision, trust_remote_code, pool, gran, max_length=max_length,
        query_max_length=query_max_length, query_prompt=query_prompt, doc_prompt=doc_prompt,
        dim=dim, normalize=normalize,
    )  # fmt: skip
    incoming = open_incoming(source, origin.value, ids)
    recipe = _recipe(wishes, incoming, offline)
    options.prepare_output(folder, if_exists)
    with console.progress("import") as progress, console.stoppable() as stopping:
        report = Report(progress, stopping, incoming.has_text)
        made = run_import(incoming, recipe, folder, map_ids, report)
    if made.normalized:
        count = console.number(made.normalized)
        console.note(f"{count} vectors were not of unit length, as {model} needs them, and now are")
    if json:
        return console.plain_json({"output": str(folder), **made._asdict()})
    print(f"{folder}: {console.number(made.documents)} documents, {made.dim} components")


def _recipe(wishes: RecipeOptions, incoming: "Incoming", offline: bool) -> Recipe:
    from lmkcli.encoding.resolving import resolve
    from lmkcli.exchange.importing import check_width, unknown_recipe

    if not wishes.model:
        given = {
            key: value
            for key, value in vars(wishes).items()
            if value != getattr(RecipeOptions(), key)
        }
        options.no_effect(given, "an import that names no model (-m)")
        console.note(
            "no model (-m): these vectors can be indexed and exported, not searched with text"
        )
        return unknown_recipe()
    resolved = resolve(wishes, offline)
    for line in resolved.notes:
        console.note(line)
    check_width(incoming, resolved)
    return resolved.recipe
