"""The input of engines over vectors, and the record of the vectors that an index was built from."""

import os
from pathlib import Path
from typing import Any

from lmkcli.errors import Mismatch
from lmkcli.progress import Call, Report
from lmkcli.retrieval.dense.rows import NumberedPart, read_numbering
from lmkcli.retrieval.engine import IndexTask
from lmkcli.retrieval.index_folder import read_built
from lmkcli.spec import manifest
from lmkcli.spec.manifest import Manifest
from lmkcli.store.vectors import Vectors


def open_source(task: IndexTask, report: Report) -> Vectors:
    """Open the vectors to index. Unfinished shards are errors, unless the settings allow them."""
    source = Path(task.source)
    if not task.settings.allow_incomplete:
        return Vectors(source)
    vectors = Vectors.open_incomplete(source)
    if vectors.unfinished:
        numbers = ", ".join(map(str, vectors.unfinished))
        report.note(
            f"{source} lacks the unfinished shards {numbers}; {vectors.rows:,} documents are indexed"
        )
    return vectors


def claim_vectors(
    vectors: Vectors, folder: Path, family: str, settings: dict[str, Any], call: Call
) -> None:
    """Make `folder` an index of these vectors. Raises Mismatch if it is an index with other settings."""
    identity = {"family": family, "settings": settings, "recipe": vectors.recipe.identity()}
    facts = {**manifest.environment(call), "vectors": os.path.relpath(vectors.folder, folder)}
    manifest.claim(folder, Manifest("index", identity, facts=facts))


def built_from(vectors: Vectors, folder: Path) -> dict[str, Any]:
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


def built_of(vectors: Vectors, numbered: list[NumberedPart]) -> dict[str, Any]:
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


def other_vectors(of: dict[str, Any], vectors: Vectors) -> bool:
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
