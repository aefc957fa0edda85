"""Plans on disk: written plans are read again, and plans that no grid wrote are refused."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.errors import DataError
from lmkcli.operations.index import BuildIndex
from lmkcli.operations.search import Search
from lmkcli.plugins.grid import plan
from lmkcli.plugins.grid.gridfile import GridCell, GridFile
from lmkcli.plugins.grid.plan import Plan
from lmkcli.plugins.grid.steps import GridStep

STEPS = [
    GridStep("index-1a", BuildIndex("docs", kind="bm25", output=Path("i"))),
    GridStep("search-2b", Search("i", "docs", k=5, output=Path("r.trec")), ("index-1a",)),
]
PLAN = Plan(
    [GridCell("one", {"collection": ("docs",), "measures": ("P@1",)})],
    {"one": ("index-1a", "search-2b")},
    {step.key: step for step in STEPS},
    [],
)


def test_a_written_plan_is_read_again(tmp_path: Path) -> None:
    PLAN.write(tmp_path)
    assert plan.read(tmp_path) == PLAN
    assert plan.has_plan(tmp_path)


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no cells": lambda raw: raw.update(cells=[]),
    "no collection": lambda raw: raw["cells"][0].update(values={"measures": ["P@1"]}),
    "other axes": lambda raw: raw["cells"].append({"name": "one", "values": {}}),
    "no chain": lambda raw: raw.update(chains={}),
    "an empty chain": lambda raw: raw.update(chains={"one": []}),
    "a missing step": lambda raw: raw["steps"].pop("index-1a"),
    "a missing need": lambda raw: raw["steps"]["index-1a"].update(needs=["index-0"]),
    "another key": lambda raw: raw["steps"]["index-1a"].update(key="index-0"),
    "a path": lambda raw: raw["steps"].update({"../a": raw["steps"]["index-1a"] | {"key": "../a"}}),
    "an unknown command": lambda raw: raw["steps"]["index-1a"]["operation"].update(
        operation="fetch"
    ),
    "a cell with an unknown fact": lambda raw: raw.update(
        refused=[{"cell": "two", "why": "x", "new": 1}]
    ),
    "a table with an unknown setting": lambda raw: raw.update(table={"new": 1}),
    "no shards": lambda raw: raw["steps"]["index-1a"].update(shards=0),
    "too many shards": lambda raw: raw["steps"]["index-1a"].update(shards=10**12),
    "an operation of another type": lambda raw: raw["steps"]["index-1a"].update(operation="index"),
    "an unknown setting": lambda raw: raw["steps"]["index-1a"]["operation"].update(x=1),
    "a setting of another type": lambda raw: raw["steps"]["search-2b"]["operation"].update(k="5"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_plan_that_no_grid_writes_is_refused(tmp_path: Path, damage: str) -> None:
    PLAN.write(tmp_path)
    raw = json.loads((tmp_path / "plan.json").read_text())
    DAMAGES[damage](raw)
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    with pytest.raises(DataError, match=r"plan.json .*lmk grid"):
        plan.read(tmp_path)


def test_the_time_of_a_plan_is_linear_in_its_cells(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        values = [(f"{0.001 * number:.3f}",) for number in range(count)]
        axes = {
            "collection": [("./none",)],
            "kind": [("bm25",)],
            "measures": [("P@1",)],
            "k1": values,
        }
        started = time.process_time()
        made = plan.plan(GridFile(axes), tmp_path, lambda step, before: None)
        assert len(made.steps) == 3 * count
        return time.process_time() - started

    few = seconds(200)
    assert seconds(1600) < 30 * max(few, 0.02)  # 8 for a linear time, 64 for a quadratic one


def test_indexes_fit_the_vectors_of_their_cells(
    masked_model: Callable[[str], Path], beir: Path, tmp_path: Path
) -> None:
    axes = {
        "collection": [(str(beir),)],
        "model": [(str(masked_model("bert")),)],
        "pool": [("splade",), ("mean",)],
        "unit": [("doc",), ("token",)],
        "kind": [("exact",), ("inverted",), ("int8",)],
        "muvera": [(), ("4x2x8",)],
        "measures": [("P@1",)],
    }
    made = plan.plan(GridFile(axes), tmp_path, plan.check_step)
    chosen = [
        " ".join(" ".join(cell.values[axis]) for axis in ("pool", "unit", "kind", "muvera")).strip()
        for cell in made.cells
    ]
    assert chosen == [
        "splade doc exact",
        "splade doc inverted",
        "mean doc exact",
        "mean doc int8",
        "mean token exact",
        "mean token int8",
        "mean token int8 4x2x8",
    ]
    reasons = " ".join(each.why for each in made.refused)
    for reason in (
        "--kind inverted needs sparse vectors, and --pool mean makes dense ones",
        "--kind int8 needs dense vectors, and --pool splade makes sparse ones",
        "--muvera has no effect with --unit doc",
        "--muvera has no effect with --kind inverted",
    ):
        assert reason in reasons
