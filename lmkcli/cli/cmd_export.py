"""lmk export: vectors, or a model with its pooling, in the form that other tools read."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lmkcli.cli import console, options
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import IfExists
from lmkcli.errors import UsageError
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import Offline


class Target(StrEnum):
    """What can be exported to; all but the last take vectors."""

    numpy = "numpy"
    parquet = "parquet"
    pyserini = "pyserini"
    tevatron = "tevatron"
    sentence_transformers = "sentence-transformers"


@with_flags
def export(
    to: Annotated[Target, typer.Option(help="Which tool, or which files.")],
    source: Annotated[
        Path | None, typer.Argument(metavar="[VECTORS]", help="A vectors folder.")
    ] = None,
    output: options.Output = None,
    model: options.Model = "",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    pool: options.Pool = "auto",
    gran: options.Gran = None,
    max_length: options.MaxLength = None,
    query_max_length: options.QueryMaxLength = None,
    query_prompt: options.QueryPrompt = None,
    doc_prompt: options.DocPrompt = None,
    normalize: options.Normalize = None,
    offline: Offline = False,
    if_exists: options.IfExistsOption = IfExists.resume,
    json: options.Json = False,
) -> None:
    """Vectors as files of other tools; or, with -m, a model and its pooling for sentence-transformers.

    The result is a folder that appears whole, with a manifest of what it was made of.
    """
    folder = options.need(output, "-o/--output", "exported/")
    wishes = RecipeOptions(
        model, revision, trust_remote_code, pool, gran, max_length=max_length,
        query_max_length=query_max_length, query_prompt=query_prompt, doc_prompt=doc_prompt,
        normalize=normalize,
    )  # fmt: skip
    if to is Target.sentence_transformers:
        if source is not None or not model:
            raise UsageError(f"--to {to.value} takes a model and no vectors: give it with -m")
        return _model(wishes, folder, offline, if_exists, json)
    if source is None:
        raise UsageError(f"--to {to.value} takes a vectors folder, such as: lmk export vectors/ …")
    given = {
        key: value for key, value in vars(wishes).items() if value != getattr(RecipeOptions(), key)
    }
    options.no_effect(given, f"--to {to.value}: vectors are what they are")
    _vectors(source, to, folder, if_exists, json)


def _vectors(source: Path, to: Target, folder: Path, if_exists: IfExists, json: bool) -> None:
    from lmkcli.exchange.exporting import export as write
    from lmkcli.store.vectors import Vectors

    vectors = Vectors(source)
    options.prepare_output(folder, if_exists)
    with console.progress("export") as progress:
        rows = write(vectors, to.value, folder, progress)
    facts = {"documents": vectors.rows, "vectors": rows, "components": vectors.dim}
    if json:
        return console.plain_json({"output": str(folder), "to": to.value, **facts})
    print(f"{folder}: " + ", ".join(f"{console.number(n)} {name}" for name, n in facts.items()))


def _model(
    wishes: RecipeOptions, folder: Path, offline: bool, if_exists: IfExists, json: bool
) -> None:
    from lmkcli.encoding.resolving import resolve
    from lmkcli.exchange.sentence_folder import export_model

    resolved = resolve(wishes, offline)
    for line in resolved.notes:
        console.note(line)
    options.prepare_output(folder, if_exists)
    made = export_model(resolved, folder)
    if json:
        return console.plain_json({"output": str(folder), **made._asdict()})
    side = resolved.recipe.doc
    gran = f" gran {side.gran}" if side.gran else ""
    print(
        f"{folder}: {resolved.folder.name}, pool {side.pool}{gran}; load it with {made.loaded_by}"
    )
