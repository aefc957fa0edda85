"""lmk update: vectors and their indexes brought to what a collection is now, in one step."""

import io
import os
import shlex
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli.cli import completion, console, recording
from lmkcli.cli.flags import with_flags
from lmkcli.cli.options import Json
from lmkcli.errors import DataError, UsageError
from lmkcli.reading import parsed
from lmkcli.settings import Flag, TrustRemoteCode
from lmkcli.system import network

if TYPE_CHECKING:
    from lmkcli.manifest import Manifest

_ORDER = ("vectors", "index")  # an index follows its vectors
# What belongs to the command line that began the artifact, and not to what it holds.
_DROPPED = ("output", "if_exists", "shard", "json", "dry_run", "allow_incomplete")


@dataclass(frozen=True)
class UpdateOptions:
    """What an update may do, and how it says what it did."""

    trust_remote_code: TrustRemoteCode = False
    download: Annotated[bool, Flag("Allow downloading missing models and collections.")] = False
    json: Json = False


@with_flags
def update(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTION",
            help="What is followed.",
            autocompletion=completion.collections,
        ),
    ],
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER…", help="Vectors made of it, and indexes of either; there already."
        ),
    ],
    options: UpdateOptions,
) -> None:
    """Bring vectors and indexes to what a collection is now, as the commands that made them would.

    The settings are those with which each folder was made: 'lmk encode' and 'lmk index' are run again
    with --if-exists update, vectors first. Whatever is up to date stays as it is, and a step that is
    stopped or fails leaves the folder that it works on as it was.
    """
    if not options.download:  # what a folder's record names is not fetched unasked
        network.forbid()
    made = _made(source, folders, options.trust_remote_code)
    lmk: Any = context.find_root().command
    lines = {folder: _again(lmk, source, folder, made[folder]) for folder in folders}
    steps = []
    for folder in sorted(folders, key=lambda each: _ORDER.index(made[each].kind)):
        console.note(f"$ {shlex.join(['lmk', *lines[folder]])}")
        steps.append(_run(lmk, lines[folder], options.json))
    if options.json:
        console.plain_json(steps)


def _made(source: str, folders: list[Path], trust: bool) -> "dict[Path, Manifest]":
    """What is in each folder; UsageError for one that holds nothing, DataError for what must not be run."""
    from lmkcli import manifest

    missing = [str(folder) for folder in folders if not (folder / manifest.NAME).is_file()]
    if missing:
        raise UsageError(
            f"there is no artifact at {', '.join(missing)}; make it once, for instance with "
            f"lmk encode {source} -m MODEL -o vectors/ or lmk index vectors/ -o index/"
        )
    made = {folder: manifest.read(folder) for folder in folders}
    for folder in folders:
        manifest.check_whole(folder, made[folder])
        _check_code(folder, made[folder], trust)
    return made


def _run(lmk: Any, line: list[str], json: bool) -> Any:
    """Run one step; with `json` nothing is printed, and what it would have said in JSON is returned."""
    if not json:
        return recording.run(lmk, line, shown=True)
    verb, *words = line
    with redirect_stdout(io.StringIO()) as said:
        recording.run(lmk, [verb, "--json", *words], shown=True)
    return parsed(said.getvalue())


def _check_code(folder: Path, made: "Manifest", trust: bool) -> None:
    """DataError for a model that runs code of its own, unless this command line allows it."""
    recorded = [made.facts.get("call", {}), *made.identity.get("recipe", {}).values()]
    if not trust and any(each.get("trust_remote_code") for each in recorded):
        from lmkcli.encoding.recorded import refuse_code

        refuse_code(str(folder), str(made.facts.get("call", {}).get("model", "")))


def _place(folder: Path, made: "Manifest") -> str:
    """Where the Milvus of an index is; DataError for a server elsewhere, which a record cannot choose."""
    from lmkcli.retrieval.database import is_local

    uri = str(made.identity["settings"].get("uri", ""))
    if not is_local(uri):
        raise DataError(
            f"{folder} has its vectors on the server {uri}, and no server elsewhere is asked because an "
            f"index names it; if you trust it, run lmk index with --uri {uri} and --if-exists update"
        )
    return uri if "://" in uri else os.path.normpath(folder / uri)


def _again(lmk: Any, source: str, folder: Path, made: "Manifest") -> list[str]:
    """The words that made a folder, to bring it up to date; DataError where nobody knows them."""
    call = dict(made.facts.get("call", {}))
    if made.kind not in _ORDER or call.get("verb") not in ("encode", "index"):
        raise DataError(
            f"{folder} was not made by lmk encode or lmk index, so there is nothing to do again; give "
            "vectors or an index"
        )
    kept = {name: value for name, value in call.items() if name not in _DROPPED}
    if made.kind == "vectors":
        kept["model"] = made.facts["models"]["doc"]["model"]
    if "uri" in kept:
        kept["uri"] = _place(folder, made)
    read = folder / made.facts["vectors"] if "vectors" in made.facts else source
    told = {
        "source": os.path.normpath(read) if read != source else source,
        "output": str(folder),
        "if_exists": "update",
    }
    return recording.words(lmk, kept | told)
