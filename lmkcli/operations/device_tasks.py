"""One command on several devices: a process for each device works on one shard of the same output.

A process continues and stops like a task of a job array. It stops in good order when its input ends, so the
processes also end if the first one is killed.
"""

import os
import pickle
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lmkcli.errors import DataError, Stopped
from lmkcli.progress import EstimatedTotal, Report
from lmkcli.spec.operation import Operation
from lmkcli.system.hardware import usable_processors
from lmkcli.system.programs import start_python
from lmkcli.system.workers import own_pipes, portable, receive, send

_PAUSE = 0.1  # seconds between two looks for a signal


class _Steps(NamedTuple):
    """How far a task is."""

    done: int
    total: int | None
    unit: str


def run_tasks(tasks: Sequence[Operation[Any]], report: Report) -> None:
    """Run operations at the same time, each in a process, with one progress display and each note once.

    Raises the first error, after all other processes have stopped and have kept their finished work.
    """
    threads = str(max(1, usable_processors() // len(tasks)))
    processes = [_Task(task, report, threads) for task in tasks]
    messages: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    readers = [
        threading.Thread(target=task.read, args=(number, messages), daemon=True)
        for number, task in enumerate(processes)
    ]
    for reader in readers:
        reader.start()
    try:
        _follow(len(processes), messages, processes, report)
    finally:
        for process in processes:
            process.stop()
        for process in processes:
            process.wait()
        for reader in readers:
            reader.join()


def _follow(
    running: int,
    messages: "queue.SimpleQueue[tuple[int, Any]]",
    processes: "list[_Task]",
    report: Report,
) -> None:
    """Report what the processes say until all have ended; raise the first error."""
    steps: dict[int, _Steps] = {}
    noted: set[str] = set()
    error: Exception | None = None
    while running:
        if error or report.stopping():
            for process in processes:
                process.stop()
        with suppress(queue.Empty):
            number, message = messages.get(timeout=_PAUSE)
            if isinstance(message, _Steps):
                steps[number] = message
                report.progress(*_summed(list(steps.values()), len(processes)))
            elif isinstance(message, str):
                if message not in noted:
                    report.note(message)
                noted.add(message)
            else:
                running -= 1
                if error is None or isinstance(error, Stopped):
                    error = message or error
    if error:
        raise error


def _summed(steps: list[_Steps], tasks: int) -> _Steps:
    """Return the steps of all tasks; the total is known when each task knows its own."""
    totals = [each.total for each in steps if each.total is not None]
    total = EstimatedTotal(sum(totals)) if len(totals) == tasks else None
    return _Steps(sum(each.done for each in steps), total, steps[0].unit)


class _Task:
    """The process of one operation."""

    def __init__(self, operation: Operation[Any], report: Report, threads: str) -> None:
        self._process = start_python("lmkcli.operations.device_tasks", OMP_NUM_THREADS=threads)
        self._device = getattr(operation, "device", "")
        assert self._process.stdin is not None
        send(self._process.stdin, pickle.dumps((operation, report.call)))

    def read(self, number: int, messages: "queue.SimpleQueue[tuple[int, Any]]") -> None:
        """Pass on the messages of the process. The last one is its error, or None."""
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while (message := receive(pipe)) is not None:
                read = pickle.loads(message)
                messages.put((number, read))
                if not isinstance(read, _Steps | str):
                    return
        messages.put((number, self._ended(self._process.wait())))

    def _ended(self, code: int) -> Exception:
        if code < 0:
            return Stopped(
                f"the process of {self._device} was ended by signal {-code}; all written parts are complete. "
                "Run the same command again to continue"
            )
        return DataError(f"the process of {self._device} ended with exit code {code}; see above")

    def stop(self) -> None:
        """Ask the process to stop after its current work."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self) -> None:
        self._process.wait()


def main() -> None:
    """Run the operation in the first message, until it is done or the input ends."""
    commands, messages = own_pipes()
    first = receive(commands)
    if first is None:
        return
    operation, call = pickle.loads(first)
    stopping, sending = threading.Event(), threading.Lock()

    def wait_for_the_end() -> None:
        commands.read()
        stopping.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()

    def tell(message: Any) -> None:
        with sending, suppress(BrokenPipeError):
            send(messages, pickle.dumps(message))

    def progress(done: int, total: int | None, unit: str, detail: str = "") -> None:
        tell(_Steps(done, total, unit))

    error: Exception | None = None
    try:
        operation.execute(Report(progress, stopping.is_set, tell, call))
    except Exception as raised:
        error = portable(raised)
    tell(error)
    os._exit(0)  # the thread that waits for the end must not delay it


if __name__ == "__main__":
    # The messages are objects of the module's own classes, not of those of __main__.
    from lmkcli.operations import device_tasks

    device_tasks.main()
