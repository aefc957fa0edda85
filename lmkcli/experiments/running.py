"""Running a plan: each step that is not done yet, once, several at a time; what is done is in the folder.

A step is done when the results of its command stand in its folder, which they do only after the command
has ended well. A lock that its process holds keeps a second grid, a second life of the same one, or a task
of SLURM from running it beside the first. Libraries are imported once for all steps, not by each.
"""

import fcntl
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from multiprocessing import connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from lmkcli.errors import Stopped
from lmkcli.experiments.plan import Plan
from lmkcli.experiments.steps import OUTPUTS, STEPS, Step
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.system.atomic import atomic_file

LOG = "log.txt"
LOCK = (
    ".lock"  # behind the name of a result: the file that its maker holds locked, also under SLURM
)
ENDED = "ended after "  # in a log, before the seconds of a life that ended well
_ENDED = re.compile(rf"{ENDED}([0-9]{{1,9}}(?:\.[0-9]+)?) s")
_PAUSE = 0.05  # seconds between looks at what is running
_TOLD = 600  # letters of an error that are repeated


@dataclass(frozen=True)
class Results:
    """The folder of a grid's results."""

    folder: Path

    def of(self, key: str) -> Path:
        """The folder of a step."""
        return self.folder / STEPS / key

    def is_done(self, step: Step) -> bool:
        """Whether a step has ended well, and what it made is still there."""
        folder = self.of(step.key)
        ended = all((folder / name).exists() for name, _ in step.operations())
        return ended and (folder / OUTPUTS[step.verb]).exists()

    def missing(self, plan: Plan) -> dict[str, Step]:
        """The steps that must run for all cells of the plan, in an order in which they can.

        What a finished step was made from is not asked for: vectors may be removed after the search.
        """
        wanted = {chain[-1] for chain in plan.chains.values()}
        needed: set[str] = set()
        while wanted:
            key = wanted.pop()
            if key not in needed and not self.is_done(plan.steps[key]):
                needed.add(key)
                wanted |= set(plan.steps[key].needs)
        return {key: step for key, step in plan.steps.items() if key in needed}

    def forget(self, steps: Iterable[Step]) -> None:
        """Remove the results of steps whose output was removed, so that all of it is made again."""
        for step in steps:
            if not (self.of(step.key) / OUTPUTS[step.verb]).exists():
                for name, _ in step.operations():
                    (self.of(step.key) / name).unlink(missing_ok=True)

    def error(self, key: str) -> str:
        """What the command of a step said last when it failed; empty if it said nothing."""
        log = self.of(key) / LOG
        if not log.is_file():
            return ""
        text = log.read_text(encoding="utf-8", errors="replace")
        printed = "\n" + text.rpartition("$ lmk ")[2].partition("\n")[2]
        _, error, after = printed.rpartition("\nlmk: ")
        said = after if error else printed.strip().rpartition("\n")[2]
        return " ".join(said.split())[:_TOLD]

    def seconds(self, key: str) -> float | None:
        """How long the lives of a step took that ended well; None before."""
        log = self.of(key) / LOG
        lines = (
            log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        )
        told = [match[1] for line in lines if (match := _ENDED.fullmatch(line))]
        return sum(map(float, told)) if told else None


@dataclass
class Outcome:
    """What a run of a plan came to: keys of the steps that ran, and key -> error of those that failed."""

    ran: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)


Command = Callable[[Operation[Any]], None]  # runs an operation; SystemExit has its exit code


@dataclass(frozen=True)
class Launcher:
    """How steps are run: by what, after which modules were imported once for all, how many at a time."""

    command: Command
    preload: Sequence[str] = ()
    jobs: int = 1

    def context(self) -> ForkServerContext:
        """Where processes come from: a server that has imported what they need, and does nothing else."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(self.preload))
        return context


def run(plan: Plan, results: Results, launcher: Launcher, report: Report) -> Outcome:
    """Run what is missing. A step that fails keeps those from running that need it, and no other.

    Stopped when a signal asked for it; the commands that ran were asked too, and have ended.
    """
    steps = results.missing(plan)
    results.forget(steps.values())
    graph = {key: [need for need in step.needs if need in steps] for key, step in steps.items()}
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    waiting: deque[str] = deque()
    running = _Running(launcher, results)
    outcome = Outcome()
    while True:
        waiting += sorter.get_ready()
        while waiting and len(running) < launcher.jobs and not report.stopping():
            running.start(steps[waiting.popleft()])
        if not running:
            break
        if report.stopping():
            running.ask()
        for key, code in running.ended():
            if _counted(outcome, key, code, results):
                sorter.done(key)
                report.progress(len(outcome.ran), len(steps), "steps")
    report.check_stop()
    return outcome


def _counted(outcome: Outcome, key: str, code: int, results: Results) -> bool:
    """Whether a step ended well; the outcome says so, or why not."""
    if code == 0:
        outcome.ran.append(key)
    elif code == Stopped.exit_code:
        outcome.stopped.append(key)
    else:
        killed = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        outcome.failed[key] = f"{killed}: {results.error(key) or 'nothing was said'}"
    return code == 0


class _Running:
    """The processes that run now, by the keys of their steps."""

    def __init__(self, launcher: Launcher, results: Results) -> None:
        self._launcher, self._results = launcher, results
        self._context = launcher.context()
        self._processes: dict[str, ForkServerProcess] = {}
        self._asked: set[str] = set()

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, step: Step) -> None:
        self._results.of(step.key).mkdir(parents=True, exist_ok=True)
        arguments = (self._launcher.command, step, self._results)
        self._processes[step.key] = process = self._context.Process(target=_execute, args=arguments)
        process.start()

    def ask(self) -> None:
        """Ask each once to stop."""
        for key in self._processes.keys() - self._asked:
            self._asked.add(key)
            self._processes[key].terminate()

    def ended(self) -> Iterator[tuple[str, int]]:
        """Those that have ended, with their exit codes; waits a moment for one."""
        connection.wait([each.sentinel for each in self._processes.values()], timeout=_PAUSE)
        for key, process in list(self._processes.items()):
            if process.exitcode is not None:
                del self._processes[key]
                process.join()
                early = key in self._asked and process.exitcode == -signal.SIGTERM
                yield key, Stopped.exit_code if early else process.exitcode


def _execute(command: Command, step: Step, results: Results) -> None:
    """Run one step in this process, shard after shard, but for what another process has made."""
    for name, operation in step.operations():
        result = results.of(step.key) / name
        with open(f"{result}{LOCK}", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # while another life of the same command has it
            if not result.exists():
                _printed(command, operation, result)


def _printed(command: Command, operation: Operation[Any], result: Path) -> None:
    """Run an operation; its output is in a file after it has ended well, its messages in a log."""
    with (
        atomic_file(result) as printed,
        open(printed, "wb") as out,
        open(result.with_name(LOG), "ab") as log,
    ):
        log.write(f"$ {operation.command_line()}\n".encode())
        log.flush()
        for number, file in ((1, out), (2, log)):
            os.dup2(file.fileno(), number)
        started = time.monotonic()
        _ended(command, operation)
        log.write(f"{ENDED}{time.monotonic() - started:.1f} s\n".encode())


def _ended(command: Command, operation: Operation[Any]) -> None:
    """Run an operation to its end; SystemExit with another code than 0 if it failed."""
    try:
        command(operation)
    except SystemExit as left:
        if left.code:
            raise
    sys.stdout.flush()
