"""Lineage: the steps that made an artifact, sources first, with their records."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmkcli.errors import DataError
from lmkcli.models.folder import TRAINED
from lmkcli.retrieval.index_folder import read_built
from lmkcli.retrieval.searching import read_manifest
from lmkcli.spec import manifest
from lmkcli.spec.operation import named
from lmkcli.store import outputs, parts
from lmkcli.store.part_reader import collection_digest, part_summary
from lmkcli.system.input_files import file_digest

# Roles of the fields of an operation that may name an input artifact.
INPUTS = ("collection", "artifact", "run")
_DEEPEST = 100  # artifacts in a row; lmk makes chains of about ten


@dataclass(frozen=True)
class LineageStep:
    """The record of one artifact, as JSON values."""

    path: str
    kind: str
    identity: dict[str, Any]
    execution: dict[str, Any]
    facts: dict[str, Any]
    digest: str
    """Digest of the contents of the artifact; of the inputs of an index."""
    collection: str
    """Digest of the documents that it was made from; empty if it was made from another artifact."""

    @property
    def operation(self) -> dict[str, Any]:
        """The record of the operation that made it; empty if it was made by a Python function."""
        return dict(self.facts.get("operation", {}))

    def resolved(self, name: str) -> str:
        """A path of the command, relative to the working directory of the command."""
        return os.path.normpath(os.path.join(self.facts.get("directory", ""), name))

    @property
    def source(self) -> str:
        """The name of the collection that it was made from, if it is recorded."""
        named = self.execution.get("source") or self.identity.get("collection") or {}
        return str(named.get("name") or self.facts.get("collection", ""))

    def as_json(self) -> dict[str, Any]:
        """The step in a score log."""
        return asdict(self)


def steps(path: Path) -> list[LineageStep]:
    """All steps that led to an artifact; its own step is the last. DataError for other files."""
    found: dict[str, LineageStep] = {}
    above: dict[str, None] = {}  # the artifacts between the first one and this one

    def visit(path: Path) -> None:
        if str(path) in above or len(above) == _DEEPEST:
            raise DataError(
                f"{path} is recorded as an input of itself, or of more than {_DEEPEST} artifacts in a row; "
                "its manifest was changed"
            )
        if str(path) not in found:
            step = read(path)
            above[str(path)] = None
            for source in inputs(step):
                visit(Path(source))
            del above[str(path)]
            found[str(path)] = step

    visit(Path(os.path.normpath(path.absolute())))
    return list(found.values())


def inputs(step: LineageStep) -> list[str]:
    """The paths of the existing artifacts that it was made from."""
    paths = [
        step.resolved(path) for each in named(step.operation, *INPUTS).values() for path in each
    ]
    if not step.operation:  # a Python function made it: its inputs are among the facts
        if "vectors" in step.facts:
            paths.append(os.path.normpath(os.path.join(step.path, step.facts["vectors"])))
        paths.append(str(step.facts.get("index", "")))
    return [path for path in dict.fromkeys(paths) if outputs.is_artifact(Path(path))]


def read(path: Path) -> LineageStep:
    """The record of one artifact, and digests of its current contents."""
    if path.is_file():
        described = read_manifest(path)
        manifest.check_recorded(described, outputs.sidecar(path))
        digest, collection = file_digest(path), ""
    else:
        described = manifest.read(path)
        manifest.check_recorded(described, path / manifest.NAME)
        if described.kind not in ("tokens", "vectors", "index", "model"):
            raise DataError(
                f"{path} contains {described.kind}, and {described.kind} have nothing to compare"
            )
        digest, collection = _digests(path, described)
    return LineageStep(
        str(path),
        described.kind,
        described.identity,
        described.execution,
        described.facts,
        digest,
        collection,
    )


def _digests(path: Path, described: manifest.Manifest) -> tuple[str, str]:
    """The digests of the contents of a folder, and of the documents that it was made from.

    DataError for a model before its training has ended.
    """
    if described.kind == "model":
        if not (path / TRAINED).is_file():
            raise DataError(f"the training of {path} has not ended; run its command again")
        files = sorted(path.rglob("*.safetensors"))
        digests = [[str(file.relative_to(path)), file_digest(file)] for file in files]
        return manifest.digest(digests), ""
    if described.kind == "index":
        built = read_built(path)
        return str(built.get("digest", "")), str(built.get("collection", ""))
    slices = parts.read_state(path, int(described.execution["shards"])).slices
    of_parts = [[part_summary(path, p.name)["digest"], p.as_json()[1]] for p in slices]
    return manifest.digest(sorted(of_parts)), collection_digest(path, slices)
