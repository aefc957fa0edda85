"""Running: each step once, what needs it after it, failures kept apart, stops and second lives."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lmkcli.errors import Stopped
from lmkcli.experiments import running
from lmkcli.experiments.cells import Cell
from lmkcli.experiments.plan import Plan
from lmkcli.experiments.running import Launcher, Results
from lmkcli.experiments.steps import Step
from lmkcli.operations.encode import Encode
from lmkcli.operations.eval import Evaluate
from lmkcli.operations.search import Search
from lmkcli.progress import Report


def command(operation: Any) -> None:
    """Stands for lmk: leaves a trace, makes its output, and does what its source or index says."""
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
        print("a note\nlmk: no such thing;\n  mend it", file=sys.stderr, flush=True)
        sys.exit(3)
    if how == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        time.sleep(60)
    Path(output).write_text(verb)
    print("[]")


class Grid:
    """Chains of encode, search and eval for some cells, of which the first is shared."""

    def __init__(self, folder: Path, **how: str) -> None:
        self.results = Results(folder)
        steps = {"encode-1": self.step("encode-1", how)}
        chains = {}
        for name in ("a", "b"):
            steps |= {f"search-{name}": self.step(f"search-{name}", how, "encode-1")}
            steps |= {f"eval-{name}": self.step(f"eval-{name}", how, f"search-{name}")}
            chains[name] = ("encode-1", f"search-{name}", f"eval-{name}")
        cells = [Cell(name, {}) for name in chains]
        self.plan = Plan(cells, chains, steps, [])

    def step(self, key: str, how: dict[str, str], *needs: str) -> Step:
        verb = key.partition("-")[0]
        output = {"encode": "vectors", "search": "run.trec", "eval": "scores.jsonl"}[verb]
        place = self.results.of(key) / output
        word = how.get(key.replace("-", "_"), "well")
        operations: dict[str, Any] = {
            "encode": lambda: Encode(word, model="m", output=place),
            "search": lambda: Search(word, "queries", output=place),
            "eval": lambda: Evaluate([Path(word)], log=place),
        }
        return Step(key, operations[verb](), needs)

    def run(self, jobs: int = 1, report: Report = Report()) -> running.Outcome:
        return running.run(self.plan, self.results, Launcher(command, jobs=jobs), report)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "trace").touch()
    return tmp_path / "r" / "trace"


def test_a_shared_step_runs_once_and_before_what_needs_it(tmp_path: Path, trace: Path) -> None:
    grid = Grid(tmp_path / "r")
    outcome = grid.run(jobs=2)
    ran = trace.read_text().split()
    assert sorted(ran) == sorted(outcome.ran) == sorted(grid.plan.steps)
    assert ran[0] == "encode-1"
    assert ran.index("search-b") < ran.index("eval-b")
    assert not grid.results.missing(grid.plan)
    assert not grid.run().ran
    assert len(trace.read_text().split()) == 5


def test_a_step_that_fails_or_is_killed_stops_its_own_cell_alone(
    tmp_path: Path, trace: Path
) -> None:
    outcome = Grid(tmp_path / "r", search_a="fail", eval_b="kill").run()
    assert outcome.ran == ["encode-1", "search-b"]
    assert outcome.failed == {
        "search-a": "exit code 3: no such thing; mend it",
        "eval-b": "killed by SIGKILL: nothing was said",
    }
    assert Grid(tmp_path / "r").run().ran == ["search-a", "eval-b", "eval-a"]


def test_what_a_finished_step_was_made_from_may_go(tmp_path: Path, trace: Path) -> None:
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


def test_shards_are_made_again_when_their_output_is_gone(tmp_path: Path, trace: Path) -> None:
    output = tmp_path / "r" / "steps" / "encode-1" / "vectors"
    steps = {"encode-1": Step("encode-1", Encode("well", model="m", output=output), shards=3)}
    plan, results = Plan([Cell("a", {})], {"a": ("encode-1",)}, steps, []), Results(tmp_path / "r")
    for lives in (1, 2):
        running.run(plan, results, Launcher(command), Report())
        assert len(trace.read_text().split()) == 3 * lives
        (results.of("encode-1") / "vectors").unlink()


def test_a_stop_is_passed_on_and_everything_ended_before_it_is_said(
    tmp_path: Path, trace: Path
) -> None:
    grid = Grid(tmp_path / "r", search_a="wait", search_b="wait")

    def stopping() -> bool:
        return "search-b" in trace.read_text()

    started = time.monotonic()
    with pytest.raises(Stopped):
        grid.run(jobs=2, report=Report(stopping=stopping))
    assert time.monotonic() - started < 50
    assert list(grid.results.missing(grid.plan)) == ["search-a", "eval-a", "search-b", "eval-b"]


def test_seconds_are_those_of_lives_that_ended_well(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.of("encode-1").mkdir(parents=True)
    log = results.of("encode-1") / running.LOG
    log.write_text("ended after long s\nended after 1.5 s\n$ lmk encode\nended after 2.0 s\n")
    assert results.seconds("encode-1") == 3.5
    log.write_text("ended after long s\n")
    assert results.seconds("encode-1") is None
