"""Updating vectors to a collection that changed, and compacting what updates leave behind.

An update reads the collection once. A document whose content hash has a vector keeps it; only new
and changed ones are encoded, into parts that nobody sees until `generation.json` names them. What a
killed update has encoded counts as there for the next one.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import WHOLE, Collection, Doc, DocStream, Qrel, Query, Shard
from lmkcli.data.digest import doc_hash
from lmkcli.encoding import jobs
from lmkcli.encoding.encoder import encode_stream, open_encoder
from lmkcli.encoding.planning import Job
from lmkcli.encoding.writer import part_arrays, vectors_target, write_vectors
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.store import part_folders, part_writer, parts
from lmkcli.store.part_writer import PartWriter, Target
from lmkcli.store.parts import ADDED, Generation, PartSlice
from lmkcli.store.summary import doc_table, part_summary
from lmkcli.store.tokens import Tokens, token_stream
from lmkcli.store.unique_ids import UniqueIds
from lmkcli.store.vectors import Vectors
from lmkcli.system import locking
from lmkcli.system.streams import batched

READ_CHARACTERS = 1 << 19
KEY = "S16"  # of a document's hash: half of it is more than enough, and half the memory


class Updated(NamedTuple):
    """The generation that counts now, and how many documents kept, got and lost their vector."""

    generation: int
    kept: int
    encoded: int
    removed: int


def run_update(job: Job, folder: Path, report: Report = Report()) -> Updated:
    """Bring `folder` to what the collection is now; a folder that is not there yet is made.

    UsageError for a source or a folder that cannot be updated, Mismatch when recipe, dtype or
    settings are not those of the folder, Stopped when another process is updating it.
    """
    source, origin = _source(job, folder), job.origin
    settings = jobs.with_folder_dtype(job.settings, folder)
    encoder = open_encoder(job.resolved.recipe.doc, job.resolved.folder, settings)
    described = jobs.vectors_manifest(job, encoder, settings, report.call)
    manifest.claim(folder, jobs.as_begun(described, folder))
    with locking.locked(folder):
        before = _before(folder)
        known = EncodedDocs(folder, before.slices + _unseen(folder, before.rows))
        first = _next_row(folder, before.rows)
        target = vectors_target(folder, ADDED, encoder, settings)
        unknown = UnencodedDocs(source, known, report.stopping)
        with PartWriter(target, report, first) as writer:
            fresh = token_stream(unknown, encoder.tokenizer, WHOLE, 0)
            write_vectors(encode_stream(fresh, encoder, report), writer, settings)
        report.check_stop()  # the documents end early then
        slices = known.seen() + _unseen(folder, first)
        _refuse_nothing(job, slices, before)
        rows = _next_row(folder, before.rows)
        now = Generation(before.number, origin, slices, rows)
        return _account(before, _publish(folder, before, now))


def _source(job: Job, folder: Path) -> Collection:
    if isinstance(job.source, Tokens):
        raise UsageError(
            f"{job.source.folder} holds tokens, which cannot be updated; give the collection that "
            "they were made of"
        )
    if job.shard != WHOLE:
        raise UsageError("an update reads the whole collection in one job; drop --shard")
    if (folder / manifest.NAME).is_file():
        shards = manifest.read(folder).execution.get("shards", 1)
        if shards > 1 and parts.state(folder, shards).unfinished:
            raise UsageError(f"{folder} is not complete; finish its {shards} shards first")
    return job.source


def _refuse_nothing(job: Job, slices: list[PartSlice], before: Generation) -> None:
    """DataError where an update would remove every document: the source is more likely incomplete."""
    had = sum(piece.rows for piece in before.slices)
    if had and not slices:
        raise DataError(
            f"{job.origin['name']} holds no document, and the update would remove all {had:,}; if that "
            "is meant, remove the folder or say --if-exists overwrite"
        )


def _before(folder: Path) -> Generation:
    """The generation that counts; for a folder that was never updated all its rows, as number 0."""
    updated = parts.generation(folder)
    if updated:
        return updated
    began = manifest.read(folder).execution
    return Generation(0, began["source"], parts.state(folder, began["shards"]).slices, 0)


def _unseen(folder: Path, first: int) -> list[PartSlice]:
    """What updates have written from row `first` on."""
    names = parts.list_parts(folder)
    return [PartSlice(name) for name in names if name.shard == ADDED and name.start >= first]


def _next_row(folder: Path, least: int) -> int:
    """A number that no row of an update has had, and none has that compact deleted."""
    return max([least, *(piece.name.stop for piece in _unseen(folder, 0))])


def _publish(folder: Path, before: Generation, now: Generation) -> Generation:
    """Let `now` count from this moment on, under the next number if its rows are others."""
    now = now._replace(number=before.number + (now.slices != before.slices or not before.number))
    for name in {p.name for p in before.slices} - {p.name for p in now.slices}:
        os.utime(folder / parts.PARTS / str(name))  # compact counts its hours from here
    parts.write_generation(folder, now)
    return now


def _account(before: Generation, now: Generation) -> Updated:
    names = {piece.name for piece in before.slices}
    kept = sum(piece.rows for piece in now.slices if piece.name in names)
    old, new = (sum(piece.rows for piece in generation.slices) for generation in (before, now))
    return Updated(now.number, kept, new - kept, old - kept)


class EncodedDocs:
    """Which documents have a vector, by content hash; 24 bytes a row. Remembers which were asked for."""

    def __init__(self, folder: Path, slices: list[PartSlice]) -> None:
        self._slices = slices
        keys = [_keys(folder, piece) for piece in slices]
        every = np.concatenate([np.zeros(0, KEY), *keys])
        self._order = np.argsort(every, kind="stable")
        self._keys = every[self._order]
        self._asked = np.zeros(len(every), np.bool_)

    def lacks(self, hashes: list[bytes]) -> NDArray[np.bool_]:
        """For each hash whether it has no vector."""
        keys = np.array(hashes, "S32").astype(KEY)
        at = np.searchsorted(self._keys, keys)  # of equal ones the first
        at[at == len(self._keys)] = 0
        known = self._keys[at] == keys if len(self._keys) else np.zeros(len(keys), np.bool_)
        self._asked[self._order[at[known]]] = True
        return ~known

    def seen(self) -> list[PartSlice]:
        """The rows that were asked for; parts without any are left out."""
        slices, first = [], 0
        for piece in self._slices:
            asked = self._asked[first : first + piece.rows]
            first += piece.rows
            live = piece.live
            live[np.flatnonzero(live)] = asked
            if asked.any():
                slices.append(PartSlice.of(piece.name, live))
        return slices


def _keys(folder: Path, piece: PartSlice) -> NDArray[np.bytes_]:
    hashes = doc_table(folder, piece.name).hashes()
    return np.array(hashes, "S32").astype(KEY)[piece.live]


class UnencodedDocs(Collection):
    """The documents of `whole` that have no vector; ends early when it should stop."""

    def __init__(self, whole: Collection, known: EncodedDocs, stopping: Callable[[], bool]) -> None:
        self._whole, self._known, self._stopping = whole, known, stopping
        self.name, self.settings = whole.name, whole.settings

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """DataError for an id that comes twice, encoded or not."""
        return _UnencodedStream(self._whole.docs(shard), self._known, self._stopping)

    def queries(self) -> Iterator[Query]:
        """As the whole collection."""
        return self._whole.queries()

    def qrels(self) -> Iterator[Qrel]:
        """As the whole collection."""
        return self._whole.qrels()


class _UnencodedStream(DocStream):
    def __init__(self, docs: DocStream, known: EncodedDocs, stopping: Callable[[], bool]) -> None:
        self._docs, self._known, self._stopping = docs, known, stopping

    def __iter__(self) -> Iterator[Doc]:
        ids = UniqueIds()
        for batch in batched(self._docs, lambda doc: len(doc.text) + 64, READ_CHARACTERS):
            ids.add((doc.id for doc in batch), "this collection")
            lacks = self._known.lacks([doc_hash(doc) for doc in batch])
            yield from (doc for doc, lacking in zip(batch, lacks, strict=True) if lacking)
            if self._stopping():
                return

    @property
    def fraction(self) -> float | None:
        return self._docs.fraction


class Compacted(NamedTuple):
    """The generation that counts now; parts written, deleted, and kept for whoever still reads them."""

    generation: int
    written: int
    deleted: int
    kept: int


def compact(folder: Path, keep_hours: float, report: Report = Report()) -> Compacted:
    """Rewrite small parts and parts with deleted rows into fresh ones; delete what nobody needs.

    A part is deleted when the generation does not name it and has not for `keep_hours`.
    """
    vectors = Vectors(folder)  # DataError when shards are missing
    manifest.check_whole(folder, vectors.manifest)
    with locking.locked(folder):
        before = _before(folder)
        kept = [piece for piece in before.slices if _is_full(folder, piece)]
        rest = [piece for piece in before.slices if piece not in kept]
        fresh: list[PartSlice] = []
        now = before
        if len(rest) > 1 or any(piece.deleted for piece in rest):
            first = _next_row(folder, before.rows)
            _rewrite(Vectors(folder, rest), first, report)
            fresh = _unseen(folder, first)
            rows = _next_row(folder, before.rows)
            now = _publish(folder, before, before._replace(slices=kept + fresh, rows=rows))
        deleted, waiting = _sweep(folder, now, keep_hours, report)
        return Compacted(now.number, len(fresh), deleted, waiting)


def _is_full(folder: Path, piece: PartSlice) -> bool:
    size = part_summary(folder, piece.name).get("bytes", 0)
    return not piece.deleted and size >= part_writer.PART_BYTES // 2


def _rewrite(old: Vectors, row: int, report: Report) -> None:
    """Copy the live rows of `old` into parts from row `row` on."""
    execution = old.manifest.execution
    arrays = part_arrays(execution["store_dtype"], old.dim, old.recipe.doc.unit == "chunk")
    contexts = bool(old.recipe.doc.context)
    target = Target(old.folder, ADDED, arrays, bool(execution["store_text"]), contexts)
    done = 0
    with PartWriter(target, report, row) as writer:
        for blocks in zip(*(old.stored(stem) for stem in arrays), strict=True):
            docs = blocks[0][0]
            done += len(docs)
            report.progress(done, old.rows, "documents")
            stored = (array for _, array in blocks)
            writer.append(docs, dict(zip(arrays, stored, strict=True)))


def _sweep(folder: Path, now: Generation, keep_hours: float, report: Report) -> tuple[int, int]:
    """Delete the parts that nobody needs any more; returns how many, and how many must wait."""
    named = {piece.name for piece in now.slices}
    left = [folder / parts.PARTS / str(n) for n in parts.list_parts(folder) if n not in named]
    limit = time.time() - keep_hours * 3600
    left = [
        path for path in left if (path / "part.json").exists()
    ]  # else only foreign files are left
    old = [path for path in left if path.stat().st_mtime <= limit]
    for path in old:
        if foreign := part_folders.retire(path):
            report.note(
                f"{path} also holds {', '.join(foreign)}, which lmk did not write: it stays"
            )
    return len(old), len(left) - len(old)
