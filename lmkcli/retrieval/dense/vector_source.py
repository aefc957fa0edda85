"""The vectors of an index: the input of its engine, their record, and opening them again."""

import os
from pathlib import Path
from typing import Any, TypeVar

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import IndexFacts, IndexIdentity, IndexManifest
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import Call, Report
from lmkcli.retrieval.dense.rows import NumberedPart, read_numbering
from lmkcli.retrieval.engine import IndexTask
from lmkcli.retrieval.index_folder import read_built
from lmkcli.store import parts
from lmkcli.store.parts import PartSlice
from lmkcli.store.vectors import StoredVectors, Vectors

AnyVectors = TypeVar("AnyVectors", bound=StoredVectors)


def open_source(kind: type[AnyVectors], task: IndexTask, report: Report) -> AnyVectors:
    """Open the vectors to index. Unfinished shards are errors, unless the settings allow them.

    Raises UsageError if the vectors are not of the class `kind`, but sparse or dense.
    """
    source = Path(task.source)
    if not task.settings.allow_incomplete:
        return kind(source)
    vectors = kind.open_incomplete(source)
    if vectors.unfinished:
        numbers = ", ".join(map(str, vectors.unfinished))
        report.note(
            f"{source} lacks the unfinished shards {numbers}; {vectors.rows:,} documents are indexed"
        )
    return vectors


def claim_vectors(
    vectors: StoredVectors, folder: Path, family: str, settings: dict[str, Any], call: Call
) -> None:
    """Make `folder` an index of these vectors. Raises Mismatch if it is an index with other settings."""
    wanted = IndexManifest(
        identity=IndexIdentity(family=family, settings=settings, recipe=vectors.recipe),
        facts=IndexFacts(
            **manifest.environment(call), vectors=os.path.relpath(vectors.folder, folder)
        ),
    )
    manifest.claim(folder, wanted)


def built_from(vectors: StoredVectors, folder: Path) -> dict[str, Any]:
    """Return the contents of built.json, empty for an unfinished index.

    Raises Mismatch if the index was built from other vectors.
    """
    built = read_built(folder)
    if built and built["of"]["vectors"] != vectors.digest():
        raise Mismatch(
            f"{folder} was built from other vectors than those now in {vectors.folder}; update it with "
            "--if-exists update, or replace it with --if-exists overwrite"
        )
    return built


def built_of(vectors: StoredVectors, numbered: list[NumberedPart]) -> dict[str, Any]:
    """Return the record of an index's vectors: the live rows of each part, and the parts that it numbers."""
    order = {part.piece.name: place for place, part in enumerate(numbered)}
    now = sorted(vectors.slices, key=lambda piece: order[piece.name])
    return {
        "vectors": vectors.digest(),
        "parts": [piece.as_json() for piece in now],
        "numbering": [part.as_json() for part in numbered],
        "digests": {str(piece.name): vectors.part_digest(piece.name) for piece in now},
        **({"unfinished shards": vectors.unfinished} if vectors.unfinished else {}),
    }


def other_vectors(of: dict[str, Any], vectors: StoredVectors) -> bool:
    """Return whether a part of the index has changed since it was built, or has deleted rows again."""
    numbered = {piece.name: piece for piece, _ in read_numbering(of)}
    for piece in vectors.slices:
        if piece.name not in numbered:
            continue
        same = of["digests"].get(str(piece.name)) == vectors.part_digest(piece.name)
        if not same or (piece.live & ~numbered[piece.name].live).any():
            return True
    return False


def new_parts(numbered: list[NumberedPart], vectors: Vectors) -> Vectors:
    """Return the parts that an index does not number yet."""
    names = {piece.name for piece, _ in numbered}
    added = [piece for piece in vectors.slices if piece.name not in names]
    return Vectors(vectors.folder, added)


def frozen_vectors(
    kind: type[AnyVectors], folder: Path, described: IndexManifest, of: dict[str, Any], moved: str
) -> AnyVectors:
    """Open the vectors that an index was built from, at their recorded location or at `moved`.

    Raises DataError if they are missing, and Mismatch if they are other vectors.
    """
    path = Path(moved) if moved else folder / described.facts.vectors
    if not (path / manifest.NAME).exists():
        raise DataError(
            f"the vectors of {folder} are not at {path}; give their location with --vectors"
        )
    slices = [PartSlice.from_json(item) for item in of["parts"]]
    vectors = kind(path, slices)
    missing = {piece.name for piece in slices} - set(parts.list_parts(path))
    if missing or vectors.digest() != of["vectors"]:
        raise Mismatch(
            f"{path} are not the vectors that {folder} was built from; build the index again"
        )
    return vectors


def incomplete(folder: Path, built: dict[str, Any]) -> str:
    """A note if the index was built before its vectors were complete; else empty."""
    shards = built["of"].get("unfinished shards")
    if not shards:
        return ""
    return f"{folder} lacks documents of the shards {', '.join(map(str, shards))}, which were not finished."


def behind(folder: Path, vectors: StoredVectors) -> str:
    """A note if the vectors were updated since the index was built or updated; else empty."""
    if type(vectors).open_incomplete(vectors.artifact).digest() == vectors.digest():
        return ""
    return (
        f"{folder} is behind {os.path.normpath(vectors.folder)}, which was updated since; the index searches "
        "the vectors that it was built from. Update it with its index command and --if-exists update"
    )
