"""The FAISS engine: builds, updates, shards and opens the folder of a FAISS index.

Sharded building: the first task trains the index, and each task adds its documents to its own lists. Joining
the lists on disk gives the index that a single process would build.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lmkcli.artifact.kinds import IndexManifest
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.artifact.shards import Shards, shards_folder
from lmkcli.data.collection import Collection, Shard
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Progress, Report
from lmkcli.retrieval.dense.rows import (
    NumberedPart,
    flat,
    number,
    number_docs,
    read_numbering,
    still_live,
)
from lmkcli.retrieval.dense.vector_search import Blocks
from lmkcli.retrieval.dense.vector_source import (
    built_from,
    built_of,
    claim_vectors,
    new_parts,
    open_source,
    other_vectors,
)
from lmkcli.retrieval.engine import IndexTask, IndexUpdate, family_of
from lmkcli.retrieval.engines.faiss.faiss_index import FaissIndex, Share
from lmkcli.retrieval.engines.faiss.settings import FaissSettings
from lmkcli.retrieval.index import DATABASE, Index
from lmkcli.retrieval.index_folder import read_built, remove_replaced, replace_files, write_built
from lmkcli.retrieval.settings import OpenSettings
from lmkcli.spec.values import NO_LIMIT
from lmkcli.store.vectors import Vectors
from lmkcli.system.atomic import locked
from lmkcli.system.input_files import validate
from lmkcli.text.formatting import size

DELETED_SHARE = 0.25  # of the rows; an index with more deleted rows is built again
TRAINED, LISTS = "trained.index", "faiss.index"  # files of the shards


class Faiss:
    """Approximate search with FAISS over the vectors of a folder."""

    variant: ClassVar[str] = "vectors"

    @classmethod
    def plan(cls, task: IndexTask, report: Report) -> "FaissPlan":
        """Open the vectors. Raises UsageError and DataError for an index that cannot be built here."""
        vectors, settings = open_source(Vectors, task, report), task.settings.part(FaissSettings)
        if settings.muvera and vectors.single:
            raise UsageError(
                f"--muvera: {vectors.folder} holds one vector for each document, which needs no encoding; "
                "drop it"
            )
        plan = FaissPlan(vectors, task.folder, settings, task.settings.apart)
        if task.settings.shard:
            return plan
        if shards := find_shards(vectors, task.folder, settings):
            if task.overwrite or not read_built(
                task.folder
            ):  # else only their removal is unfinished
                shards.check_whole()
            return plan
        if task.settings.apart and not read_built(task.folder):
            raise UsageError(
                f"--apart joins shards, and {task.folder} has none: build each with --shard i/n"
            )
        blocks = indexed(vectors, settings)
        needed = FaissIndex.memory(blocks, settings)
        if task.overwrite:
            FaissIndex.check_buildable(blocks, settings)
        report.note(
            f"{settings.kind} over {blocks.rows:,} x {blocks.dim}: about {size(needed)} to build"
        )
        return plan

    @classmethod
    def open_index(
        cls, folder: Path, described: IndexManifest, built: dict[str, Any], settings: OpenSettings
    ) -> Index:
        """Open an index that `lmk index` built."""
        from lmkcli.models.devices import choose_device  # imports torch
        from lmkcli.retrieval.dense.dense_index import OpenedEngine, open_approximate
        from lmkcli.retrieval.dense.muvera import FixedDimensional

        settings.refuse("an index of FAISS", *DATABASE)
        values = {**described.identity.settings, "max_memory": NO_LIMIT}
        validate(values, FaissSettings, f"the settings of {folder}", "build the index again")
        recorded = FaissSettings(**values)

        def open_files(vectors: Vectors) -> OpenedEngine:
            search_settings = replace(
                recorded, ef_search=settings.ef_search, nprobe=settings.nprobe
            )
            device = choose_device(settings.device)
            # Copying all lists to a GPU takes time, so a GPU is used only if the user named it.
            named = device.type == "cuda" and settings.device != "auto"
            opened = FaissIndex.open(
                folder / built["at"], search_settings, (device.index or 0) if named else None
            )
            encoding = None
            if recorded.muvera:
                encoding = FixedDimensional(recorded.muvera, vectors.dim)
            return OpenedEngine(opened, opened.note, encoding)

        return open_approximate(folder, described, built, settings, open_files)


@dataclass(frozen=True)
class FaissPlan:
    """A FAISS index of open vectors. With `apart`, each joined shard stays in its own file."""

    vectors: Vectors
    folder: Path
    settings: FaissSettings
    apart: bool = False
    collection: Collection | None = None

    def build(self, report: Report) -> dict[str, Any]:
        """Build the index, or join its shards if they exist."""
        if find_shards(self.vectors, self.folder, self.settings):
            return join_shards(self.vectors, self.folder, self.settings, self.apart, report)
        return build_faiss(self.vectors, self.folder, self.settings, report)

    def update(self, report: Report) -> IndexUpdate:
        """Update the index, or join its shards if they exist."""
        if find_shards(self.vectors, self.folder, self.settings):
            return IndexUpdate(self.build(report), "shards joined")
        return update_faiss(self.vectors, self.folder, self.settings, report)

    def build_shard(self, shard: Shard, report: Report) -> Shards | None:
        """Build one shard, unless the whole index exists."""
        if read_built(self.folder):
            build_faiss(
                self.vectors, self.folder, self.settings
            )  # raises Mismatch for another index
            return None
        return build_shard(self.vectors, self.folder, self.settings, shard, report)


def build_faiss(
    vectors: Vectors, folder: Path, settings: FaissSettings, report: Report = Report()
) -> dict[str, Any]:
    """Build an index over vectors and return its facts. A finished index of the same vectors is kept.

    Raises Mismatch if the folder contains an index with other settings, or of other vectors.
    """
    with rollback_on_error(folder):
        _claim(vectors, folder, settings, report)
        if built := built_from(vectors, folder):
            return built
        facts = FaissIndex.build(indexed(vectors, settings), folder, settings, report.progress)
        return write_built(folder, facts, built_of(vectors, numbered(vectors, settings)), "")


def _claim(vectors: Vectors, folder: Path, settings: FaissSettings, report: Report) -> None:
    claim_vectors(vectors, folder, family_of(settings.kind), _recorded(settings), report.call)


def _recorded(settings: FaissSettings) -> dict[str, Any]:
    """The settings that belong to the index; the memory limit belongs to the machine."""
    recorded = {**asdict(settings), "max_memory": 0}
    if not settings.muvera:
        del recorded["muvera"]  # as in indexes of earlier versions, which are the same without it
    return recorded


def indexed(vectors: Vectors, settings: FaissSettings) -> Blocks:
    """Return what the index contains: every vector, or one encoding for each document."""
    if not settings.muvera:
        return flat(vectors)
    from lmkcli.retrieval.dense.muvera import EncodedDocs  # imports torch

    return EncodedDocs(vectors, settings.muvera)


def numbered(vectors: Vectors, settings: FaissSettings) -> list[NumberedPart]:
    """Return the parts of a folder with the numbers of rows that the index gives them."""
    return number_docs(vectors) if settings.muvera else number(vectors)


def update_faiss(
    vectors: Vectors, folder: Path, settings: FaissSettings, report: Report = Report()
) -> IndexUpdate:
    """Append new rows and skip deleted rows. Build the index again if that is impossible.

    Raises Mismatch for other settings, and Stopped if another process updates the index.
    """
    _claim(vectors, folder, settings, report)
    with locked(folder):
        built = read_built(folder)
        if not built:
            return IndexUpdate(build_faiss(vectors, folder, settings, report), "built")
        remove_replaced(folder, built["at"])
        if built["of"]["vectors"] == vectors.digest():
            return IndexUpdate(built, "already up to date")
        reason = _obstacle(built["of"], vectors)
        if not reason:
            try:
                return _append(built, vectors, folder, settings, report.progress)
            except DataError as error:
                reason = str(error)

        def build(where: Path) -> dict[str, Any]:
            return FaissIndex.build(indexed(vectors, settings), where, settings, report.progress)

        of = built_of(vectors, numbered(vectors, settings))
        return IndexUpdate(replace_files(folder, built, build, of), f"built again: {reason}")


def _obstacle(of: dict[str, Any], vectors: Vectors) -> str:
    """The reason why rows cannot be appended to the index; empty if they can."""
    if other_vectors(of, vectors):
        return "these are other vectors"
    numbered = {piece.name: piece for piece, _ in read_numbering(of)}
    kept = sum(piece.rows for piece in vectors.slices if piece.name in numbered)
    added = vectors.rows - kept
    deleted = sum(piece.rows for piece in numbered.values()) - kept
    if deleted > DELETED_SHARE * (deleted + kept + added):
        return f"{deleted} of its {deleted + kept + added} rows would be deleted rows"
    return ""


def _append(
    built: dict[str, Any],
    vectors: Vectors,
    folder: Path,
    settings: FaissSettings,
    progress: Progress,
) -> IndexUpdate:
    """Add the new parts behind those of the index. Deleted rows stay in the index and are skipped."""
    parts = read_numbering(built["of"])
    fresh = new_parts(parts, vectors)
    parts += numbered(fresh, settings)
    of = built_of(vectors, parts)
    deleted = int((~still_live(parts, vectors.slices)).sum())
    changes = f"{fresh.rows} rows appended, {deleted} deleted rows skipped"
    if not fresh.slices:
        old = {key: value for key, value in built.items() if key not in ("digest", "of", "at")}
        return IndexUpdate(write_built(folder, old, of, built["at"]), changes)

    def append(where: Path) -> dict[str, Any]:
        facts = FaissIndex.append(indexed(fresh, settings), folder / built["at"], where, progress)
        return {**{k: built[k] for k in ("factory", "training_rows") if k in built}, **facts}

    return IndexUpdate(replace_files(folder, built, append, of), changes)


def build_shard(
    vectors: Vectors, folder: Path, settings: FaissSettings, shard: Shard, report: Report = Report()
) -> Shards:
    """Build one shard of the index and return all shards that exist. A finished shard is kept.

    The first task trains the index, and the others wait for it. Raises UsageError for an index kind without
    inverted lists, and Mismatch if shards of another index exist.
    """
    whole = indexed(vectors, settings)
    FaissIndex.check_joinable(whole, settings)
    identity = _shards_identity(vectors, settings)
    shards = Shards.claim(folder, identity, shard.count, [LISTS], report.call)
    trained = shards.once(
        TRAINED, lambda path: FaissIndex.train(whole, path, settings), report.note
    )
    path = shards.path(shard.number, LISTS)
    if not path.exists():
        rows = shard.rows(vectors.rows)
        by_document = vectors.single or settings.muvera
        first = rows.start if by_document else int(vectors.starts[rows.start])
        share = Share(indexed(vectors.share(rows), settings), first)
        FaissIndex.build_shard(share, trained, path, settings, report.progress)
    return shards


def find_shards(vectors: Vectors, folder: Path, settings: FaissSettings) -> Shards | None:
    """Return the shards of an index, if any exist. Raises Mismatch for the shards of another index."""
    return Shards.find(folder, _shards_identity(vectors, settings))


def join_shards(
    vectors: Vectors,
    folder: Path,
    settings: FaissSettings,
    apart: bool = False,
    report: Report = Report(),
) -> dict[str, Any]:
    """Join shards to the index of all vectors and return its facts. With `apart`, they stay in their files.

    Raises DataError for missing shards, and Mismatch for the shards of another index.
    """
    if not (shards := find_shards(vectors, folder, settings)):
        raise DataError(f"{shards_folder(folder)} does not exist: build the shards first")
    if read_built(folder):
        built = build_faiss(vectors, folder, settings, report)  # an interrupted process joined them
    else:
        shards.check_whole()
        with rollback_on_error(folder):
            _claim(vectors, folder, settings, report)
            paths = [shards.path(each, LISTS) for each in range(shards.count)]
            facts = FaissIndex.join(shards.shared(TRAINED), paths, folder, settings, apart)
            built = write_built(folder, facts, built_of(vectors, numbered(vectors, settings)), "")
    shards.remove()
    return built


def _shards_identity(vectors: Vectors, settings: FaissSettings) -> dict[str, Any]:
    return {"settings": _recorded(settings), "vectors": vectors.digest()}
