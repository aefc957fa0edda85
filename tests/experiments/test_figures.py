"""Figures: which cells stand on one line, what it is called, and which axes have a figure."""

from typing import Any

from lmkcli.evaluation.points import Panel, Point
from lmkcli.experiments.cells import Cell
from lmkcli.experiments.figures import figures
from lmkcli.experiments.scores import Scored

AXES = ("collection", "train.pool", "gran", "max-length")


def scored(value: float, *values: str, **more: Any) -> Scored:
    """A finished cell with the values of AXES."""
    words = {axis: tuple(value.split()) for axis, value in zip(AXES, values, strict=True)}
    cell = Cell("_".join(values), {**words, "measures": ("nDCG@10",), "k": ("10",)})
    return Scored(cell, None, {"scores": {"nDCG@10": value}, **more})  # type: ignore[arg-type]


def test_a_line_is_what_differs_in_its_axis_alone() -> None:
    cells = [
        scored(0.1, "beir/a", "cls", "", "32", intervals={"nDCG@10": [0.0, 0.2]}),
        scored(0.2, "beir/a", "cls", "", "512"),
        scored(0.3, "beir/b", "cls", "", "512"),
        scored(0.4, "beir/a", "lmk", "64", "512"),
    ]
    ((collection, axis, panels),) = figures(cells)
    assert (collection, axis) == ("a", "max-length")  # of the other there is one point
    assert panels["nDCG@10"].lines == {
        "cls": [Point(32, 0.1, 0.0, 0.2), Point(512, 0.2)],
        "lmk, gran 64": [Point(512, 0.4)],
    }


def test_values_that_are_no_numbers_are_levels_and_lone_points_no_figure() -> None:
    cells = [
        scored(0.1, "a", "lmk", "16", "32"),
        scored(0.2, "a", "lmk", "64", "32"),
        scored(0.3, "a", "lmk", "sentence", "32"),
        scored(0.4, "a", "cls", "", "32"),
    ]
    ((_, axis, panels),) = figures(cells)
    assert axis == "gran"
    lines = {"lmk": [Point(16, 0.1), Point(64, 0.2)]}
    levels = {"lmk, sentence": Point(0, 0.3), "cls": Point(0, 0.4)}
    assert panels == {"nDCG@10": Panel(lines, levels)}
    assert not list(figures(cells[1:]))


def test_numbers_may_have_decimals() -> None:
    cells = [scored(0.1, "a", "lmk", "0.5", "32"), scored(0.2, "a", "lmk", "1.25", "32")]
    ((_, _, panels),) = figures(cells)
    assert panels["nDCG@10"].lines == {"": [Point(0.5, 0.1), Point(1.25, 0.2)]}
