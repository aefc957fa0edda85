"""Scores of cells: reading, errors for files that no evaluation wrote, figures."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest

from lmkcli.errors import DataError, LmkError, UsageError
from lmkcli.evaluation.compare import Winners, winners
from lmkcli.evaluation.coverage import Coverage
from lmkcli.evaluation.measures import Scores
from lmkcli.evaluation.results import ScoredRun, ScoreTable
from lmkcli.evaluation.score_plots import Panel, Point
from lmkcli.operations.eval import Evaluate
from lmkcli.plugins.grid import plan
from lmkcli.plugins.grid.execution import ResultsFolder
from lmkcli.plugins.grid.gridfile import GridCell, TableChoice
from lmkcli.plugins.grid.html_charts import scale
from lmkcli.plugins.grid.plan import Plan
from lmkcli.plugins.grid.scores import (
    ScoredCell,
    TableLayout,
    _with_means,
    figures,
    scored,
    short_values,
    table,
)
from lmkcli.plugins.grid.steps import GridStep
from tests.damage import damage

COVERAGE = Coverage(2, 2, [], 0, 10, [], {10: 0.5}, {10: 0.0}, 0, False)
ENTRY = {"run": "r.trec", "scores": {"P@1": 0.5}, "coverage": asdict(COVERAGE)}
ROWS = [{"query": "q1", "P@1": 1.0}, {"query": "q2", "P@1": 0}]
PLAN = Plan(
    [GridCell("one", {"collection": ("docs",), "measures": ("P@1",)})],
    {"one": ("eval-1",)},
    {"eval-1": GridStep("eval-1", Evaluate([Path("r.trec")]))},
    [],
)


def results(folder: Path, entry: Any, rows: Any) -> ResultsFolder:
    step = folder / "steps" / "eval-1"
    step.mkdir(parents=True)
    (step / "scores.jsonl").write_text(json.dumps(entry) + "\n")
    (step / "result.json").write_text(json.dumps(rows))
    return ResultsFolder(folder)


def test_a_cell_has_its_scores(tmp_path: Path) -> None:
    (one,) = scored(PLAN, results(tmp_path, ENTRY, ROWS))
    assert one.result.value("P@1") == 0.5
    assert one.result.by_query("P@1") == {"q1": 1.0, "q2": 0}
    assert one.result.scores.coverage == COVERAGE


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no run": lambda raw: raw["entry"].pop("run"),
    "no coverage": lambda raw: raw["entry"].pop("coverage"),
    "another measure": lambda raw: raw["entry"].update(scores={"nDCG@10": 0.5}),
    "too large": lambda raw: raw["entry"].update(scores={"P@1": 10**400}),
    "an unknown share": lambda raw: raw["entry"]["coverage"].update(new=0.5),
    "a cut-off in words": lambda raw: raw["entry"]["coverage"].update(judged_at={"ten": 0.5}),
    "a coverage of another type": lambda raw: raw["entry"]["coverage"].update(judged="2"),
    "no rows": lambda raw: raw.update(rows={}),
    "no query": lambda raw: raw["rows"][0].pop("query"),
    "a query that is none": lambda raw: raw["rows"][0].update(query=[]),
    "no value": lambda raw: raw["rows"][1].pop("P@1"),
    "a value in words": lambda raw: raw["rows"][1].update({"P@1": "0"}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_files_that_no_evaluation_writes_are_refused(tmp_path: Path, wrong: str) -> None:
    raw: dict[str, Any] = json.loads(json.dumps({"entry": ENTRY, "rows": ROWS}))
    WRONG[wrong](raw)
    with pytest.raises(
        DataError, match=r"eval-1/(scores\.jsonl|result\.json).*remove the (file|line)"
    ):
        scored(PLAN, results(tmp_path, raw["entry"], raw["rows"]))


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_results_that_are_damaged_at_random_are_refused_or_read(tmp_path: Path, first: int) -> None:
    """Read like `lmk show` and `lmk grid`; errors of other types would be reported as bugs."""
    for seed in range(first, first + 50):
        folder, random = tmp_path / str(seed), Random(seed)
        step = results(folder, ENTRY, ROWS).of("eval-1")
        PLAN.write(folder)
        (step / "log.txt").write_text("$ lmk eval\nlmk: no\nended after 1.0 s\n")
        description = damage(random.choice([folder / "plan.json", *step.iterdir()]), random)
        try:
            stored = plan.read(folder)
            scored(stored, ResultsFolder(folder))
            ResultsFolder(folder).missing(stored)
            ResultsFolder(folder).seconds("eval-1")
        except (LmkError, OSError):
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {description}") from error


def run(system: str, collection: str, *values: float) -> ScoredRun:
    by_query = {f"q{number}": value for number, value in enumerate(values)}
    aggregated = {"nDCG@10": fmean(values)}
    scores = Scores(aggregated, {"nDCG@10": by_query}, COVERAGE)
    return ScoredRun(Path("r"), system, collection, scores, {"nDCG@10": "nDCG@10"})


def test_a_winner_is_significantly_better_than_every_other_system() -> None:
    runs = [
        run("far", "a", *[0.9, 0.8, 0.9, 0.8, 0.9, 0.7, 0.9, 0.8]),
        run("low", "a", *[0.1, 0.2, 0.1, 0.2, 0.1, 0.3, 0.2, 0.1]),
        run("mid", "a", *[0.3, 0.4, 0.3, 0.4, 0.3, 0.4, 0.3, 0.4]),
        run("far", "b", *[0.8, 0.2, 0.9, 0.4]),  # higher than mid, by chance
        run("mid", "b", *[0.2, 0.8, 0.4, 0.8]),
        run("far", "c", 0.9),  # a single query has no test
        run("mid", "c", 0.1),
        run("far", "d", 0.5, 0.5, 0.4),  # equal
        run("mid", "d", 0.5, 0.5, 0.4),
        run("mid", "e", 0.5, 0.5, 0.4),  # without a rival
    ]
    assert winners(runs, "holm") == Winners({("far", "a", "nDCG@10")}, 4)
    assert winners(runs[2:], "holm") == Winners(set(), 2)
    assert winners([], "bh") == Winners(set(), 0)


def test_the_highest_value_is_bold_and_a_star_marks_a_winner() -> None:
    values = {
        "far": [0.9, 0.8, 0.9, 0.8, 0.9, 0.7, 0.9, 0.8],
        "mid": [0.3, 0.4, 0.3, 0.4, 0.3, 0.4, 0.3, 0.4],
        "low": [0.1, 0.2, 0.3, 0.1, 0.1, 0.2, 0.3, 0.1],
    }
    by_chance = {
        "far": [0.2, 0.8, 0.4, 0.8],
        "mid": [0.8, 0.2, 0.9, 0.4],
        "low": [0.2, 0.8, 0.4, 0.8],
    }
    cells = [
        ScoredCell(
            GridCell(
                f"{pool}-{name}", {"collection": (name,), "pool": (pool,), "measures": ("m",)}
            ),
            run(pool, name, *mine),
            {"scores": {}},
        )
        for name, given in (("a", values), ("b", by_chance))
        for pool, mine in given.items()
    ]
    rows = table(cells, TableLayout(("pool",), ("collection",)), "holm").rows
    assert {
        row.system[0]: [(each.best, each.mark) for each in row.entries[:2]] for row in rows
    } == {
        "far": [(True, "*"), (False, "")],
        "mid": [(False, ""), (True, "")],
        "low": [(False, ""), (False, "")],
    }


@pytest.mark.parametrize(
    "values",
    [
        *[(0.31, 0.44), (0.97, 1.0), (0.004, 0.031), (0.5, 0.5), (0.2, 0.95), (1.0,), (0.0, 0.0)],
        *[(120.0, 480.0), (-0.2, 0.3), (1e-9, 3e-5), (0.3, 0.3 + 1e-15), (7.0, 7.0)],
    ],
)
def test_axes_are_short_round_and_within_the_range_of_the_measure(
    values: tuple[float, ...],
) -> None:
    axis = scale(values)
    assert axis.ticks[0] <= min(values) <= max(values) <= axis.ticks[-1]
    assert (axis.start, axis.stop) == (axis.ticks[0], axis.ticks[-1])
    assert 3 <= len(axis.ticks) <= 9
    assert [float(axis.label(tick)) for tick in axis.ticks] == pytest.approx(axis.ticks)
    if 0 <= min(values) <= max(values) <= 1:
        assert 0 <= axis.start < axis.stop <= 1
    if len(set(values)) > 1 and max(values) - min(values) > 1e-9:
        assert axis.share(max(values)) - axis.share(min(values)) > 0.6


@pytest.mark.parametrize(
    ("values", "short"),
    [
        (["org/large", "other/small", "base"], ["large", "small", "base"]),
        (["runs/a/model", "runs/b/model/"], ["a/model", "b/model"]),
        (["cls", "lmk", "-"], ["cls", "lmk", "-"]),
        (["read and/or skim: ", "x/y"], ["read and/or skim: ", "y"]),
        (["/", "a/b"], ["/", "a/b"]),
    ],
)
def test_paths_are_named_by_the_shortest_ends_that_differ(
    values: list[str], short: list[str]
) -> None:
    assert list(short_values(values).values()) == short


AXES = ("collection", "train.pool", "gran", "max-length")


def finished(value: float, *values: str, **more: Any) -> ScoredCell:
    """A finished cell with the values of AXES."""
    words = {axis: tuple(value.split()) for axis, value in zip(AXES, values, strict=True)}
    cell = GridCell("_".join(values), {**words, "measures": ("nDCG@10",), "k": ("10",)})
    return ScoredCell(cell, None, {"scores": {"nDCG@10": value}, **more})  # type: ignore[arg-type]


def test_cells_of_a_line_differ_only_along_the_axis() -> None:
    cells = [
        finished(0.1, "beir/a", "cls", "", "32", intervals={"nDCG@10": [0.0, 0.2]}),
        finished(0.2, "beir/a", "cls", "", "512"),
        finished(0.3, "beir/b", "cls", "", "512"),
        finished(0.4, "beir/a", "lmk", "64", "512"),
    ]
    ((collection, axis, panels),) = figures(cells)
    assert (collection, axis) == ("a", "max-length")  # the other axis has one point
    assert panels["nDCG@10"].lines == {
        "cls": [Point(32, 0.1, 0.0, 0.2), Point(512, 0.2)],
        "lmk, gran 64": [Point(512, 0.4)],
    }


def test_other_values_are_levels_and_single_points_have_no_figure() -> None:
    cells = [
        finished(0.1, "a", "lmk", "16", "32"),
        finished(0.2, "a", "lmk", "64", "32"),
        finished(0.3, "a", "lmk", "sentence", "32"),
        finished(0.4, "a", "cls", "", "32"),
    ]
    ((_, axis, panels),) = figures(cells)
    assert axis == "gran"
    lines = {"lmk": [Point(16, 0.1), Point(64, 0.2)]}
    levels = {"lmk, sentence": Point(0, 0.3), "cls": Point(0, 0.4)}
    assert panels == {"nDCG@10": Panel(lines, levels)}
    assert not list(figures(cells[1:]))


def test_numbers_may_have_decimals() -> None:
    cells = [finished(0.1, "a", "lmk", "0.5", "32"), finished(0.2, "a", "lmk", "1.25", "32")]
    ((_, _, panels),) = figures(cells)
    assert panels["nDCG@10"].lines == {"": [Point(0.5, 0.1), Point(1.25, 0.2)]}


@pytest.mark.parametrize("columns", [("collection",), ("k",)])
def test_cells_with_more_measures_are_tested_and_keep_their_columns(
    columns: tuple[str, ...],
) -> None:
    """Only the second collection has P@1: its value is in the second column, and it is tested there."""

    def cell(model: str, collection: str, k: str, names: tuple[str, ...]) -> ScoredCell:
        values = {"collection": (collection,), "model": (model,), "k": (k,), "measures": names}
        by_query = {name: {f"q{n}": (n + (model == "b")) / 9 for n in range(8)} for name in names}
        means = {name: fmean(each.values()) for name, each in by_query.items()}
        run = ScoredRun(
            Path("r"), "", collection, Scores(means, by_query, COVERAGE), {n: n for n in names}
        )
        return ScoredCell(GridCell(f"{model}{collection}", values), run, ENTRY)

    cells = [
        cell(model, *where)
        for model in "ab"
        for where in (("one", "1", ("nDCG@10",)), ("two", "2", ("nDCG@10", "P@1")))
    ]
    for given in (cells, cells[::-1]):
        choice = TableChoice(("model",), columns, {"model": "a"})
        layout = TableLayout.of([each.cell for each in given], choice)
        made = table(given, layout, "holm")
        assert sorted(
            (test.collection.split("\t")[-1][:3], test.measure) for test in made.tests
        ) == [("one", "nDCG@10"), ("two", "P@1"), ("two", "nDCG@10")]
        heads = [head[-3:] for head in made.columns]
        place = heads.index("two") if columns == ("collection",) else made.columns.index("2")
        other = heads.index("one") if columns == ("collection",) else made.columns.index("1")
        for row in made.rows:
            assert row.entries[place].value is not None
            assert (row.entries[other].value is None) == (row.measure == "P@1")


def test_means_over_named_columns() -> None:
    """The papers' averages are means of a few columns (LMK, Table 1: Avg. short, Avg. long)."""
    rows: dict[str, list[float | None]] = {"x": [0.1, 0.3, 0.8, 0.4], "y": [0.2, None, 0.8, None]}
    measured = ScoreTable("nDCG@10", ["aa", "ab", "b", "mean"], rows)
    members: list[tuple[str, ...]] = [("aa",), ("ab",), ("b1", "b2")]  # the mean has no members
    made, same = _with_means(measured, members, {"start": ("a*", "m*"), "some": ("b", "aa")})
    assert same == members
    assert made.columns == ["aa", "ab", "b", "mean", "start", "some"]
    assert made.rows["x"][4:] == pytest.approx([0.2, 0.45])
    assert made.rows["y"][4:] == [None, 0.5]  # one of two is missing
    with pytest.raises(UsageError, match="'none' has no column; the columns are aa, ab, b "):
        _with_means(measured, members, {"none": ("mean",)})
