"""Fetch: download collections and models into the caches of this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from lmkcli.data import known_collections
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.recipe import Revision
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag


@dataclass(frozen=True)
class Fetched(Result):
    """The downloaded collections, and the folder of each model."""

    collections: tuple[str, ...]
    models: dict[str, str]

    def as_json(self) -> Any:
        """Names of collections, and folders by model."""
        return {"collections": list(self.collections), "models": self.models}

    def blocks(self) -> Iterator[Table | str]:
        """Yield a line for each collection and each model."""
        yield from (f"{name}: downloaded" for name in self.collections)
        yield from (f"{name}: {path}" for name, path in self.models.items())


@dataclass(frozen=True)
class Fetch(Operation[Fetched]):
    """Download collections (ir_datasets, the hub) and models once, before many jobs need them.

    Existing files are left unchanged. Concurrent downloads of the same files wait for each other.
    """

    verb: ClassVar[str] = "fetch"

    names: Annotated[
        list[str] | None,
        Flag(
            "Names of collections or groups.",
            argument=True,
            metavar="[COLLECTION...]",
            role="collection",
        ),
    ] = None
    model: Annotated[
        list[str] | None,
        Flag(
            "A model by its hub name; repeatable.",
            short="-m",
            role="model",
            aliases="--encoder --model-name --model-name-or-path",
        ),
    ] = None
    revision: Revision = None

    def check(self) -> None:
        """Raise UsageError without names, or for --revision without exactly one model."""
        if not self.names and not self.model:
            raise UsageError("nothing to fetch; name collections, or models with -m")
        if self.revision is not None and len(self.model or []) != 1:
            raise UsageError("--revision needs exactly one model; give one -m with it")

    def execute(self, report: Report) -> Fetched:
        """Download everything that is missing."""
        from lmkcli.data.collection import open_collection
        from lmkcli.models.lookup import check_revision, read_model

        wanted = [
            each for name in self.names or [] for each in known_collections.members(name) or [name]
        ]
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
