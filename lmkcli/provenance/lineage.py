"""Lineage: the steps that led to an artifact, sources first, each with all that was recorded of it."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.errors import DataError
from lmkcli.models.folder import TRAINED
from lmkcli.reading import file_digest
from lmkcli.retrieval.index_folder import read_built
from lmkcli.retrieval.searching import read_manifest
from lmkcli.spec.operation import named
from lmkcli.store import outputs, parts
from lmkcli.store.summary import collection_digest, part_summary

# Roles of the fields that may name an artifact from which another one is made.
INPUTS = ("collection", "artifact", "run")


@dataclass(frozen=True)
class Step:
    """One artifact as it was recorded; all JSON values."""

    path: str
    kind: str
    identity: dict[str, Any]
    execution: dict[str, Any]
    facts: dict[str, Any]
    digest: str
    """Of what the artifact holds; for an index, of what it was made from."""
    collection: str
    """The digest of the documents that it was made from; empty where an artifact stands between."""

    @property
    def operation(self) -> dict[str, Any]:
        """The record of the operation that made it; empty if a Python function made it."""
        return dict(self.facts.get("operation", {}))

    def resolved(self, name: str) -> str:
        """A path as the command meant it, from the folder in which it ran."""
        return os.path.normpath(os.path.join(self.facts.get("directory", ""), name))

    @property
    def source(self) -> str:
        """The collection that it was made from, as far as it names one."""
        named = self.execution.get("source") or self.identity.get("collection") or {}
        return str(named.get("name") or self.facts.get("collection", ""))

    def as_json(self) -> dict[str, Any]:
        """What a log holds of it."""
        return asdict(self)


def steps(path: Path) -> list[Step]:
    """All steps that led to an artifact, which comes last. DataError when it is none of lmk's."""
    led: dict[str, Step] = {}
    _visit(Path(os.path.normpath(path.absolute())), led)
    return list(led.values())


def _visit(path: Path, led: dict[str, Step]) -> None:
    if str(path) in led:
        return
    step = read(path)
    for source in inputs(step):
        _visit(Path(source), led)
    led[str(path)] = step


def inputs(step: Step) -> list[str]:
    """The paths of the artifacts that it was made from, as far as they are there."""
    return [path for path in dict.fromkeys(_named(step)) if outputs.is_artifact(Path(path))]


def _named(step: Step) -> Iterator[str]:
    """Paths that may be artifacts: from the recorded operation, or as the library recorded them."""
    for paths in named(step.operation, *INPUTS).values():
        yield from map(step.resolved, paths)
    if not step.operation:
        if "vectors" in step.facts:
            yield os.path.normpath(os.path.join(step.path, step.facts["vectors"]))
        yield str(step.facts.get("index", ""))


def read(path: Path) -> Step:
    """What is recorded of one artifact, and the digests of what it holds now."""
    if path.is_file():
        described = read_manifest(path)
        manifest.check_recorded(described, outputs.sidecar(path))
        digest, collection = file_digest(path), ""
    else:
        described = manifest.read(path)
        manifest.check_recorded(described, path / manifest.NAME)
        if described.kind not in ("tokens", "vectors", "index", "model"):
            raise DataError(
                f"{path} holds {described.kind}, which says nothing that could be compared"
            )
        digest, collection = _held(path, described)
    return Step(
        str(path),
        described.kind,
        described.identity,
        described.execution,
        described.facts,
        digest,
        collection,
    )


def _held(path: Path, described: manifest.Manifest) -> tuple[str, str]:
    if described.kind == "model":
        return _weights(path), ""
    return _built(path) if described.kind == "index" else _parted(path, described)


def _weights(path: Path) -> str:
    """Of all weights of a model that was trained; DataError before it has ended."""
    if not (path / TRAINED).is_file():
        raise DataError(f"the training of {path} has not ended; run its command again")
    files = sorted(path.rglob("*.safetensors"))
    return manifest.digest([[str(file.relative_to(path)), file_digest(file)] for file in files])


def _built(path: Path) -> tuple[str, str]:
    built = read_built(path)
    return str(built.get("digest", "")), str(built.get("collection", ""))


def _parted(path: Path, described: manifest.Manifest) -> tuple[str, str]:
    slices = parts.state(path, int(described.execution["shards"])).slices
    digests = [[part_summary(path, p.name)["digest"], p.as_json()[1]] for p in slices]
    return manifest.digest(sorted(digests)), collection_digest(path, slices)
