"""Execution: each step once and after the steps it needs, failures, stops, continued grids."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from lmkcli.errors import DataError, Stopped
from lmkcli.operations.encode import Encode
from lmkcli.operations.eval import Evaluate
from lmkcli.operations.search import Search
from lmkcli.plugins.grid import execution
from lmkcli.plugins.grid.execution import Launcher, ResultsFolder
from lmkcli.plugins.grid.gridfile import GridCell
from lmkcli.plugins.grid.plan import Plan
from lmkcli.plugins.grid.steps import GridStep
from lmkcli.progress import Report

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def own_forkserver() -> Iterator[None]:
    """A server that has imported what a test asks for: Python starts one for all grids of a process."""
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def command(operation: Any) -> None:
    """A substitute for lmk: write a trace and the output, then act as its source or index says."""
    verb = operation.verb
    output = operation.log if verb == "eval" else operation.output
    how = {"encode": "source", "search": "index"}.get(verb, "runs")
    value = getattr(operation, how)
    how = str(value[0] if isinstance(value, list) else value)
    with open(Path(output).parents[2] / "trace", "a") as trace:
        trace.write(f"{Path(output).parent.name}\n")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fail":
        print("a note\nlmk: no such thing;\n  repair it", file=sys.stderr, flush=True)
        sys.exit(3)
    if how == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        while True:
            time.sleep(1)  # a signal just before one long sleep would wait for its end
    Path(output).write_text(verb)
    print("[]")


class Grid:
    """Chains of encode, search and eval for two cells, with a shared encode."""

    def __init__(self, folder: Path, **how: str) -> None:
        self.results = ResultsFolder(folder)
        steps = {"encode-1": self.step("encode-1", how)}
        chains = {}
        for name in ("a", "b"):
            steps |= {f"search-{name}": self.step(f"search-{name}", how, "encode-1")}
            steps |= {f"eval-{name}": self.step(f"eval-{name}", how, f"search-{name}")}
            chains[name] = ("encode-1", f"search-{name}", f"eval-{name}")
        cells = [GridCell(name, {}) for name in chains]
        self.plan = Plan(cells, chains, steps, [])

    def step(self, key: str, how: dict[str, str], *needs: str) -> GridStep:
        verb = key.partition("-")[0]
        output = {"encode": "vectors", "search": "run.trec", "eval": "scores.jsonl"}[verb]
        place = self.results.of(key) / output
        word = how.get(key.replace("-", "_"), "well")
        operations: dict[str, Any] = {
            "encode": lambda: Encode(word, model="m", output=place),
            "search": lambda: Search(word, "queries", output=place),
            "eval": lambda: Evaluate([Path(word)], log=place),
        }
        return GridStep(key, operations[verb](), needs)

    def run(self, jobs: int = 1, report: Report = Report()) -> execution.Outcome:
        return execution.run(self.plan, self.results, Launcher(command, jobs=jobs), report)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "trace").touch()
    return tmp_path / "r" / "trace"


def test_a_shared_step_runs_once_and_before_its_readers(tmp_path: Path, trace: Path) -> None:
    grid = Grid(tmp_path / "r")
    outcome = grid.run(jobs=2)
    ran = trace.read_text().split()
    assert sorted(ran) == sorted(outcome.ran) == sorted(grid.plan.steps)
    assert ran[0] == "encode-1"
    assert ran.index("search-b") < ran.index("eval-b")
    assert not grid.results.missing(grid.plan)
    assert not grid.run().ran
    assert len(trace.read_text().split()) == 5


def test_a_step_that_fails_or_is_killed_stops_only_its_own_cell(
    tmp_path: Path, trace: Path
) -> None:
    outcome = Grid(tmp_path / "r", search_a="fail", eval_b="kill").run()
    assert outcome.ran == ["encode-1", "search-b"]
    assert outcome.failed == {
        "search-a": "exit code 3: no such thing; repair it",
        "eval-b": "killed by SIGKILL: no message",
    }
    assert Grid(tmp_path / "r").run().ran == ["search-a", "eval-b", "eval-a"]


def test_inputs_of_finished_steps_may_be_removed(tmp_path: Path, trace: Path) -> None:
    grid = Grid(tmp_path / "r")
    grid.run()
    (grid.results.of("encode-1") / "vectors").unlink()
    assert not grid.results.missing(grid.plan)
    (grid.results.of("search-a") / "run.trec").unlink()
    assert not grid.results.missing(grid.plan)
    (grid.results.of("eval-a") / "scores.jsonl").unlink()
    again = ["encode-1", "search-a", "eval-a"]
    assert list(grid.results.missing(grid.plan)) == again
    assert grid.run().ran == again
    assert not grid.results.missing(grid.plan)


def test_shards_run_again_if_their_output_is_missing(tmp_path: Path, trace: Path) -> None:
    output = tmp_path / "r" / "steps" / "encode-1" / "vectors"
    steps = {"encode-1": GridStep("encode-1", Encode("well", model="m", output=output), shards=3)}
    plan, results = (
        Plan([GridCell("a", {})], {"a": ("encode-1",)}, steps, []),
        ResultsFolder(tmp_path / "r"),
    )
    for runs in (1, 2):
        execution.run(plan, results, Launcher(command), Report())
        assert len(trace.read_text().split()) == 3 * runs
        (results.of("encode-1") / "vectors").unlink()


def test_after_a_stop_all_commands_have_ended(tmp_path: Path, trace: Path) -> None:
    grid = Grid(tmp_path / "r", search_a="wait", search_b="wait")

    def stopping() -> bool:
        return "search-b" in trace.read_text()

    started = time.monotonic()
    with pytest.raises(Stopped):
        grid.run(jobs=2, report=Report(stopping=stopping))
    assert time.monotonic() - started < 300  # far from 900, for a busy machine
    assert list(grid.results.missing(grid.plan)) == ["search-a", "eval-a", "search-b", "eval-b"]


KILLED = """
import os, signal, sys
from pathlib import Path
from lmkcli.progress import Report
from tests.plugins.grid.test_execution import Grid
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
trace = Path(sys.argv[1]) / "trace"
stopping = lambda: bool(sys.argv[2:]) and bool(trace.read_text()) and kill()
Grid(Path(sys.argv[1])).run(report=Report(stopping=stopping))
"""


def test_a_killed_grid_leaves_nothing_that_the_next_one_does_not_remove(
    tmp_path: Path, trace: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # sockets need short paths
        environment = {**os.environ, "TMPDIR": short, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-c", KILLED, str(trace.parent)]
        killed = subprocess.run([*words, "kill"], env=environment, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert os.listdir(short)
        subprocess.run(words, env=environment, check=True)
        assert os.listdir(short) == []


def test_seconds_are_those_of_successful_commands(tmp_path: Path) -> None:
    results = ResultsFolder(tmp_path)
    results.of("encode-1").mkdir(parents=True)
    log = results.of("encode-1") / execution.LOG
    log.write_text("ended after long s\nended after 1.5 s\n$ lmk encode\nended after 2.0 s\n")
    assert results.seconds("encode-1") == 3.5
    log.write_text("ended after long s\n")
    assert results.seconds("encode-1") is None


@pytest.mark.parametrize("name", execution.NAMES)
def test_folders_with_other_files_of_these_names_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(DataError, match=name):
        execution.check_folder(tmp_path)


def test_new_folders_other_names_and_results_are_accepted(tmp_path: Path) -> None:
    execution.check_folder(tmp_path / "new")
    (tmp_path / "thesis.tex").touch()
    execution.check_folder(tmp_path)
    Plan([GridCell("a", {})], {"a": ()}, {}, []).write(tmp_path)
    for name in ("report.html", "scores.jsonl"):
        (tmp_path / name).touch()
    execution.check_folder(tmp_path)
