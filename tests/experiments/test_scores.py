"""Scores of cells: read as they were measured, and refused where no evaluation wrote them."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lmkcli.errors import DataError, LmkError
from lmkcli.evaluation.coverage import Coverage
from lmkcli.experiments import plan
from lmkcli.experiments.cells import Cell
from lmkcli.experiments.plan import Plan
from lmkcli.experiments.running import Results
from lmkcli.experiments.scores import scored
from lmkcli.experiments.steps import Step
from lmkcli.operations.eval import Evaluate
from tests.damage import damage

COVERAGE = Coverage(2, 2, [], 0, 10, [], {10: 0.5}, {10: 0.0}, 0, False)
ENTRY = {"run": "r.trec", "scores": {"P@1": 0.5}, "coverage": asdict(COVERAGE)}
ROWS = [{"query": "q1", "P@1": 1.0}, {"query": "q2", "P@1": 0}]
PLAN = Plan(
    [Cell("one", {"collection": ("docs",), "measures": ("P@1",)})],
    {"one": ("eval-1",)},
    {"eval-1": Step("eval-1", Evaluate([Path("r.trec")]))},
    [],
)


def results(folder: Path, entry: Any, rows: Any) -> Results:
    step = folder / "steps" / "eval-1"
    step.mkdir(parents=True)
    (step / "scores.jsonl").write_text(json.dumps(entry) + "\n")
    (step / "result.json").write_text(json.dumps(rows))
    return Results(folder)


def test_a_cell_has_what_was_measured(tmp_path: Path) -> None:
    (one,) = scored(PLAN, results(tmp_path, ENTRY, ROWS))
    assert one.result.value("P@1") == 0.5
    assert one.result.by_query("P@1") == {"q1": 1.0, "q2": 0}
    assert one.result.scores.coverage == COVERAGE


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no run": lambda raw: raw["entry"].pop("run"),
    "no coverage": lambda raw: raw["entry"].pop("coverage"),
    "another measure": lambda raw: raw["entry"].update(scores={"nDCG@10": 0.5}),
    "too large": lambda raw: raw["entry"].update(scores={"P@1": 10**400}),
    "a cut-off in words": lambda raw: raw["entry"]["coverage"].update(judged_at={"ten": 0.5}),
    "a coverage of another type": lambda raw: raw["entry"]["coverage"].update(judged="2"),
    "no rows": lambda raw: raw.update(rows={}),
    "no query": lambda raw: raw["rows"][0].pop("query"),
    "a query that is none": lambda raw: raw["rows"][0].update(query=[]),
    "no value": lambda raw: raw["rows"][1].pop("P@1"),
    "a value in words": lambda raw: raw["rows"][1].update({"P@1": "0"}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_evaluation_writes_is_refused(tmp_path: Path, wrong: str) -> None:
    raw: dict[str, Any] = json.loads(json.dumps({"entry": ENTRY, "rows": ROWS}))
    WRONG[wrong](raw)
    with pytest.raises(DataError, match=r"remove the file and run the grid again|remove the line"):
        scored(PLAN, results(tmp_path, raw["entry"], raw["rows"]))


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_results_that_are_damaged_at_random_are_refused_or_read(tmp_path: Path, first: int) -> None:
    """As `lmk show` and `lmk grid` read them; another error than these two would be taken for a bug."""
    for seed in range(first, first + 50):
        folder, random = tmp_path / str(seed), Random(seed)
        step = results(folder, ENTRY, ROWS).of("eval-1")
        PLAN.write(folder)
        (step / "log.txt").write_text("$ lmk eval\nlmk: no\nended after 1.0 s\n")
        said = damage(random.choice([folder / "plan.json", *step.iterdir()]), random)
        try:
            stored = plan.read(folder)
            scored(stored, Results(folder))
            Results(folder).missing(stored)
            Results(folder).seconds("eval-1")
        except (LmkError, OSError):
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {said}") from error
