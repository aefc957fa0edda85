"""Fetch: download collections and models into the caches of this machine."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from lmkcli.data import known
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.recipe import Revision
from lmkcli.settings import Flag
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result


@dataclass(frozen=True)
class Fetched(Result):
    """The collections that are on this machine now, and the folder of each model."""

    collections: tuple[str, ...]
    models: dict[str, str]

    def as_json(self) -> Any:
        """Names of collections, and folders by model."""
        return {"collections": list(self.collections), "models": self.models}

    def __str__(self) -> str:
        lines = [f"{name}: here" for name in self.collections]
        return "\n".join([*lines, *(f"{name}: {path}" for name, path in self.models.items())])


@dataclass(frozen=True)
class Fetch(Operation[Fetched]):
    """Download collections (ir_datasets, the hub) and models once, before many jobs need them.

    Existing files are left unchanged, and several fetches of the same thing wait for each other.
    """

    verb: ClassVar[str] = "fetch"

    names: Annotated[
        list[str] | None,
        Flag(
            "Collections or groups, by name.",
            argument=True,
            metavar="[COLLECTION...]",
            role="collection",
        ),
    ] = None
    model: Annotated[list[str] | None, Flag("A hub name; repeat it.", short="-m", role="model")] = (
        None
    )
    revision: Revision = None

    def check(self) -> None:
        """Raise UsageError if nothing is named, or --revision belongs to no single model."""
        if not self.names and not self.model:
            raise UsageError("name something to fetch: collections, or models with -m")
        if self.revision is not None and len(self.model or []) != 1:
            raise UsageError("--revision belongs to one model; give exactly one -m with it")

    def execute(self, report: Report) -> Fetched:
        """Download everything that is missing."""
        from lmkcli.data.collection import open_collection
        from lmkcli.models.finding import check_revision, read_model

        wanted = [each for name in self.names or [] for each in known.group(name) or [name]]
        collections = [open_collection(name) for name in wanted]
        for collection in collections:
            collection.fetch()
        models = {}
        for name in self.model or []:
            report.note(f"fetching {name}")
            folder = read_model(name, self.revision)
            check_revision(folder, self.revision)
            models[name] = str(folder.path)
        return Fetched(tuple(each.name for each in collections), models)
