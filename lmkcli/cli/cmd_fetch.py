"""lmk fetch: collections and models into the caches of this machine."""

from typing import Annotated

import typer

from lmkcli.cli import completion, console
from lmkcli.cli.flags import with_flags
from lmkcli.data import known
from lmkcli.errors import UsageError
from lmkcli.recipe import Revision
from lmkcli.settings import Flag


@with_flags
def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLLECTION...]",
            help="Collections or groups, by name.",
            autocompletion=completion.collections,
        ),
    ] = None,
    model: Annotated[list[str] | None, Flag("A hub name; repeat it.", short="-m")] = None,
    revision: Revision = None,
) -> None:
    """Download collections (ir_datasets, the hub) and models once, before many jobs need them.

    What is there already is left as it is, and several fetches of the same thing wait for each other.
    """
    from lmkcli.data.collection import open_collection
    from lmkcli.models.finding import check_revision, read_model

    if not names and not model:
        raise UsageError("say what to fetch: collections, or models with -m")
    if revision is not None and len(model or []) != 1:
        raise UsageError("--revision belongs to one model; give exactly one -m with it")
    wanted = [each for name in names or [] for each in known.group(name) or [name]]
    for collection in [open_collection(name) for name in wanted]:
        collection.fetch()
        console.say(f"{collection.name}: here")
    for name in model or []:
        console.note(f"fetching {name}")
        folder = read_model(name, revision)
        check_revision(folder, revision)
        console.say(f"{name}: {folder.path}")
