"""Plots: the contents of files, equal bytes for equal data, errors."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from lmkcli import catalog
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.evaluation.score_plots import Bar, Panel, Point

plots = pytest.importorskip("lmkcli.plugins.analysis.plots")

LINES = {"lmk": [(64, 0.66), (16, 0.61), (256, 0.62)], "mean": [(16, 0.6), (256, 0.6)]}
BARS = {
    measure: {"bm25": Bar(0.68, 0.64, 0.72), "dense": Bar(0.7, 0.66, 0.74)}
    for measure in ("nDCG@10", "R@100")
}


def draw_all(folder: Path, suffix: str) -> dict[str, bytes]:
    plots.curve(LINES, "granularity (tokens)", "nDCG@10", folder / f"curve{suffix}")
    plots.bars(BARS, "95 % intervals over 300 queries", folder / f"bars{suffix}")
    differences = {"nDCG@10": {"dense": [0.2, -0.1, 0.0], "late": [0.1, 0.0, 0.1]}}
    plots.query_differences(differences, "3 queries", folder / f"d{suffix}")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_data_make_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = draw_all(tmp_path / "one", suffix), draw_all(tmp_path / "two", suffix)
    assert first == second
    assert len(first) == 3


def test_a_file_of_settings_of_matplotlib_changes_nothing(tmp_path: Path) -> None:
    """It may be a file of other people in the current folder, and could start LaTeX."""
    import matplotlib

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = draw_all(tmp_path / "one", ".svg")
    foreign = {"text.usetex": True, "axes.facecolor": "red", "axes.titlesize": 30}
    with matplotlib.rc_context(foreign):
        assert draw_all(tmp_path / "two", ".svg") == first
        assert (
            matplotlib.rcParams["axes.facecolor"] == "red"
        )  # that of another program in this process


def test_labels_and_captions_are_text(tmp_path: Path) -> None:
    made = {name: data.decode() for name, data in draw_all(tmp_path, ".svg").items()}
    for word in ("granularity (tokens)", "nDCG@10", ">lmk<", ">mean<", ">16<", ">64<", ">256<"):
        assert word in made["curve.svg"]
    for word in ("nDCG@10", "R@100", ">bm25<", ">dense<", ">0.680<", "300 queries"):
        assert word in made["bars.svg"]
    for word in (">dense<", ">late<", "nDCG@10"):
        assert word in made["d.svg"]
    assert not any(re.search(r"<dc:date>", text) for text in made.values())


def test_dollars_in_a_name_are_not_a_formula(tmp_path: Path) -> None:
    plots.curve({"a$x_{$": [(1, 1.0), (2, 2.0)]}, "$x_{$", "a", tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().count("$x_{$") == 1  # a single line has no legend


def test_control_characters_in_names_are_visible(tmp_path: Path) -> None:
    name, seen = "\x1b[31mred\u202e\x9b", r"\u001b[31mred\u202e\u009b"
    line = [(1, 1.0), (2, 2.0)]
    plots.curve({name: line, "b": line}, name, name, tmp_path / "curve.svg")
    plots.bars({name: {name: BARS["R@100"]["dense"]}}, name, tmp_path / "bars.svg")
    for file, times in (("curve.svg", 3), ("bars.svg", 3)):
        # An SVG may not contain control characters
        root = ElementTree.parse(tmp_path / file).getroot()
        assert "".join(root.itertext()).count(seen) == times


def test_points_are_joined_in_the_order_of_x(tmp_path: Path) -> None:
    """On a logarithmic axis from 16 to 256, 64 is in the middle."""
    plots.curve({"lmk": LINES["lmk"]}, "gran", "nDCG@10", tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    path = next(m[1] for m in re.finditer(r'<path d="(M [^"]*)"[^>]*stroke: #0072b2', text))
    xs = [float(x) for x, _ in re.findall(r"[ML] (\S+) (\S+)", path)]
    assert xs == sorted(xs)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], rel=1e-4)


def ticks(points: list[tuple[float, float]], folder: Path) -> list[str]:
    plots.curve({"a": points}, "x", "y", folder / "c.svg")
    text = (folder / "c.svg").read_text()
    return re.findall(r'id="xtick_\d+">.*?<text[^>]*>([^<]*)<', text, re.DOTALL)


def test_ticks_are_the_values_if_they_are_round(tmp_path: Path) -> None:
    assert ticks([(0.25, 0.1), (12, 0.2), (384, 0.3)], tmp_path) == ["0.25", "12", "384"]
    assert ticks([(0.4, 0.1), (0.9, 0.2), (1.2, 0.3)], tmp_path) == ["0.4", "0.9", "1.2"]


def test_ticks_are_round_if_the_values_are_not(tmp_path: Path) -> None:
    shown = ticks([(79.5, 0.1), (98.25, 0.2), (127, 0.3), (184, 0.4)], tmp_path)
    assert shown == ["80", "100", "120", "140", "160", "180"]
    powers = ticks([(79.5, 0.1), (225.252, 0.2), (8111, 0.3)], tmp_path)
    assert {"128", "1024"} < set(powers)
    assert all(int(tick).bit_count() == 1 for tick in powers)


def test_levels_have_a_name_and_intervals_are_a_band(tmp_path: Path) -> None:
    banded = [Point(16, 0.6, 0.55, 0.65), Point(64, 0.7, 0.6, 0.8)]
    level = {"bm25": Point(0, 0.65)}
    plots.curve({"lmk": banded}, "gran", "y", tmp_path / "c.svg", level)
    text = (tmp_path / "c.svg").read_text()
    assert ">bm25<" in text
    assert "opacity: 0.13" in text
    assert "stroke-dasharray" in text


def test_a_long_legend_is_below_the_axes(tmp_path: Path) -> None:
    lines = {name: [(1.0, 0.5), (2.0, 0.6)] for name in ("a", "b", "mean, unit chunk, window 512")}
    plots.curve(lines, "x", "y", tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    texts = re.findall(r'y="([\d.]+)" transform[^>]*>([^<]*)<', text)
    at = {shown: float(y) for y, shown in texts}
    assert min(at[name] for name in lines) > at["x"]


def test_measures_are_panels_with_one_legend_and_one_axis(tmp_path: Path) -> None:
    cls, lmk = [Point(16, 0.5), Point(512, 0.6)], [Point(16, 0.7), Point(512, 0.8, 0.7, 0.9)]
    panels = {"nDCG@10": Panel({"cls": cls, "lmk": lmk}, {}), "R@100": Panel({"lmk": lmk}, {})}
    plots.curves(panels, "length", tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    assert [text.count(f">{word}<") for word in ("nDCG@10", "R@100")] == [1, 1]
    assert [text.count(f">{word}<") for word in ("length", "cls", "lmk", "512")] == [1] * 4
    lines = re.findall(
        r'clip-path="[^"]*" style="fill: none; stroke: (#\w+); stroke-width: 1.4', text
    )
    assert len(lines) == 3
    assert lines[1] == lines[2] != lines[0]  # a line keeps its colour in the next panel


def test_intervals_of_many_lines_are_whiskers_side_by_side(tmp_path: Path) -> None:
    lines = {f"l{n}": [Point(1, n, n - 1, n + 1), Point(2, n, n - 1, n + 1)] for n in range(7)}
    for count, bands in ((2, 2), (3, 0), (7, 0)):
        few = dict(list(lines.items())[:count])
        plots.curves({"y": Panel(few, {})}, "x", tmp_path / "c.svg")
        text = (tmp_path / "c.svg").read_text()
        assert text.count("opacity: 0.13") == bands
        line = r'"M ([\d.]+) [-\d.]+ \nL \1 [-\d.]+ \n" clip-path="[^"]*" style="fill: none; stroke: #\w+"'
        assert len(set(re.findall(line, text))) == (0 if bands else 2 * count)


def test_a_figure_of_many_runs_fits_a_page(tmp_path: Path) -> None:
    runs = {f"run{number}": [0.1, -0.1] for number in range(5)}
    for panels in ({"P@1": runs}, {"P@1": runs, "RR@10": runs}):
        plots.query_differences(panels, "", tmp_path / "d.svg")
        head = (tmp_path / "d.svg").read_text()[:2000]
        (height,) = re.findall(r'height="([\d.]+)pt"', head)
        assert float(height) < 72 * 9


def test_the_lowest_panel_of_every_column_names_its_axis(tmp_path: Path) -> None:
    panels = {"P@1": {name: [0.5, -0.25] for name in "abcde"}}
    plots.query_differences(panels, "", tmp_path / "d.svg")
    drawn = (tmp_path / "d.svg").read_text()
    assert drawn.count(">queries, by difference<") == 3
    assert drawn.count(">Δ P@1<") == 2


def test_values_without_a_colour_are_last_in_the_legend(tmp_path: Path) -> None:
    names = ["rare", *(name for name in "abcdef" for _ in range(2))]
    places = np.arange(2.0 * len(names)).reshape(-1, 2)
    plots.scatter(places, names, ("x", "y", "topic"), tmp_path / "s.svg")
    drawn = (tmp_path / "s.svg").read_text()
    assert drawn.index(">others<") > max(drawn.index(f">{name}<") for name in "abcdef")


def test_wins_are_drawn_in_another_colour_than_losses(tmp_path: Path) -> None:
    plots.query_differences({"P@1": {"x": [0.5, 0.25, -0.125]}}, "", tmp_path / "d.svg")
    text = (tmp_path / "d.svg").read_text()
    assert text.count("fill: #0072b2") == 2
    assert text.count("fill: #d55e00") == 1


def test_a_label_of_any_length_stays_within_its_panel(tmp_path: Path) -> None:
    """It is broken into lines above the panel; along the axis it would overlap with its neighbours."""
    name = "runs/" + "long-" * 40
    plots.query_differences({"P@1": {name: [0.5], name + "2": [-0.5]}}, "", tmp_path / "d.svg")
    shown = re.findall(r"<text([^>]*)>([^<]*long-[^<]*)<", (tmp_path / "d.svg").read_text())
    assert "".join(text.strip() for _, text in shown) == name + name + "2"
    assert not any("rotate(-90" in how for how, _ in shown)
    assert max(len(text) for _, text in shown) <= 45


def test_one_point_one_bar_and_negative_values_can_be_drawn(tmp_path: Path) -> None:
    plots.curve({"a": [(0.0, 0.5)]}, "x", "y", tmp_path / "c.png")
    plots.bars({"m": {"a": Bar(0.0, 0.0, 0.0)}}, "", tmp_path / "b.png")
    plots.bars({"m": {"a": Bar(-0.5, -0.75, -0.25)}}, "", tmp_path / "n.png")
    plots.curve({"a": [(-1.0, 0.5), (1.0, 0.5)], "b": []}, "x", "y", tmp_path / "e.png")
    assert all(path.stat().st_size > 1000 for path in tmp_path.iterdir())


def test_after_an_error_no_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        plots.curve(LINES, "x", "y", tmp_path / "curve.jpg")
    with pytest.raises(DataError, match="nothing to plot"):
        plots.curve({"a": []}, "x", "y", tmp_path / "curve.svg")
    with pytest.raises(DataError, match="nothing to plot"):
        plots.bars({}, "", tmp_path / "bars.svg")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_error_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith(("lmkcli.plugins.analysis.plots", "matplotlib")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(sys, "meta_path", [_Without(), *sys.meta_path])
    with pytest.raises(MissingExtra, match=r"pip install .lmkcli\[plot\]"):
        catalog.PLOTS.load("curve")


class _Without:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")


def test_no_window_and_no_global_figure() -> None:
    code = "import sys, lmkcli.plugins.analysis.plots; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_plot_that_fails_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "curve.svg"
    plots.curve(LINES, "x", "y", path)
    before = path.read_bytes()

    def full(figure: object, file: Path, **_: object) -> None:
        file.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match="disk full"):
        plots.curve(LINES, "another x", "y", path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
