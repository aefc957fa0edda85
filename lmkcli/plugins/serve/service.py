"""The service behind all interfaces: the indexes, the queue of their work, and reloading after updates."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from lmkcli.errors import LmkError
from lmkcli.plugins.documents.own_index import OwnIndex
from lmkcli.plugins.serve.batching import BatchQueue, Work
from lmkcli.plugins.serve.indexes import IndexSet, stamp_of
from lmkcli.plugins.serve.limits import Limits
from lmkcli.plugins.serve.metrics import Metrics
from lmkcli.plugins.serve.stamps import Stamp
from lmkcli.progress import SILENT, Note, mute
from lmkcli.retrieval.open_settings import OpenSettings

Item = TypeVar("Item")
Answer = TypeVar("Answer")
POLL_SECONDS = 1.0  # between two looks for updates
LOOK_SHARE = 20  # a look at the files takes at most one part in so many of the time


class Watched:
    """Documents that a server watches: their index in the cache is updated when files change."""

    def __init__(self, own: OwnIndex, note: Note) -> None:
        self._own, self._note = own, note
        self._next = 0.0
        self._failure = ""

    def update(self) -> None:
        """Update the index if files have changed, unless the last look was just now.

        If that fails, the present index stays, a note has the reason, and the next call tries again.
        """
        started = time.monotonic()
        if started < self._next:
            return
        failure = ""
        try:
            if not self._own.is_current():
                self._own.refresh(SILENT)
        except (LmkError, OSError) as error:
            failure = f"{self._own.name} cannot be updated yet: {error}"
        if failure and failure != self._failure:
            self._note(failure)
        self._failure = failure
        ended = time.monotonic()
        self._next = ended + LOOK_SHARE * (ended - started)


class SearchService:
    """Open indexes that answer several clients. Use it as an asynchronous context manager."""

    def __init__(
        self,
        sources: Sequence[Path | OwnIndex],
        settings: OpenSettings | None = None,
        rerank_model: str | None = None,
        limits: Limits | None = None,
        note: Note = mute,
    ) -> None:
        """Open all indexes and load their models. Raises UsageError or DataError like `lmk search`."""
        self._sources, self._settings = sources, settings or OpenSettings()
        self._rerank_model = rerank_model
        self._watched = [Watched(each, note) for each in sources if isinstance(each, OwnIndex)]
        self.limits = limits or Limits()
        self._note = note
        self.indexes = IndexSet.open(sources, self._settings, rerank_model)
        notes = (line for each in self.indexes.served.values() for line in each.index.info.notes)
        for line in (*notes, *filter(None, [self.indexes.note])):
            note(line)
        self.metrics = Metrics(lambda: len(self._queue))
        self._queue: BatchQueue[IndexSet] = BatchQueue(
            lambda: self.indexes, self.limits.waiting, self.metrics.batch
        )
        self._failed: list[Stamp] = []
        self._reloaded: list[Callable[[], None]] = []
        self._watcher: asyncio.Task[None] | None = None

    @property
    def settings(self) -> OpenSettings:
        """The settings of all indexes."""
        return self._settings

    async def run(
        self,
        work: Work[IndexSet, Item, Answer],
        items: Sequence[Item],
        check: Callable[[list[Answer]], None] = lambda answers: None,
    ) -> list[Answer]:
        """Return an answer for each item. Raises Busy if the server has too much to do.

        `check` may raise an error for the answers so far.
        """
        return await self._queue.submit(work, items, self.limits.answer_seconds, check)

    def on_reload(self, act: Callable[[], None]) -> None:
        """Call a function after each reload."""
        self._reloaded.append(act)

    def refresh(self) -> bool:
        """Open the indexes again if an update has published new files. Returns whether it has.

        Documents are updated first, if their files have changed.
        Running requests finish with the files that they started with. If an index cannot be opened, the
        present one stays, and the next call tries again.
        """
        for each in self._watched:
            each.update()
        if not self.indexes.changed():
            return False
        before = self.indexes
        try:
            opened = IndexSet.open(self._sources, self._settings, self._rerank_model, before)
        except (LmkError, OSError) as error:
            self._note_once(str(error))
            return False
        self.indexes = opened
        self._failed = []
        self.metrics.reloads.inc()
        self._note("new files of an index: loaded")
        for act in self._reloaded:
            act()
        return True

    def _note_once(self, message: str) -> None:
        """Report a failed reload once for each state of the files."""
        stamps = [stamp_of(each) for each in self._sources]
        if stamps != self._failed:
            self._failed = stamps
            self._note(f"new files of an index cannot be loaded yet: {message}")

    async def __aenter__(self) -> "SearchService":
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        """Finish all accepted requests."""
        if self._watcher:
            self._watcher.cancel()
        await asyncio.to_thread(self._queue.stop)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(self.refresh)
