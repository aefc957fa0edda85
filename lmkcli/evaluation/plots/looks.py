"""What all plots share: the house style, the looks of lines and their legend, and the file.

The suffix chooses the format (.png, .svg, .pdf). The same data make the same file: no dates, fixed
ids. Figures are drawn without pyplot, so no window and no global state is touched.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from lmkcli.errors import DataError, UsageError
from lmkcli.system.atomic import atomic_file, destination
from lmkcli.text.visible import visible

_WIDTH, _DPI = 6.4, 160
LETTERS_PER_LINE = 90  # of a title, at most: as many as the width holds
_LETTERS_BESIDE = 26  # of a legend's longest line, if the legend is to stand beside the axes
# Okabe and Ito's colours, which most colour-blind readers tell apart; black and yellow left out.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]
_MARKS = ["o", "s", "^", "D", "v", "P"]
_DASHES = ["-", "--", ":", "-."]
# Suffix -> what its writer would otherwise add of time and version.
_DATELESS: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_STYLE: Any = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "font.size": 9,
    "text.parse_math": False,  # a name with two dollars is no formula
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "pdf.fonttype": 42,  # whole fonts: some publishers refuse the others
    "svg.hashsalt": "lmk",
    "svg.fonttype": "none",  # text stays text, which can be searched and edited
}


class Look(NamedTuple):
    """How a line is told from the others: by colour, mark and, after six of them, dashes."""

    color: str
    marker: str
    linestyle: str

    @classmethod
    def of(cls, number: int) -> "Look":
        again, place = divmod(number, len(COLOURS))
        return cls(COLOURS[place], _MARKS[place], _DASHES[again % len(_DASHES)])


def legend(figure: Any, axes: Sequence[Any], lines: int) -> None:
    """What the lines are, outside the axes: beside them, or below where a name is too long for that."""
    if lines < 2:
        return
    shown = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    by_name = {name: handle for handle, name in reversed(shown)}
    names = list(dict.fromkeys(name for _, name in shown))
    handles = [by_name[name] for name in names]
    if max(map(len, names)) <= _LETTERS_BESIDE:
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
        axes[0].legend(handles, names, **place)
        return
    columns = _columns_below(names)
    figure.legend(handles, names, loc="outside lower left", ncols=columns)


def _columns_below(names: Sequence[str]) -> int:
    return max(1, min(3, LETTERS_PER_LINE // (max(map(len, names)) + 8)))


def height_below(names: Sequence[str]) -> float:
    """Inches that a legend takes below the axes."""
    if len(names) < 2 or max(map(len, names)) <= _LETTERS_BESIDE:
        return 0.0
    return 0.17 * ceil(len(names) / _columns_below(names))


def need(count: int) -> None:
    """DataError when there is nothing to draw: a count of 0."""
    if not count:
        raise DataError("there is nothing to plot: give runs, or entries of a log, with scores")


@contextmanager
def saved_figure(path: Path, caption: str, height: float) -> Iterator[Any]:
    """An empty figure in the house style, saved when its block ends without an error.

    Its height is in inches. UsageError for a suffix that is none of .png, .svg and .pdf.
    """
    suffix = path.suffix.lower()
    if suffix not in _DATELESS:
        raise UsageError(f"{path}: a plot's suffix must be one of {', '.join(_DATELESS)}")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        figure.supxlabel(caption, fontsize=7.5, color="#555555")
        yield figure
        for text in figure.findobj(Text):  # names of runs, models and measures are foreign text
            text.set_text(visible(text.get_text()))
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(destination(path)) as temporary:
            figure.savefig(temporary, format=suffix[1:], dpi=_DPI, metadata=_DATELESS[suffix])
