"""Refreshing: an index brought up to date with vectors or a collection that changed.

The new files grow in a numbered subfolder, and `built.json`, which names it, is replaced at once: who
searches meanwhile keeps what was opened. Then the old files are removed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli import catalog, manifest
from lmkcli.data.collection import Collection
from lmkcli.errors import DataError
from lmkcli.progress import Progress
from lmkcli.retrieval import index, indexing
from lmkcli.retrieval.index import BUILT
from lmkcli.retrieval.rescoring import Numbered, still_alive
from lmkcli.retrieval.views import flat
from lmkcli.store import outputs, parts
from lmkcli.store.vectors import Vectors

DEAD_SHARE = 0.25  # of an index's rows, beyond which it is built again


class Refreshed(NamedTuple):
    """The index's facts, and in words what was done."""

    facts: dict[str, Any]
    how: str


def refresh_dense(
    vectors: Vectors, folder: Path, family: str, settings: Any, progress: Progress
) -> Refreshed:
    """Append what is new, pass over what is gone; build again where that cannot be, and say so.

    Mismatch when the index was made with other settings, Stopped when another process refreshes it.
    """
    indexing.claim_dense(vectors, folder, family, settings)
    with parts.locked(folder):
        built = index.ready(folder)
        if not built:
            return Refreshed(
                indexing.build_dense(vectors, folder, family, settings, progress), "built"
            )
        if built["of"]["vectors"] == vectors.digest():
            return Refreshed(built, "it is up to date already")
        kind = catalog.load(catalog.INDEXES, family, "index kind")
        reason = _obstacle(built["of"], vectors)
        if not reason:
            try:
                return _extend(kind, built, vectors, folder, progress)
            except DataError as error:
                reason = str(error)

        def build(where: Path) -> dict[str, Any]:
            return dict(kind.build(flat(vectors), where, settings, progress))

        of = indexing.built_of(vectors, indexing.numbered(vectors))
        facts = _replace(folder, built, build, of)
        return Refreshed(facts, f"built again: {reason}")


def _numbering(of: dict[str, Any]) -> list[Numbered]:
    return [Numbered.from_json(item) for item in of["numbering"]]


def _obstacle(of: dict[str, Any], vectors: Vectors) -> str:
    """Why an index cannot be brought from what it was built of to `vectors`; empty if it can."""
    numbered = {piece.name: piece for piece, _ in _numbering(of)}
    old = [piece for piece in vectors.slices if piece.name in numbered]
    for piece in old:
        same = of["digests"].get(str(piece.name)) == vectors.part_digest(piece.name)
        if not same or (piece.alive & ~numbered[piece.name].alive).any():
            return "these are other vectors"
    kept = sum(piece.rows for piece in old)
    added = vectors.rows - kept
    dead = sum(piece.rows for piece in numbered.values()) - kept
    if dead > DEAD_SHARE * (dead + kept + added):
        return f"{dead} of its {dead + kept + added} rows would be dead"
    return ""


def _extend(
    kind: Any, built: dict[str, Any], vectors: Vectors, folder: Path, progress: Progress
) -> Refreshed:
    """The parts that the index lacks behind those that it has."""
    numbering = _numbering(built["of"])
    names = {piece.name for piece, _ in numbering}
    added = [piece for piece in vectors.slices if piece.name not in names]
    fresh = Vectors(vectors.folder, added)
    numbering += indexing.numbered(fresh)
    of = indexing.built_of(vectors, numbering)
    dead = int((~still_alive(numbering, vectors.slices)).sum())
    how = f"{fresh.rows} rows appended, {dead} are dead and passed over"
    if not added:
        old = {key: value for key, value in built.items() if key not in ("digest", "of", "at")}
        return Refreshed(indexing.finish(folder, old, of, built["at"]), how)

    def append(where: Path) -> dict[str, Any]:
        source = folder / built["at"]
        made = kind.append(flat(fresh), source, where, progress)
        return {**{k: built[k] for k in ("factory", "training_rows") if k in built}, **made}

    return Refreshed(_replace(folder, built, append, of), how)


def refresh_lexical(
    collection: Collection, folder: Path, family: str, settings: Any, progress: Progress
) -> Refreshed:
    """Build again from what the collection is now, unless its files are as they were."""
    indexing.claim_lexical(collection, folder, family, settings)
    with parts.locked(folder):
        built = index.ready(folder)
        if not built:
            facts = indexing.build_lexical(collection, folder, family, settings, progress)
            return Refreshed(facts, "built")
        stamp = collection.stamp()
        if stamp and stamp == built["of"]["stamp"]:
            return Refreshed(built, "it is up to date already")

        def build(where: Path) -> dict[str, Any]:
            return indexing.build_words(collection, where, family, settings, progress)

        facts = _replace(folder, built, build, {"stamp": stamp})
        return Refreshed(facts, f"built again: {family} counts words over the whole collection")


def _replace(
    folder: Path,
    built: dict[str, Any],
    make: Callable[[Path], dict[str, Any]],
    of: dict[str, Any],
) -> dict[str, Any]:
    """Make new files, let them count, remove the old ones; returns the new facts."""
    at = str(int(built["at"] or 1) + 1)
    where = folder / at
    where.mkdir(exist_ok=True)
    ours = manifest.read(folder, "index")
    outputs.discard(folder, ours, set(), at)  # left by a refresh that was killed
    facts = indexing.finish(folder, make(where), of, at)
    outputs.discard(folder, ours, {manifest.NAME, BUILT, parts.LOCK, at})
    return facts
