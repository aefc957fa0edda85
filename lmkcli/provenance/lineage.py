"""Lineage: the steps that made an artifact, sources first, with their records."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import (
    IndexManifest,
    Manifest,
    ModelManifest,
    RunManifest,
    TokensManifest,
    VectorsManifest,
    plain,
)
from lmkcli.errors import DataError
from lmkcli.models.model_folder import TRAINED
from lmkcli.retrieval.index_folder import read_record
from lmkcli.retrieval.searching import read_manifest
from lmkcli.spec.operation import named
from lmkcli.store import parts
from lmkcli.store.part_reader import collection_digest
from lmkcli.system.input_files import file_digest

# Roles of the fields of an operation that may name an input artifact.
INPUTS = ("collection", "artifact", "run")
_DEEPEST = 100  # artifacts in a row; lmk makes chains of about ten


@dataclass(frozen=True)
class LineageStep:
    """The record of one artifact."""

    path: str
    made: Manifest
    digest: str
    """Digest of the contents of the artifact; of the inputs of an index."""
    collection: str
    """Digest of the documents that it was made from; empty if it was made from another artifact."""

    @property
    def operation(self) -> dict[str, Any]:
        """The record of the operation that made it; empty if it was made by a Python function."""
        return self.made.facts.operation

    def resolved(self, name: str) -> str:
        """Return a path of the command, relative to the working directory of the command."""
        return os.path.normpath(os.path.join(self.made.facts.directory, name))

    @property
    def source(self) -> str:
        """The name of the collection that it was made from, if it is recorded."""
        made = self.made
        if isinstance(made, TokensManifest | VectorsManifest):
            return made.execution.source.name
        if isinstance(made, IndexManifest) and made.identity.collection:
            return made.identity.collection.name
        return made.facts.collection if isinstance(made, RunManifest) else ""

    def as_json(self) -> dict[str, Any]:
        """Return the step in a score log."""
        made = {"execution": {}, **plain(self.made)}
        sections = {name: made[name] for name in ("kind", "identity", "execution", "facts")}
        return {"path": self.path, **sections, "digest": self.digest, "collection": self.collection}

    @classmethod
    def from_json(cls, step: Mapping[str, Any], where: str) -> "LineageStep":
        """Read a step of a score log. Raises DataError, which names `where`, if it is invalid."""
        made = manifest.from_json(step, f"{where}, {step['path']}")
        return cls(step["path"], made, step["digest"], step["collection"])


def steps(path: Path) -> list[LineageStep]:
    """Return all steps that led to an artifact; its own step is the last. DataError for other files."""
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
    """Return the paths of the existing artifacts that it was made from."""
    paths = [
        step.resolved(path) for each in named(step.operation, *INPUTS).values() for path in each
    ]
    if not step.operation:  # a Python function made it: its inputs are among the facts
        made = step.made
        if isinstance(made, IndexManifest) and made.facts.vectors:
            paths.append(os.path.normpath(os.path.join(step.path, made.facts.vectors)))
        if isinstance(made, RunManifest):
            paths.append(made.facts.index)
    return [path for path in dict.fromkeys(paths) if outputs.is_artifact(Path(path))]


def read(path: Path) -> LineageStep:
    """Return the record of one artifact, and digests of its current contents."""
    if path.is_file():
        return LineageStep(str(path), read_manifest(path), file_digest(path), "")
    described = manifest.read(path)
    return LineageStep(str(path), described, *_digests(path, described))


def _digests(path: Path, described: Manifest) -> tuple[str, str]:
    """Return the digests of the contents of a folder, and of the documents that it was made from.

    DataError for a model before its training has ended.
    """
    if isinstance(described, ModelManifest):
        if not (path / TRAINED).is_file():
            raise DataError(f"the training of {path} has not ended; run its command again")
        files = sorted(path.rglob("*.safetensors"))
        digests = [[str(file.relative_to(path)), file_digest(file)] for file in files]
        return manifest.digest(digests), ""
    if isinstance(described, IndexManifest):
        if not (record := read_record(path, described)):
            return "", ""
        return record.digest, str(record.facts.get("collection", ""))
    if not isinstance(described, TokensManifest | VectorsManifest):
        raise DataError(
            f"{path} contains {described.kind}, and {described.kind} have nothing to compare"
        )
    slices = parts.read_state(path, described.execution.shards).slices
    of_parts = [[parts.part_summary(path, p.name).digest, p.as_json()[1]] for p in slices]
    return manifest.digest(sorted(of_parts)), collection_digest(path, slices)
