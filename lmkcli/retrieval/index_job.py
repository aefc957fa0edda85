"""The life of an index folder, for every engine: claim, build or append, record, replace, and join shards.

An engine writes files, or fills a database. `IndexJob` decides whether that is necessary, and makes the
result appear at once:

1. Claim: the manifest with the identity of the index is created, or compared with the existing one.
2. Lock: one process at a time changes the folder; the others stop with exit code 75.
3. Compare: an index of unchanged input is kept.
4. Write: the engine appends the changes, or builds the index again, in a new subfolder.
5. Record: `built.json` is replaced. From this moment on, readers open the new index.
6. Clean: the files of the replaced index are removed, and those of killed processes.

A killed process leaves the state before or after step 5, and files that step 6 of the next process removes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import IndexFacts, IndexIdentity, IndexManifest, OpenMapping
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.artifact.shards import Shards, shards_folder
from lmkcli.catalog import engine_row
from lmkcli.data.collection import Collection, Shard
from lmkcli.errors import DataError, Stopped, UsageError
from lmkcli.progress import Report
from lmkcli.retrieval.engine import AnyInput, Engine, engine_of
from lmkcli.retrieval.engines.index_settings import IndexSettings
from lmkcli.retrieval.index_folder import (
    BuiltIndex,
    IndexRecord,
    InputState,
    finished_index,
    read_record,
    remove_leftovers,
    state_of_vectors,
    write_files,
    write_record,
)
from lmkcli.retrieval.index_input import CannotAppend
from lmkcli.retrieval.vectors.ranked_units import NumberedPart
from lmkcli.system.atomic import LOCK_FILE, atomic_file, locked

COMMON, SHARD = "common.index", "shard.index"  # what all shards share, and the file of each shard


class IndexUpdate(NamedTuple):
    """The record of an index that was updated, and a description of the changes."""

    record: IndexRecord
    how: str


@dataclass(frozen=True)
class IndexJob(Generic[AnyInput]):
    """The index in `folder`, which an engine builds from its input.

    overwrite: another index was removed, or will be removed, to make room for this one.
    apart: shards stay in files of their own when they are joined.
    """

    engine: Engine[AnyInput]
    given: AnyInput
    folder: Path
    overwrite: bool = False
    apart: bool = False

    @classmethod
    def open(
        cls, source: str, folder: Path, settings: IndexSettings, overwrite: bool, report: Report
    ) -> "IndexJob[Any]":
        """Open the input of `lmk index`, and check the settings before anything is written.

        Notes go to the report.
        """
        engine = engine_of(settings.kind).configured(settings)
        given = engine.open_input(source, settings, report)
        job = IndexJob(engine, given, folder, overwrite, settings.apart)
        if settings.shard is None:
            job.check(report)
        return job

    def check(self, report: Report = Report()) -> None:
        """Raise errors that are known before anything is written; notes go to the report."""
        _ = self.identity
        if shards := self._shards():
            if self.overwrite or not read_record(
                self.folder
            ):  # else only their removal is unfinished
                shards.check_whole()
            return
        if self.apart and not read_record(self.folder):
            raise UsageError(
                f"--apart joins shards, and {self.folder} has none: build each with --shard i/n"
            )
        self.engine.check(self.given, self.overwrite, report)

    @property
    def collection(self) -> Collection | None:
        """The collection of an index of words; None for vectors."""
        return self.given.collection

    @cached_property
    def identity(self) -> IndexIdentity:
        """The settings and the input that determine the index. Raises UsageError for invalid settings."""
        family = engine_row(self.engine.kind).name
        settings = self.engine.identity(self.folder)
        return IndexIdentity(family=family, **settings, **self.given.identity())

    def build(self, report: Report = Report()) -> IndexRecord:
        """Build the index, or join its shards, and return its record. A finished index is kept.

        Raises Mismatch if the folder contains an index with other settings, or of other input.
        """
        if shards := self._shards():
            return self._join(shards, report)
        with rollback_on_error(self.folder):
            self._claim(report)
            if finished := self._finished():
                # a process that was killed after its last step leaves its lock, and perhaps replaced files
                if (self.folder / LOCK_FILE).exists():
                    with suppress(Stopped), self._lock():
                        remove_leftovers(self.folder, finished.at)
                return finished
            with self._lock():
                return self._finished() or self._build(report)

    def update(self, report: Report = Report()) -> IndexUpdate:
        """Bring the index up to date, or build it.

        Raises Mismatch for other settings, and Stopped if another process changes the index.
        """
        if shards := self._shards():
            return IndexUpdate(self._join(shards, report), "shards joined")
        with rollback_on_error(self.folder):
            self._claim(report)
            with self._lock():
                if not read_record(self.folder):
                    return IndexUpdate(self._build(report), "built")
                index = finished_index(self.folder)
                remove_leftovers(self.folder, index.record.at)
                complete = self.engine.is_complete(self.given, index)
                if complete and self.given.is_unchanged(index.record.of):
                    return IndexUpdate(index.record, "already up to date")
                try:
                    return self._append(index, report)
                except CannotAppend as reason:
                    self.engine.discard(self.given)
                    return IndexUpdate(
                        self._build(report, index.record.at), f"built again: {reason}"
                    )

    def _claim(self, report: Report) -> None:
        """Make the folder an index with this identity, or raise Mismatch if it is another index."""
        facts = IndexFacts(**manifest.environment(report.call), **self.given.facts(self.folder))
        manifest.claim(self.folder, IndexManifest(identity=self.identity, facts=facts))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with locked(self.folder):
            try:
                yield
            finally:
                (self.folder / LOCK_FILE).unlink(missing_ok=True)

    def _finished(self) -> IndexRecord | None:
        """Return the record of the finished index, if it exists. Raises Mismatch if its input has changed."""
        if record := read_record(self.folder):
            self.given.check_same(record.of, self.folder)
            self.engine.check_contents(self.given, self.folder)
        return record

    def _build(self, report: Report, at: str = "") -> IndexRecord:
        """Write the whole index, and replace the one in subfolder `at`."""
        remove_leftovers(self.folder, at)
        if self.overwrite:
            self.engine.discard(self.given)
        of = self.given.state()  # before the input is read: later changes of it are found
        facts, at = write_files(
            self.folder, at, lambda where: self.engine.build(self.given, where, report)
        )
        return self._record(facts, of, at)

    def _append(self, index: BuiltIndex, report: Report) -> IndexUpdate:
        """Write the changes of the input. Raises CannotAppend if that is impossible."""
        appended = None

        def append(where: Path) -> OpenMapping:
            nonlocal appended
            appended = self.engine.append(self.given, index, where, report)
            return appended.facts

        facts, at = write_files(self.folder, index.record.at, append)
        assert appended is not None
        of = self.given.state(appended.numbering)
        record = self._record({**index.record.facts, **facts}, of, at, appended.numbering)
        return IndexUpdate(record, appended.how)

    def _record(
        self,
        facts: OpenMapping,
        of: InputState,
        at: str,
        numbering: list[NumberedPart] | None = None,
    ) -> IndexRecord:
        """Publish the index, and remove what it replaces."""
        record = write_record(self.folder, facts, of, at)
        if numbering is not None:
            self.engine.settle(self.given, numbering)
        remove_leftovers(self.folder, at)
        return record

    # Shards: each task builds one in a folder next to the index, and one process joins them.

    def build_shard(self, shard: Shard, report: Report = Report()) -> Shards | None:
        """Build one shard and return all shards; None if the whole index exists already.

        A finished shard is kept. The first task writes what all shards share, and the others wait for it.
        Raises UsageError for an engine that builds whole indexes, and Mismatch for shards of another index.
        """
        if read_record(self.folder):
            self._claim(report)
            self._finished()
            return None
        self.engine.check_shards(self.given)
        shards = Shards.claim(self.folder, self._shards_identity, shard.count, [SHARD], report.call)
        common = shards.once(
            COMMON, lambda path: self.engine.write_common(self.given, path), report.note
        )
        path = shards.path(shard.number, SHARD)
        if not path.exists():
            with atomic_file(path) as temporary:
                self.engine.write_shard(self.given, shard, common, temporary, report)
        return shards

    def join(self, report: Report = Report()) -> IndexRecord:
        """Join the shards to the whole index, and return its record.

        Raises DataError for missing shards, and Mismatch for the shards of another index.
        """
        if not (shards := self._shards()):
            raise DataError(f"{shards_folder(self.folder)} does not exist: build the shards first")
        return self._join(shards, report)

    def _join(self, shards: Shards, report: Report) -> IndexRecord:
        with rollback_on_error(self.folder):
            if not read_record(self.folder):
                shards.check_whole()
            self._claim(report)
            with self._lock():
                # A process that was killed before it removed the shards has joined them.
                record = self._finished() or self._write_joined(shards)
        shards.remove()
        return record

    def _write_joined(self, shards: Shards) -> IndexRecord:
        remove_leftovers(self.folder, "")
        paths = [shards.path(each, SHARD) for each in range(shards.count)]

        def join(where: Path) -> OpenMapping:
            return self.engine.join(self.given, shards.shared(COMMON), paths, where, self.apart)

        facts, at = write_files(self.folder, "", join)
        return self._record(facts, self.given.state(), at)

    def _shards(self) -> Shards | None:
        """Return the shards of this index, if any exist. Raises Mismatch for the shards of another index."""
        if not self.engine.in_shards:
            return None
        return Shards.find(self.folder, self._shards_identity)

    @property
    def _shards_identity(self) -> OpenMapping:
        vectors = state_of_vectors(self.given.state())
        return {"settings": self.identity.settings, "vectors": vectors.digest}
