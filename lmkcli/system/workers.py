"""Processes that do a part of the work for this one, in the order of the items.

They share no interpreter with this process, so they never make it wait for Python's global lock. An item and
its result travel as pickles through pipes between this process and its own children.
"""

import fcntl
import logging
import os
import pickle
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from itertools import repeat
from typing import IO, Any, Generic, TypeVar

from lmkcli.errors import DataError, Stopped
from lmkcli.system.programs import start_python

Item = TypeVar("Item")
Result = TypeVar("Result")

PIPE_BYTES = 1 << 20  # of a pipe, where the system allows it: fewer switches between the processes
_HEADER = 8  # bytes of the length before each message
_AHEAD = 2  # items of a process that are on their way


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], count: int
) -> Generator[Result, None, None]:
    """Apply a function to items in `count` processes, and yield the results in the order of the items.

    `work` and the items must be picklable. The items are read in a thread, at most `2 * count` ahead. An
    exception of the items or of `work` is raised here, after the results before it. Closing the generator
    ends the processes; they also end if this process is killed.

    Raises Stopped if a process was killed, and DataError if one ended by itself.
    """
    packed = pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
    processes = [_Process(packed) for _ in range(count)]
    room = threading.Semaphore(_AHEAD * count)
    sent: queue.SimpleQueue[_Process | BaseException | None] = queue.SimpleQueue()
    closed = threading.Event()

    def send_all() -> None:
        try:
            for number, item in enumerate(items):
                room.acquire()
                if closed.is_set():
                    return
                process = processes[number % count]
                process.send(pickle.dumps(item, pickle.HIGHEST_PROTOCOL))
                sent.put(process)
            sent.put(None)
        except BaseException as error:  # every exception is passed on to the reader
            sent.put(error)

    thread = threading.Thread(target=send_all, daemon=True)
    thread.start()
    try:
        while (process := sent.get()) is not None:
            if isinstance(process, BaseException):
                raise process
            result = process.receive()
            room.release()
            yield result
    finally:
        closed.set()
        room.release()
        for process in processes:
            process.kill()
        thread.join()
        for process in processes:
            process.close()


def in_process(start: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """Yield the items of an iterator that `start` opens in a process of its own.

    `start` and the items must be picklable, and no item is None. The process is a few items ahead. Errors as
    of `in_order`.
    """
    with closing(in_order(_Opened(start), repeat(None), 1)) as items:
        for item in items:
            if item is None:
                return
            yield item


class _Opened(Generic[Item]):
    """An iterator as a function: each call returns the next item, and None at the end."""

    def __init__(self, start: Callable[[], Iterator[Item]]) -> None:
        self._start = start
        self._items: Iterator[Item] | None = None

    def __call__(self, request: None) -> Item | None:
        if self._items is None:
            self._items = self._start()
        return next(self._items, None)


class _Process:
    """A process that applies a function to the items that it receives."""

    def __init__(self, work: bytes) -> None:
        """Start with a function that was pickled."""
        self._process = start_python(
            "lmkcli.system.workers", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1"
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._items, self._results = self._process.stdin, self._process.stdout
        for pipe in (self._items, self._results):
            with suppress(OSError, AttributeError):  # not on every system
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.send(pickle.dumps(_library_output()))
        self.send(work)

    def send(self, item: bytes) -> None:
        try:
            send(self._items, item)
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> Any:
        message = receive(self._results)
        if message is None:
            raise self._ended()
        succeeded, result = pickle.loads(message)
        if not succeeded:
            raise result
        return result

    def _ended(self) -> Exception:
        code = self._process.wait()
        if code < 0:
            return Stopped(
                f"a process that prepares texts was ended by signal {-code}, perhaps for lack of memory; all "
                "written parts are complete. Run the same command again to continue, with --workers 0 if "
                "memory is short"
            )
        return DataError(
            f"a process that prepares texts ended with exit code {code}; its message stands above. Use "
            "--workers 0 to prepare texts in the main process"
        )

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.wait()
        self._results.close()
        with suppress(BrokenPipeError):  # of what it did not read
            self._items.close()


def _library_output() -> tuple[Any, ...]:
    """Return the level below which this process logs nothing; and the form of logs and warnings, if it is
    lmk's.
    """
    shown = (logging.getLogRecordFactory(), warnings.formatwarning)
    own = all(each.__module__.startswith("lmkcli.") for each in shown)
    return (logging.root.manager.disable, *(shown if own else ()))


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write one message."""
    pipe.write(len(message).to_bytes(_HEADER, "little"))
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None at the end, also in the middle of a message."""
    header = pipe.read(_HEADER)
    if len(header) < _HEADER:
        return None
    size = int.from_bytes(header, "little")
    message = pipe.read(size)
    return message if len(message) == size else None


def _outcome(work: Callable[[Any], Any], item: Any) -> bytes:
    try:
        return pickle.dumps((True, work(item)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps((False, portable(error)), pickle.HIGHEST_PROTOCOL)


def portable(error: Exception) -> Exception:
    """Return an exception that another process can read: itself, or its class's name and text."""
    try:
        pickle.loads(pickle.dumps(error))  # some can be written, but not read
    except Exception:
        return RuntimeError(repr(error))
    return error


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipes from and to the process that started this one.

    From now on, what a library prints goes to standard error.
    """
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, messages


def main() -> None:
    """Apply the function in the second message to the items in all later ones.

    The first message says how libraries print.
    """
    items, results = own_pipes()
    printing, packed = receive(items), receive(items)
    if printing is None or packed is None:
        return
    level, *shown = pickle.loads(printing)
    logging.disable(level)
    if shown:
        record, warnings.formatwarning = shown
        logging.setLogRecordFactory(record)
    work = pickle.loads(packed)
    with suppress(BrokenPipeError):
        while (message := receive(items)) is not None:
            send(results, _outcome(work, pickle.loads(message)))


if __name__ == "__main__":
    main()
