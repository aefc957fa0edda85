"""Documents that a server watches: their index is updated when files change."""

import time

from lmkcli.errors import LmkError
from lmkcli.plugins.documents.own_index import OwnIndex
from lmkcli.progress import SILENT, Note

_SHARE = 20  # a look at the files takes at most one part in so many of the time


class Watched:
    """Documents with their index in the cache."""

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
        self._next = ended + _SHARE * (ended - started)
