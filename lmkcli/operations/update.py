"""Update: vectors and their indexes, brought to the current state of a collection in one step."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.settings import Flag, TrustRemoteCode
from lmkcli.spec.operation import Operation, named, operation_kind
from lmkcli.spec.result import Result
from lmkcli.system import network

if TYPE_CHECKING:
    from lmkcli.manifest import Manifest

_ORDER = ("vectors", "index")  # indexes after their vectors
Download = Annotated[
    bool, Flag("Allow downloading missing models and collections.", role="consent")
]


@dataclass(frozen=True)
class Updated(Result):
    """The results of the operations that updated each folder, in the order in which they ran."""

    steps: tuple[Result, ...]

    def as_json(self) -> Any:
        """A list of the steps."""
        return [step.as_json() for step in self.steps]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


@dataclass(frozen=True)
class Update(Operation[Updated]):
    """Update vectors and indexes to the current state of a collection, with the settings that made them.

    Each folder's own operation, lmk encode or lmk index, runs again with --if-exists update, vectors first.
    Up-to-date folders are left unchanged. A step that is stopped or fails leaves its folder unchanged.
    """

    verb: ClassVar[str] = "update"

    source: Annotated[
        str,
        Flag("The collection.", argument=True, metavar="COLLECTION", role="collection"),
    ]
    folders: Annotated[
        list[Path],
        Flag(
            "Vectors made from it, and indexes of either; they exist already.",
            argument=True,
            metavar="FOLDER…",
            role="artifact",
        ),
    ]
    trust_remote_code: TrustRemoteCode = False
    download: Download = False

    def execute(self, report: Report) -> Updated:
        """Update each folder."""
        with network.restricted(not self.download):  # a stranger's record must not start downloads
            made = self._made()
            steps = {folder: self._step(folder, made[folder]) for folder in self.folders}
            done = []
            for folder in sorted(self.folders, key=lambda each: _ORDER.index(made[each].kind)):
                report.note(f"$ {steps[folder].command_line()}")
                done.append(steps[folder].run(report))
        return Updated(tuple(done))

    def _made(self) -> "dict[Path, Manifest]":
        """The manifest of each folder; UsageError for one without, DataError for a refused one."""
        from lmkcli import manifest
        from lmkcli.encoding.recorded import refuse_code

        missing = [str(each) for each in self.folders if not (each / manifest.NAME).is_file()]
        if missing:
            raise UsageError(
                f"there is no artifact at {', '.join(missing)}; make it once, for instance with "
                f"lmk encode {self.source} -m MODEL -o vectors/ or lmk index vectors/ -o index/"
            )
        made = {folder: manifest.read(folder) for folder in self.folders}
        for folder, described in made.items():
            manifest.check_whole(folder, described)
            if needs_code(described) and not self.trust_remote_code:
                models = named(described.facts.get("operation", {}), "model")
                refuse_code(str(folder), ", ".join(models.get("model", [])))
        return made

    def _step(self, folder: Path, made: "Manifest") -> Operation[Any]:
        """The operation that brings one folder up to date; DataError if its record names none."""
        record = made.facts.get("operation", {})
        if made.kind not in _ORDER or record.get("operation") not in ("encode", "index"):
            raise DataError(
                f"{folder} was not made by lmk encode or lmk index, so its operation cannot run again; give "
                "vectors or an index"
            )
        source = self.source
        if "vectors" in made.facts:
            source = os.path.normpath(folder / made.facts["vectors"])
        changes: dict[str, Any] = {"source": source, "output": folder, "if_exists": "update"}
        if made.kind == "vectors":
            changes["model"] = made.facts["models"]["doc"]["model"]
            changes["trust_remote_code"] = needs_code(made)
        if uri := str(made.identity.get("settings", {}).get("uri", "")):
            changes["uri"] = _local(folder, uri)
        return operation_kind(record).from_json(record, **changes)


def needs_code(made: "Manifest") -> bool:
    """Whether an artifact's model runs code of its own."""
    sides = made.identity.get("recipe", {})
    return any(side.get("trust_remote_code") for side in sides.values() if isinstance(side, dict))


def _local(folder: Path, uri: str) -> str:
    """Where the Milvus of an index is; DataError for a server elsewhere, which a record must not select."""
    from lmkcli.retrieval.database import is_local

    if not is_local(uri):
        raise DataError(
            f"the vectors of {folder} are on the server {uri}, and lmk contacts no server elsewhere because "
            f"an index names it; if you trust it, run lmk index with --uri {uri} and --if-exists update"
        )
    return uri if "://" in uri else os.path.normpath(folder / uri)
