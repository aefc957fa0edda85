"""Updates of vectors to a changed collection, and compaction of the parts that updates leave.

An update reads the collection once. A document keeps its vector if the folder has a vector for its content
hash. Only new and changed documents are encoded, into parts of the shard UPDATES. Readers ignore these parts
until `generation.json` lists them. If an update is killed, the next update uses its finished parts.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import WHOLE, Collection, Doc, DocStream, Qrel, Query, Shard, doc_hash
from lmkcli.encoding import shard_run
from lmkcli.encoding.encoder import encode_stream
from lmkcli.encoding.jobs import CollectionJob
from lmkcli.encoding.shard_run import vectors_target, write_vectors
from lmkcli.encoding.token_stream import token_stream
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.store import part_writer, parts
from lmkcli.store.part_reader import doc_table
from lmkcli.store.part_writer import PartTarget, PartWriter, UniqueIds, duplicates_located
from lmkcli.store.parts import UPDATES, Generation, PartSlice
from lmkcli.store.tokens import Tokens
from lmkcli.system.atomic import locked
from lmkcli.system.item_streams import batched
from lmkcli.vectors.stored import Vectors

READ_CHARACTERS = 1 << 19
KEY = "S16"  # half of a document's hash: enough to be unique, in half the memory


class VectorUpdate(NamedTuple):
    """The new generation, and how many documents kept their vector, were encoded, or were removed."""

    generation: int
    kept: int
    encoded: int
    removed: int


def run_update(job: CollectionJob, folder: Path, report: Report = Report()) -> VectorUpdate:
    """Update `folder` to the current collection, or create it.

    Raises UsageError for a source or folder that cannot be updated, Mismatch for another recipe, dtype or
    settings than those of the folder, and Stopped if another process is updating it.
    """
    source, origin = _check_source(job, folder), job.origin
    settings = shard_run.with_folder_dtype(job.settings, folder)
    encoder = shard_run.open_job(job, settings)
    described = shard_run.vectors_manifest(job, encoder, settings, report.call)
    manifest.claim(folder, shard_run.as_started(described, folder))
    with locked(folder):
        part_writer.remove_abandoned_parts(folder, UPDATES)
        before = _current(folder)
        stored = StoredHashes(folder, before.slices + _unlisted(folder, before.rows))
        first = _next_row(folder, before.rows)
        target = vectors_target(folder, UPDATES, encoder, settings)
        new_docs = NewDocuments(source, stored, report.stopping)
        with duplicates_located(source), PartWriter(target, report, first) as writer:
            workers = settings.tokenizing_processes(encoder.model.device.type)
            stream = token_stream(new_docs, encoder.document_tokenizer, WHOLE, 0, workers)
            write_vectors(encode_stream(stream, encoder, report), writer, settings)
        report.check_stop()  # a signal ends the stream of documents early
        slices = stored.requested() + _unlisted(folder, first)
        had = sum(piece.rows for piece in before.slices)
        if had and not slices:  # an incomplete source is more likely than an empty collection
            raise DataError(
                f"{job.origin.name} contains no documents, and the update would remove all {had:,}; if "
                "you want that, remove the folder or use --if-exists overwrite"
            )
        rows = _next_row(folder, before.rows)
        now = Generation(before.number, origin, slices, rows)
        now = publish_generation(folder, before, now)
    names = {piece.name for piece in before.slices}
    kept = sum(piece.rows for piece in now.slices if piece.name in names)
    total = sum(piece.rows for piece in now.slices)
    return VectorUpdate(now.number, kept, total - kept, had - kept)


def _check_source(job: CollectionJob, folder: Path) -> Collection:
    """Return the collection of a job. Raises UsageError if the update is impossible."""
    if isinstance(job.source, Tokens):
        raise UsageError(
            f"{job.source.folder} contains tokens, which cannot be updated; give the collection that "
            "they were made from"
        )
    if job.shard != WHOLE:
        raise UsageError("an update reads the whole collection in one job; drop --shard")
    then = shard_run.started(folder)
    if then and then.shards > 1 and parts.read_state(folder, then.shards).unfinished:
        raise UsageError(f"{folder} is not complete; finish its {then.shards} shards first")
    return job.source


def _current(folder: Path) -> Generation:
    """Return the current generation. A folder without updates has all its rows in generation 0."""
    if updated := parts.read_generation(folder):
        return updated
    execution = manifest.read(folder, VectorsManifest).execution
    slices = parts.read_state(folder, execution.shards).slices
    return Generation(0, execution.source, slices, 0)


def _unlisted(folder: Path, first: int) -> list[PartSlice]:
    """Return the parts of updates from row `first` on, which no generation lists yet."""
    names = parts.list_parts(folder)
    return [PartSlice(name) for name in names if name.shard == UPDATES and name.start >= first]


def _next_row(folder: Path, least: int) -> int:
    """Return a row number of UPDATES that no part has used, not even one that compaction deleted."""
    return max([least, *(piece.name.stop for piece in _unlisted(folder, 0))])


def publish_generation(folder: Path, before: Generation, now: Generation) -> Generation:
    """Make `now` the current generation. Its number grows if its rows differ from those of `before`."""
    now = now._replace(number=before.number + (now.slices != before.slices or not before.number))
    for name in {p.name for p in before.slices} - {p.name for p in now.slices}:
        os.utime(folder / parts.PARTS / str(name))  # compaction counts its hours from this time
    parts.write_generation(folder, now)
    return now


class StoredHashes:
    """The content hashes of the documents that have a vector, in 24 bytes for each row.

    The hashes of all rows are sorted once. A binary search finds a hash and, through the sort order, its row.
    The rows that were requested become the rows of the next generation.
    """

    def __init__(self, folder: Path, slices: list[PartSlice]) -> None:
        self._slices = slices
        keys = [
            np.array(doc_table(folder, piece.name).hashes(), "S32").astype(KEY)[piece.live]
            for piece in slices
        ]
        unsorted = np.concatenate([np.zeros(0, KEY), *keys])
        self._order = np.argsort(unsorted, kind="stable")
        self._keys = unsorted[self._order]
        self._requested = np.zeros(len(unsorted), np.bool_)

    def lacks(self, hashes: list[bytes]) -> NDArray[np.bool_]:
        """Return for each hash whether it has no vector. Marks the rows of all other hashes as requested."""
        keys = np.array(hashes, "S32").astype(KEY)
        at = np.searchsorted(self._keys, keys)  # the first of equal keys
        at[at == len(self._keys)] = 0
        known = self._keys[at] == keys if len(self._keys) else np.zeros(len(keys), np.bool_)
        self._requested[self._order[at[known]]] = True
        return ~known

    def requested(self) -> list[PartSlice]:
        """Return the rows that were requested, without parts that have none."""
        slices, first = [], 0
        for piece in self._slices:
            requested = self._requested[first : first + piece.rows]
            first += piece.rows
            live = piece.live
            live[np.flatnonzero(live)] = requested
            if requested.any():
                slices.append(PartSlice.of(piece.name, live))
        return slices


class NewDocuments(Collection):
    """The documents of a collection that have no vector. The stream ends early if `stopping` returns True."""

    def __init__(
        self, whole: Collection, stored: StoredHashes, stopping: Callable[[], bool]
    ) -> None:
        self._whole, self._stored, self._stopping = whole, stored, stopping
        self.name, self.settings = whole.name, whole.settings

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Return the new documents. Raises DataError for a duplicate id, of new and old documents."""
        return _NewDocumentStream(self._whole.docs(shard), self._stored, self._stopping)

    def queries(self) -> Iterator[Query]:
        """Return the queries of the whole collection."""
        return self._whole.queries()

    def qrels(self) -> Iterator[Qrel]:
        """Return the qrels of the whole collection."""
        return self._whole.qrels()


class _NewDocumentStream(DocStream):
    def __init__(self, docs: DocStream, stored: StoredHashes, stopping: Callable[[], bool]) -> None:
        self._docs, self._stored, self._stopping = docs, stored, stopping

    def __iter__(self) -> Iterator[Doc]:
        ids = UniqueIds()
        for batch in batched(self._docs, lambda doc: len(doc.text) + 64, READ_CHARACTERS):
            ids.add((doc.id for doc in batch), "this collection")
            lacks = self._stored.lacks([doc_hash(doc) for doc in batch])
            yield from (doc for doc, is_new in zip(batch, lacks, strict=True) if is_new)
            if self._stopping():
                return

    @property
    def fraction(self) -> float | None:
        return self._docs.fraction


class Compaction(NamedTuple):
    """The current generation, and how many parts were written, deleted, and kept for open readers."""

    generation: int
    written: int
    deleted: int
    kept: int


def compact(folder: Path, keep_hours: float, report: Report = Report()) -> Compaction:
    """Rewrite small parts and parts with deleted rows, and delete the parts that are no longer listed.

    A part is deleted if no generation of the last `keep_hours` lists it, because a reader may still use it
    until then.
    """
    vectors: Vectors[Any] = Vectors(folder)  # DataError if shards are missing
    if (folder / parts.PARTS).is_symlink():
        raise DataError(
            f"{folder / parts.PARTS} is a link, and lmk removes nothing behind a link; compact the folder to "
            "which the link leads, or replace the link by that folder"
        )
    with locked(folder):
        part_writer.remove_abandoned_parts(folder, UPDATES)
        before = _current(folder)
        kept = [piece for piece in before.slices if _is_full(folder, piece)]
        rest = [piece for piece in before.slices if piece not in kept]
        written: list[PartSlice] = []
        now = before
        if len(rest) > 1 or any(piece.deleted for piece in rest):
            first = _next_row(folder, before.rows)
            _rewrite(Vectors(vectors.artifact, rest), first, report)
            written = _unlisted(folder, first)
            rows = _next_row(folder, before.rows)
            changed = before._replace(slices=kept + written, rows=rows)
            now = publish_generation(folder, before, changed)
        deleted, waiting = _delete_unlisted(folder, now, keep_hours, report)
        return Compaction(now.number, len(written), deleted, waiting)


def _is_full(folder: Path, piece: PartSlice) -> bool:
    """Return whether a part has no deleted rows and at least half the size of a full part."""
    size = parts.part_summary(folder, piece.name).bytes
    return not piece.deleted and size >= part_writer.PART_BYTES // 2


def _rewrite(old: Vectors[Any], row: int, report: Report) -> None:
    """Copy the live rows of `old` into parts from row `row` on."""
    contexts, store_text = bool(old.recipe.doc.context), old.manifest.execution.store_text
    target = PartTarget(old.folder, UPDATES, old.types, store_text, contexts)
    done = 0
    with PartWriter(target, report, row) as writer:
        for docs, stored in old.copies(writer.array_rows):
            done += len(docs)
            report.progress(done, old.rows, "documents")
            writer.append(docs, stored)


def _delete_unlisted(
    folder: Path, now: Generation, keep_hours: float, report: Report
) -> tuple[int, int]:
    """Delete unlisted parts that are old enough. Returns how many were deleted, and how many were kept."""
    listed = {piece.name for piece in now.slices}
    paths = [folder / parts.PARTS / str(n) for n in parts.list_parts(folder) if n not in listed]
    # a folder without part.json was deleted before, and contains only foreign files
    paths = [path for path in paths if (path / "part.json").exists()]
    limit = time.time() - keep_hours * 3600
    old = [path for path in paths if path.stat().st_mtime <= limit]
    for path in old:
        if foreign := part_writer.retire_part(path):
            report.note(
                f"{path} stays, because it also contains files that lmk did not write: {', '.join(foreign)}"
            )
    return len(old), len(paths) - len(old)
