"""Update: bring vectors and their indexes to the current state of a collection in one step."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation, named, operation_kind
from lmkcli.spec.option import options
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, TrustRemoteCode
from lmkcli.system import network

if TYPE_CHECKING:
    from lmkcli.artifact.kinds import IndexManifest, Manifest, VectorsManifest

_ORDER = ("vectors", "index")  # vectors before their indexes
Download = Annotated[
    bool, Flag("Allow downloading missing models and collections.", role="consent")
]


@dataclass(frozen=True)
class Updated(Result):
    """The results of the operations that updated the folders, in their order."""

    steps: tuple[Result, ...]

    def as_json(self) -> Any:
        """Return a list of the steps."""
        return [step.as_json() for step in self.steps]

    def blocks(self) -> Iterator[Table | str]:
        """Yield the blocks of the steps."""
        for step in self.steps:
            yield from step.blocks()


@dataclass(frozen=True)
class Update(Operation[Updated]):
    """Update vectors and indexes to the current state of a collection, with their recorded settings.

    For each folder, vectors first, lmk runs the recorded operation (lmk encode or lmk index) again with
    --if-exists update. Up-to-date folders are left unchanged. A stopped or failed step leaves its folder
    unchanged.
    """

    verb: ClassVar[str] = "update"

    source: Annotated[
        str,
        Flag("The collection.", argument=True, metavar="COLLECTION", role="collection"),
    ]
    folders: Annotated[
        list[Path],
        Flag(
            "Existing vectors of the collection, and existing indexes of it or of these vectors.",
            argument=True,
            metavar="FOLDER…",
            role="artifact",
        ),
    ]
    trust_remote_code: TrustRemoteCode = False
    download: Download = False

    def execute(self, report: Report) -> Updated:
        """Update each folder."""
        with network.restricted(
            not self.download
        ):  # the record of another person must not start downloads
            made = self._made()
            steps = {folder: self._step(folder, made[folder]) for folder in self.folders}
            done = []
            for folder in sorted(self.folders, key=lambda each: _ORDER.index(made[each].kind)):
                report.note(f"$ {steps[folder].command_line()}")
                done.append(steps[folder].run(report))
        return Updated(tuple(done))

    def _made(self) -> "dict[Path, VectorsManifest | IndexManifest]":
        """Return the manifest of each folder. Raises UsageError if it is missing,
        DataError if it is refused.
        """
        from lmkcli.artifact import manifest
        from lmkcli.artifact.kinds import IndexManifest, VectorsManifest
        from lmkcli.encoding.encoder import refuse_code

        missing = [str(each) for each in self.folders if not (each / manifest.NAME).is_file()]
        if missing:
            raise UsageError(
                f"no artifact at {', '.join(missing)}; make it first, for instance with "
                f"lmk encode {self.source} -m MODEL -o vectors/ or lmk index vectors/ -o index/"
            )
        made: dict[Path, VectorsManifest | IndexManifest] = {}
        for folder in self.folders:
            described = manifest.read(folder)
            if needs_code(described) and not self.trust_remote_code:
                models = named(described.facts.operation, "model")
                refuse_code(str(folder), ", ".join(models.get("model", [])))
            by_verb = described.facts.operation.get("operation") in ("encode", "index")
            if not (by_verb and isinstance(described, VectorsManifest | IndexManifest)):
                raise DataError(
                    f"{folder} was not made by lmk encode or lmk index; name vectors or an index"
                )
            made[folder] = described
        return made

    def _step(self, folder: Path, made: "VectorsManifest | IndexManifest") -> Operation[Any]:
        """Return the operation that updates one folder."""
        from lmkcli.artifact.kinds import VectorsManifest

        record = made.facts.operation
        kind = operation_kind(record)
        changes: dict[str, Any] = {"source": self.source, "output": folder, "if_exists": "update"}
        if isinstance(made, VectorsManifest):
            changes["model"] = made.facts.models.doc.model
            changes["trust_remote_code"] = needs_code(made)
            return kind.from_json(record, **changes)
        if made.facts.vectors:
            changes["source"] = os.path.normpath(folder / made.facts.vectors)
        built = made.identity.settings
        addresses = (each.name for each in options(kind) if each.flag.role == "address")
        changes |= {
            name: _local(folder, name, built[name]) for name in addresses if built.get(name)
        }
        return kind.from_json(record, **changes)


def needs_code(made: "Manifest") -> bool:
    """Return whether the model of an artifact contains code to run."""
    from lmkcli.artifact.kinds import recorded_recipe

    recipe = recorded_recipe(made)
    return recipe is not None and any(side.trust_remote_code for side in recipe.sides)


def _local(folder: Path, field: str, address: Any) -> str:
    """Return a recorded address.

    The address of a file is relative to its index. Raises DataError for other machines, and for values
    that are not text.
    """
    if not isinstance(address, str):
        raise DataError(f"{folder} was made with the {field} {address!r}; build the index again")
    if not network.is_local(address):
        raise DataError(
            f"the vectors of {folder} are on the server {address}; lmk does not contact a server only "
            f"because an index names it. If you trust the server, run lmk index with --{field} {address} and "
            "--if-exists update"
        )
    return address if "://" in address else os.path.normpath(folder / address)
