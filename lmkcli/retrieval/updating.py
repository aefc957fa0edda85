"""Updating: an index brought up to date with vectors or a collection that changed.

The new files grow in a numbered subfolder, and `built.json`, which names it, is replaced at once: who
searches meanwhile keeps what was opened. Then the old files are removed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli import manifest
from lmkcli.data.collection import Collection
from lmkcli.errors import DataError
from lmkcli.progress import Progress, Report
from lmkcli.retrieval import building
from lmkcli.retrieval.index_folder import BUILT, read_built, write_built
from lmkcli.retrieval.kinds import AnnKind, ann_kind, family_of
from lmkcli.retrieval.numbering import NumberedPart, number, read_numbering, still_live
from lmkcli.retrieval.views import flat
from lmkcli.settings import AnnSettings, Bm25Settings
from lmkcli.store import outputs
from lmkcli.store.vectors import Vectors
from lmkcli.system import locking

DELETED_SHARE = 0.25  # of an index's rows, beyond which it is built again


class Updated(NamedTuple):
    """The index's facts, and in words what was done."""

    facts: dict[str, Any]
    how: str


def update_dense(
    vectors: Vectors, folder: Path, settings: AnnSettings, report: Report = Report()
) -> Updated:
    """Append what is new, pass over what is gone; build again where that cannot be, and say so.

    Mismatch when the index was made with other settings, Stopped when another process updates it.
    """
    building.claim_dense(vectors, folder, settings, report.call)
    with locking.locked(folder):
        built = read_built(folder)
        if not built:
            return Updated(building.build_dense(vectors, folder, settings, report), "built")
        if built["of"]["vectors"] == vectors.digest():
            return Updated(built, "it is up to date already")
        kind = ann_kind(family_of(settings.kind))
        reason = _obstacle(built["of"], vectors)
        if not reason:
            try:
                return _extend(kind, built, vectors, folder, report.progress)
            except DataError as error:
                reason = str(error)

        def build(where: Path) -> dict[str, Any]:
            return kind.build(flat(vectors), where, settings, report.progress)

        of = building.built_of(vectors, number(vectors))
        facts = _replace(folder, built, build, of)
        return Updated(facts, f"built again: {reason}")


def _obstacle(of: dict[str, Any], vectors: Vectors) -> str:
    """Why an index cannot be brought from what it was built of to `vectors`; empty if it can."""
    if other_vectors(of, vectors):
        return "these are other vectors"
    numbered = {piece.name: piece for piece, _ in read_numbering(of)}
    kept = sum(piece.rows for piece in vectors.slices if piece.name in numbered)
    added = vectors.rows - kept
    deleted = sum(piece.rows for piece in numbered.values()) - kept
    if deleted > DELETED_SHARE * (deleted + kept + added):
        return f"{deleted} of its {deleted + kept + added} rows would be deleted rows"
    return ""


def other_vectors(of: dict[str, Any], vectors: Vectors) -> bool:
    """Whether a part that an index was built of is another now, or has rows again that were deleted."""
    numbered = {piece.name: piece for piece, _ in read_numbering(of)}
    for piece in vectors.slices:
        if piece.name not in numbered:
            continue
        same = of["digests"].get(str(piece.name)) == vectors.part_digest(piece.name)
        if not same or (piece.live & ~numbered[piece.name].live).any():
            return True
    return False


def new_parts(numbered: list[NumberedPart], vectors: Vectors) -> Vectors:
    """The parts that an index does not number."""
    names = {piece.name for piece, _ in numbered}
    added = [piece for piece in vectors.slices if piece.name not in names]
    return Vectors(vectors.folder, added)


def _extend(
    kind: type[AnnKind], built: dict[str, Any], vectors: Vectors, folder: Path, progress: Progress
) -> Updated:
    """The parts that the index lacks behind those that it has."""
    numbered = read_numbering(built["of"])
    fresh = new_parts(numbered, vectors)
    numbered += number(fresh)
    of = building.built_of(vectors, numbered)
    deleted = int((~still_live(numbered, vectors.slices)).sum())
    how = f"{fresh.rows} rows appended, {deleted} are deleted and passed over"
    if not fresh.slices:
        old = {key: value for key, value in built.items() if key not in ("digest", "of", "at")}
        return Updated(write_built(folder, old, of, built["at"]), how)

    def append(where: Path) -> dict[str, Any]:
        source = folder / built["at"]
        facts = kind.append(flat(fresh), source, where, progress)
        return {**{k: built[k] for k in ("factory", "training_rows") if k in built}, **facts}

    return Updated(_replace(folder, built, append, of), how)


def update_lexical(
    collection: Collection,
    folder: Path,
    family: str,
    settings: Bm25Settings,
    report: Report = Report(),
) -> Updated:
    """Build again from what the collection is now, unless its files are as they were."""
    building.claim_lexical(collection, folder, family, settings, report.call)
    with locking.locked(folder):
        built = read_built(folder)
        if not built:
            facts = building.build_lexical(collection, folder, family, settings, report)
            return Updated(facts, "built")
        stamp = collection.stamp()
        if stamp and stamp == built["of"]["stamp"]:
            return Updated(built, "it is up to date already")

        def build(where: Path) -> dict[str, Any]:
            return building.build_words(collection, where, family, settings, report.progress)

        facts = _replace(folder, built, build, {"stamp": stamp})
        return Updated(facts, f"built again: {family} counts words over the whole collection")


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
    outputs.discard(folder, ours, set(), at)  # left by an update that was killed
    facts = write_built(folder, make(where), of, at)
    outputs.discard(folder, ours, {manifest.NAME, BUILT, locking.LOCK, at})
    return facts
