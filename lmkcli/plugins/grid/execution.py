"""Execution of a plan: the folder of results, processes on this machine, and jobs of SLURM.

A step is done if its folder contains the results of its command. The results appear only after the command
has succeeded. So the folder stores the state of the grid, and only missing steps run. A locked file for each
result prevents other grids and SLURM tasks from running the same command at the same time.
"""

import fcntl
import gc
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lmkcli.errors import DataError, Stopped, UsageError
from lmkcli.plugins.grid.plan import NAME, Plan, has_plan
from lmkcli.plugins.grid.steps import OUTPUTS, STEPS, GridStep
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.system.atomic import atomic_file, make_folder, temporary_folder
from lmkcli.system.disk import is_full_disk
from lmkcli.system.input_files import read_json
from lmkcli.system.programs import safe_imports
from lmkcli.text.formatting import has_control, shell_line

# Names in the folder of results; NAME is the plan, and STEPS is the folder of the steps.
SCORE_LOG = "scores.jsonl"  # the last entry of each cell
REPORT = "report.html"
SLURM = "slurm"
NAMES = (NAME, STEPS, SCORE_LOG, REPORT, SLURM)
JOBS = "jobs.json"  # in the folder of SLURM
LOG = "log.txt"  # in the folder of a step
LOCK = ".lock"  # suffix of the file that is locked while a result is computed, also under SLURM
ENDED = "ended after "  # in a log, before the seconds of a command that succeeded
_ENDED = re.compile(rf"{ENDED}([0-9]{{1,9}}(?:\.[0-9]+)?) s")
_PAUSE = 0.05  # seconds between checks of the running processes
_LONGEST = 600  # letters of an error that are shown


@dataclass(frozen=True)
class ResultsFolder:
    """The folder with the results of a grid."""

    folder: Path

    def of(self, key: str) -> Path:
        """Return the folder of a step."""
        return self.folder / STEPS / key

    def is_done(self, step: GridStep) -> bool:
        """Return whether a step has succeeded and its output still exists."""
        # Plans have tens of thousands of steps, and joining texts is faster than joining paths.
        folder = f"{self.folder}/{STEPS}/{step.key}"
        names = (*step.result_names(), OUTPUTS[step.verb])
        return os.path.isdir(folder) and all(os.path.exists(f"{folder}/{name}") for name in names)

    def missing(self, plan: Plan) -> dict[str, GridStep]:
        """Return the steps that must run for the cells of the plan, in a possible order.

        The inputs of a finished step are not required: vectors may be removed after the search.
        """
        wanted = {chain[-1] for chain in plan.chains.values()}
        needed: set[str] = set()
        while wanted:
            key = wanted.pop()
            if key not in needed and not self.is_done(plan.steps[key]):
                needed.add(key)
                wanted |= set(plan.steps[key].needs)
        return {key: step for key, step in plan.steps.items() if key in needed}

    def forget(self, steps: Iterable[GridStep]) -> None:
        """Remove the results of steps without an output, so all their shards run again."""
        for step in steps:
            if not (self.of(step.key) / OUTPUTS[step.verb]).exists():
                for name in step.result_names():
                    (self.of(step.key) / name).unlink(missing_ok=True)

    def error(self, key: str) -> str:
        """Return the last message of the command of a step; empty if there is none."""
        if not os.path.isfile(f"{self.folder}/{STEPS}/{key}/{LOG}"):
            return ""
        text = (self.of(key) / LOG).read_text(encoding="utf-8", errors="replace")
        printed = "\n" + text.rpartition("$ lmk ")[2].partition("\n")[2]
        _, error, after = printed.rpartition("\nlmk: ")
        message = after if error else printed.strip().rpartition("\n")[2]
        return " ".join(message.split())[:_LONGEST]

    def seconds(self, key: str) -> float | None:
        """Return the seconds of the commands of a step that succeeded; None if there are none."""
        log = self.of(key) / LOG
        lines = (
            log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        )
        seconds = [float(match[1]) for line in lines if (match := _ENDED.fullmatch(line))]
        return sum(seconds) if seconds else None


def check_folder(folder: Path) -> None:
    """Raise DataError if a folder has no plan, but contains files with the names of results."""
    existing = [name for name in NAMES if os.path.lexists(folder / name)]
    if existing and not has_plan(folder):
        raise DataError(
            f"{folder} contains {', '.join(existing)}, but no plan of a grid, so lmk did not write them and "
            "leaves them unchanged; choose another output"
        )


@dataclass
class Outcome:
    """The outcome of a plan: keys of finished steps, key -> error of failed steps, keys of stopped steps."""

    ran: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)


Command = Callable[[Operation[Any]], None]  # runs an operation; SystemExit has the exit code


@dataclass(frozen=True)
class Launcher:
    """The command that runs a step, the modules to import before, and the number of processes."""

    command: Command
    preload: Sequence[str] = ()
    jobs: int = 1


def run(plan: Plan, results: ResultsFolder, launcher: Launcher, report: Report) -> Outcome:
    """Run the missing steps. After a failure, only the steps that need the failed step do not run.

    Raises Stopped after a signal, when the running commands have ended, too.
    """
    steps = results.missing(plan)
    results.forget(steps.values())
    graph = {key: [need for need in step.needs if need in steps] for key, step in steps.items()}
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    waiting: deque[str] = deque()
    processes = _Processes(launcher, results)
    outcome = Outcome()
    while True:
        waiting += sorter.get_ready()
        while waiting and len(processes) < launcher.jobs and not report.stopping():
            processes.start(steps[waiting.popleft()])
        if not processes:
            break
        if report.stopping():
            processes.stop()
        for key, code in processes.ended():
            if _record(outcome, key, code, results):
                sorter.done(key)
                report.progress(len(outcome.ran), len(steps), "steps")
    report.check_stop()
    return outcome


def _record(outcome: Outcome, key: str, code: int, results: ResultsFolder) -> bool:
    """Add the exit code of a step to the outcome; return whether the step succeeded."""
    if code == 0:
        outcome.ran.append(key)
    elif code == Stopped.exit_code:
        outcome.stopped.append(key)
    else:
        killed = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        full = code == DataError.exit_code  # with an empty log
        nothing = f"no space left on the device ({results.of(key)})" if full else "no message"
        outcome.failed[key] = f"{killed}: {results.error(key) or nothing}"
    return code == 0


_sockets: list[TemporaryDirectory[str]] = []  # removed when this process ends
_LONGEST_SOCKET = 103  # letters in the path of a socket, on macOS and Linux


def _place_sockets() -> None:
    """Put the sockets of multiprocessing into a temporary folder that the next grid removes after a kill.

    By default, multiprocessing creates a folder that a killed process leaves for ever.
    """
    settings = getattr(multiprocessing.current_process(), "_config", {})
    if settings.get("tempdir") is None:
        folder = temporary_folder("grid")
        if len(f"{folder.name}/listener-12345678") <= _LONGEST_SOCKET:
            settings["tempdir"] = folder.name
            _sockets.append(folder)
        else:
            folder.cleanup()


class _Processes:
    """The running processes, by the keys of their steps.

    They are forked from a server process that has imported the modules of the commands, so each module is
    imported only once for all steps.
    """

    def __init__(self, launcher: Launcher, results: ResultsFolder) -> None:
        self._launcher, self._results = launcher, results
        _place_sockets()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(launcher.preload))
        self._processes: dict[str, ForkServerProcess] = {}
        self._stopped: set[str] = set()

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, step: GridStep) -> None:
        """Start the process of a step."""
        make_folder(self._results.of(step.key))
        arguments = (self._launcher.command, step, self._results)
        self._processes[step.key] = process = self._context.Process(target=_execute, args=arguments)
        with safe_imports():  # the first one starts the server
            process.start()

    def stop(self) -> None:
        """Send each process one signal to stop."""
        for key in self._processes.keys() - self._stopped:
            self._stopped.add(key)
            self._processes[key].terminate()

    def ended(self) -> Iterator[tuple[str, int]]:
        """Keys and exit codes of the processes that have ended; waits briefly for the next one."""
        connection.wait([each.sentinel for each in self._processes.values()], timeout=_PAUSE)
        for key, process in list(self._processes.items()):
            if process.exitcode is not None:
                del self._processes[key]
                process.join()
                early = key in self._stopped and process.exitcode == -signal.SIGTERM
                yield key, Stopped.exit_code if early else process.exitcode


def _execute(command: Command, step: GridStep, results: ResultsFolder) -> None:
    """Run the shards of one step in this process, except shards that another process completes."""
    gc.freeze()  # a garbage collection would read, and so copy, all that was imported before the fork
    for name, operation in step.operations():
        result = results.of(step.key) / name
        with open(f"{result}{LOCK}", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # wait while another grid or task runs it
            if not result.exists():
                try:
                    _run_operation(command, operation, result)
                except OSError as error:
                    if not is_full_disk(error):
                        raise
                    raise SystemExit(DataError.exit_code) from None  # its log has no space


def _run_operation(command: Command, operation: Operation[Any], result: Path) -> None:
    """Run an operation with its output in a file, which exists after success, and messages in a log.

    SystemExit with the exit code of the operation if it fails.
    """
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
        try:
            command(operation)
        except SystemExit as exit_:
            if exit_.code:
                raise
        sys.stdout.flush()
        log.write(f"{ENDED}{time.monotonic() - started:.1f} s\n".encode())


_SETUP = "setup"
_OURS = ("shards", _SETUP)  # keys of [slurm.encode] that are not options of sbatch
_OPTION = re.compile("[A-Za-z][A-Za-z0-9-]*")
_DEFAULTS = {"signal": "USR1@120", "open-mode": "append"}
_SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --requeue
cd {directory} || exit 1
{setup}
unset "${{!LMK_{variables}_@}}"  # a grid ignores environment variables for flags
# KEY RESULT COMMAND…: run a command; its output becomes RESULT after success; exit code 75 requeues it
run() {{
  folder={steps}/$1 result=$2; shift 2
  mkdir -p "$folder"
  exec 9>> "$folder/$result{lock}"
  flock 9  # wait while another task, or a grid without SLURM, runs the same command
  [ -e "$folder/$result" ] && exit 0
  echo "\\$ lmk ${{*:{words}}}" >> "$folder/{log}"; SECONDS=0
  srun "$@" > "$folder/.$result.$SLURM_JOB_ID" 2>> "$folder/{log}"
  code=$?
  if [ $code = 0 ]; then
    echo "{ended}$SECONDS s" >> "$folder/{log}"
    mv "$folder/.$result.$SLURM_JOB_ID" "$folder/$result"
  else rm -f "$folder/.$result.$SLURM_JOB_ID"; fi
  if [ $code = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
  exit $code
}}
case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac
"""


def write_scripts(
    steps: Mapping[str, GridStep],
    results: ResultsFolder,
    options: Mapping[str, Mapping[str, str]],
    program: Sequence[str],
) -> list[Path]:
    """Write a batch script for each missing command; return the scripts in the order of the commands.

    A script is a job array with a task for each operation; of a sharded encoding, for each shard. A task
    runs a shell line, and leaves its result where `run` does, under the same lock. `options` has options of
    sbatch by command, and under '' for all commands; `setup` is shell code that runs first. UsageError,
    before anything is written, if any other text has a control character.
    """
    _check_options(options)
    results.forget(steps.values())
    texts = {}
    for verb in OUTPUTS:
        mine = [step for step in steps.values() if step.verb == verb]
        if mine:
            given = {**options.get("", {}), **options.get(verb, {})}
            texts[results.folder / SLURM / f"{verb}.sh"] = _script(mine, results, given, program)
    for script, text in texts.items():
        make_folder(script.parent)
        with atomic_file(script) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return list(texts)


def _check_options(options: Mapping[str, Mapping[str, str]]) -> None:
    """UsageError for a key or a value of [slurm] that does not fit into a line of a script."""
    for verb, table in options.items():
        where = f"[slurm.{verb}]" if verb else "[slurm]"
        for name, value in table.items():
            if not _OPTION.fullmatch(name):
                raise UsageError(
                    f"{where}: {name!r} is not an option of sbatch; write letters, digits and '-'"
                )
            # the setup is shell code, which may have several lines
            _line(f"{where} {name}", value.translate(_BREAKS) if name == _SETUP else value)


_BREAKS = {ord("\n"): " ", ord("\t"): " "}


def _line(what: str, text: str) -> str:
    """Return the text if it can be a part of one line of a script; UsageError otherwise.

    A newline would end the line: the shell would run the rest, or sbatch would read it as an option.
    """
    if has_control(text):
        raise UsageError(
            f"{what} contains a control character, which a batch script may not: {text[:200]!r}; remove it"
        )
    return text


def _script(
    steps: Sequence[GridStep],
    results: ResultsFolder,
    options: Mapping[str, str],
    program: Sequence[str],
) -> str:
    verb = steps[0].verb
    here, folder = (
        _line("the path", str(each)) for each in (Path.cwd(), results.folder.absolute())
    )
    commands = []
    for step in steps:
        for name, operation in step.operations():
            if not (results.of(step.key) / name).exists():
                words = [_line(f"the command of {step.key}", word) for word in operation.words()]
                commands.append(shlex.join([step.key, name, *program, *words, "--json"]))
    headers = {
        "job-name": f"lmk-{verb}",
        "array": f"0-{len(commands) - 1}",
        "output": f"{folder.replace('%', '%%')}/{SLURM}/{verb}-%a.log",  # sbatch expands %
        **_DEFAULTS,
        **{name: value for name, value in options.items() if name not in _OURS},
    }
    return _SCRIPT.format(
        options="\n".join(
            f"#SBATCH --{name}={shlex.quote(text)}" for name, text in headers.items()
        ),
        variables=verb.upper(),
        directory=shlex.quote(here),
        setup=options.get(_SETUP, ""),
        steps=shlex.quote(f"{folder}/{STEPS}"),
        words=len(program) + 1,
        log=LOG,
        lock=LOCK,
        ended=ENDED,
        cases="\n".join(f"{number}) run {line} ;;" for number, line in enumerate(commands)),
    )


def submit(scripts: Sequence[Path], folder: Path) -> dict[str, str]:
    """Submit scripts, each to start after all tasks of the previous one have ended; command -> job.

    Failed tasks do not prevent the next script. DataError with the message of sbatch if it refuses one.
    """
    written = f"the scripts are written: {', '.join(map(str, scripts))}"
    if shutil.which("sbatch") is None:
        raise DataError(
            "sbatch is missing, so nothing was submitted; run the same command on a machine with SLURM, or "
            f"without --slurm; {written}"
        )
    jobs: dict[str, str] = {}
    for script in scripts:
        after = [f"--dependency=afterany:{list(jobs.values())[-1]}"] if jobs else []
        try:
            job = _output(["sbatch", "--parsable", *after, str(script)]).partition(";")[0]
        except DataError as error:
            names = [f"{name} (job {number})" for name, number in jobs.items()]
            raise DataError(
                f"{error}\nsubmitted: {', '.join(names) or 'nothing'}; {written}"
            ) from None
        jobs[script.stem] = job
        with atomic_file(folder / SLURM / JOBS) as temporary:
            temporary.write_text(json.dumps(jobs), encoding="utf-8")
    return jobs


def queued_tasks(folder: Path) -> list[str]:
    """Return the tasks of the last submission that have not ended, as job_task."""
    file = folder / SLURM / JOBS
    if not file.is_file():
        return []
    jobs = read_json(file, dict[str, str], "remove it when no job of this grid is queued")
    ids = set(jobs.values())
    lines = _output(["squeue", "-h", "-r", "-o", "%i"]).split()
    return [line for line in lines if line.partition("_")[0] in ids]


def _output(words: Sequence[str]) -> str:
    """Return the output of a program of SLURM."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DataError(
            f"{words[0]} is missing; run the same command on a machine with SLURM, or without --slurm"
        ) from None
    if done.returncode:
        raise DataError(f"{shell_line(*words)}: {done.stderr.strip() or 'failed'}")
    return done.stdout.strip()
