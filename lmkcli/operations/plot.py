"""Plot: a curve over a parameter, from a score log; or the curves of a training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from lmkcli import catalog
from lmkcli.errors import DataError, UsageError
from lmkcli.progress import Report
from lmkcli.settings import Flag
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result


@dataclass(frozen=True)
class Plotted(Result):
    """A figure, and the numbers of its points and lines."""

    output: Path
    points: int
    lines: int

    def __str__(self) -> str:
        return f"{self.output}: {self.points} points, {self.lines} lines"


@dataclass(frozen=True)
class Plot(Operation[Plotted]):
    """Scores of a log over a parameter of the steps that made their runs, as a curve (extra `plot`).

    The parameter is looked up in what led to each run: in the recipe, the index and the search, then
    in the commands. The suffix of the output chooses PNG, SVG or PDF. Of a model's folder the loss, the
    learning rate and the scores of development sets are drawn over the steps, also while it trains.
    """

    verb: ClassVar[str] = "plot"

    log: Annotated[
        Path,
        Flag(
            "A score log (lmk eval --log), results of lmk grid, or a folder of lmk train.",
            argument=True,
            metavar="LOG|MODEL",
            role="file",
        ),
    ]
    x: Annotated[
        str | None,
        Flag(
            "The parameter along the axis, as its flag is called: gran, max-length, dim, k, "
            "ef-search, k1 …"
        ),
    ] = field(default=None, kw_only=True)
    measure: Annotated[
        list[str] | None, Flag("Which measures; repeat it. Default: all.", short="-m")
    ] = field(default=None, kw_only=True)
    by: Annotated[str | None, Flag("Another parameter; one line for each value that it has.")] = (
        field(default=None, kw_only=True)
    )
    output: Annotated[
        Path | None, Flag("Where the result goes.", short="-o", often=True, role="output")
    ] = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raise UsageError if there is no output."""
        if self.output is None:
            raise UsageError("-o/--output is missing, for instance -o curve.svg")

    def execute(self, report: Report) -> Plotted:
        """Draw the figure."""
        assert self.output is not None
        log = self.log
        if (log / "plan.json").is_file():  # results of a grid
            log = log / "scores.jsonl"
        if log.is_dir():
            return self._training(log, self.output)
        if not log.is_file():
            raise DataError(f"{log}: no such score log")
        if self.x is None:
            raise UsageError("--x is missing, for instance --x gran")
        return self._scores(log, self.x, self.output, report)

    def _training(self, folder: Path, path: Path) -> Plotted:
        from lmkcli.provenance import traininglog

        if useless := [name for name in ("x", "measure", "by") if getattr(self, name)]:
            raise UsageError(f"--{useless[0]} has no effect on the curves of a training; drop it")
        draw = catalog.load(catalog.PLOTS, "panels", "plot")
        panels = traininglog.panels(folder)
        draw(panels, "step", path)
        lines = [points for panel in panels.values() for points in panel.values()]
        return Plotted(path, sum(map(len, lines)), len(lines))

    def _scores(self, log: Path, x: str, path: Path, report: Report) -> Plotted:
        from lmkcli.provenance import scorelog, series

        draw = catalog.load(catalog.PLOTS, "curves", "plot")
        entries = scorelog.read(log)
        logged = list(dict.fromkeys(name for each in entries for name in each["scores"]))
        names = self.measure or logged
        unknown = [name for name in names if name not in logged]
        if unknown:
            raise UsageError(
                f"{log} has no {', '.join(unknown)}: its measures are {', '.join(logged)}"
            )
        if self.by and all(series.setting(each, self.by) is None for each in entries):
            known = ", ".join(series.parameters(entries))
            raise UsageError(f"no entry of {log} has a {self.by}, for --by; there are: {known}")
        panels = {name: series.series(entries, x, self.by, name) for name in names}
        lines = [line for panel in panels.values() for line in panel.lines.values()]
        if not lines:
            known = ", ".join(series.parameters(entries, numeric=True)) or "none"
            raise UsageError(
                f"no entry of {log} has a numeric {x}, for --x; with numbers there are: {known}"
            )
        draw({name: panel.drawn for name, panel in panels.items()}, x, path)
        if levels := dict.fromkeys(name for panel in panels.values() for name in panel.levels):
            report.note(f"without a numeric {x}, drawn from side to side: {'; '.join(levels)}")
        if replaced := sum(panel.replaced for panel in panels.values()):
            report.note(f"{replaced} points were measured again later; the latest counts")
        return Plotted(path, sum(map(len, lines)), len(lines))
