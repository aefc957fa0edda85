"""Plot: draw scores of a log over a parameter, or the curves of a training."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from lmkcli import catalog
from lmkcli.errors import DataError, UsageError
from lmkcli.operations.options import check_file
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag
from lmkcli.system.atomic import exclusive
from lmkcli.system.input_files import not_a_file
from lmkcli.text.formatting import counted, listed

if TYPE_CHECKING:
    from lmkcli.provenance.scorelog import LogEntry

_MOST_PANELS = 50


@dataclass(frozen=True)
class Plotted(Result):
    """A figure, and how many points and lines it has."""

    output: Path
    points: int
    lines: int

    def blocks(self) -> Iterator[Table | str]:
        """Yield the figure and its counts."""
        yield f"{self.output}: {self.points} points, {self.lines} lines"


@dataclass(frozen=True)
class Plot(Operation[Plotted]):
    """Draw the scores of a log over a parameter, as curves (extra `plot`).

    lmk looks up the parameter in the record of each run: first in the recipe, the index and the search, then
    in the commands. The suffix of the output selects PNG, SVG or PDF. For model folders, lmk draws the
    loss, the learning rate and the scores of development sets over the steps, also during training.
    """

    verb: ClassVar[str] = "plot"

    logs: Annotated[
        list[Path],
        Flag(
            "A score log (lmk eval --log), results of lmk grid, or folders of lmk train and lmk pretrain.",
            argument=True,
            metavar="LOG|MODEL…",
            role="file",
        ),
    ]
    x: Annotated[
        str | None,
        Flag(
            "The parameter on the x axis, by the name of its flag: gran, max-length, dim, k, "
            "ef-search, k1 …"
        ),
    ] = field(default=None, kw_only=True)
    measure: Annotated[
        list[str] | None,
        Flag(
            "Measures to draw; repeatable. Default: all.",
            short="-m",
            aliases="--metric",
            suggest_for="--metrics --measures --y",
        ),
    ] = field(default=None, kw_only=True)
    by: Annotated[
        str | None,
        Flag("Another parameter: draw one line per value of it.", suggest_for="--hue --group-by"),
    ] = field(default=None, kw_only=True)
    panels: Annotated[
        Literal["measure", "collection"],
        Flag("Draw a panel for each measure, or for each collection and measure."),
    ] = field(default="measure", kw_only=True)
    output: Annotated[
        Path | None,
        Flag(
            "Output path of the figure (.png, .svg or .pdf).",
            short="-o",
            often=True,
            role="output",
            suggest_for="--output-dir --output-file --output-path --save-to",
        ),
    ] = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raise UsageError if there is no output."""
        if self.output is None:
            raise UsageError("-o/--output is missing; for instance -o curve.svg")
        check_file("-o", self.output, "curve.svg")

    def execute(self, report: Report) -> Plotted:
        """Draw the figure."""
        assert self.output is not None
        with exclusive(self.output):
            return self._drawn(self.output, report)

    def _drawn(self, output: Path, report: Report) -> Plotted:
        if not self.logs:
            raise UsageError("give a score log, results of lmk grid, or a folder of lmk train")
        if len(self.logs) > 1:
            return self._training(self.logs, output)
        (log,) = self.logs
        if (log / "plan.json").is_file():  # results of a grid
            log = log / "scores.jsonl"
        if log.is_dir():
            return self._training([log], output)
        if not log.is_file():
            fault = not_a_file(log) or "no such score log; write one with lmk eval --log"
            raise DataError(f"{log}: {fault}")
        if self.x is None:
            raise UsageError("--x is missing; for instance --x gran")
        return self._scores(log, self.x, output, report)

    def _training(self, folders: list[Path], path: Path) -> Plotted:
        from lmkcli.evaluation.results import headings
        from lmkcli.plugins.analysis import traininglog

        given = {"x": self.x, "measure": self.measure, "by": self.by}
        given["panels"] = self.panels if self.panels != "measure" else None
        if useless := [name for name, value in given.items() if value]:
            raise UsageError(f"--{useless[0]} has no effect on the curves of a training; drop it")
        draw = catalog.PLOTS.load("panels")
        if others := [str(each) for each in folders if not each.is_dir()]:
            raise UsageError(
                f"{', '.join(others)}: several inputs must be folders of trainings; plot logs one by one"
            )
        panels: dict[str, traininglog.Curves] = {}
        short = headings(list(map(str, folders)))
        for folder in folders:
            for name, found in traininglog.panels(folder).items():
                one = len(folders) == 1
                prefix = "" if one else f"{short[str(folder)]} "
                named = {f"{prefix}{key}": line for key, line in found.items()}
                panels.setdefault(name, {}).update(named)
        draw(panels, "step", path)
        lines = [points for panel in panels.values() for points in panel.values()]
        return Plotted(path, sum(map(len, lines)), len(lines))

    def _scores(self, log: Path, x: str, path: Path, report: Report) -> Plotted:
        from lmkcli.plugins.analysis import curves
        from lmkcli.provenance import scorelog

        draw = catalog.PLOTS.load("curves")
        entries = scorelog.read(log)
        logged = dict.fromkeys(name for each in entries for name in each["scores"])
        names = self.measure or list(logged)
        unknown = [name for name in names if name not in logged]
        if unknown:
            raise UsageError(f"{log} has no {listed(unknown)}; its measures are {listed(logged)}")
        if len(names) > _MOST_PANELS:
            raise UsageError(
                f"a figure has at most {_MOST_PANELS} measures, and {log} has {len(names):,}; choose some "
                f"with --measure: {listed(names)}"
            )
        if self.by and all(scorelog.setting(each, self.by) is None for each in entries):
            known = ", ".join(curves.parameters(entries))
            raise UsageError(f"--by {self.by}: no entry of {log} has it; known parameters: {known}")
        groups = {"": entries}
        if self.panels == "collection":
            groups = _by_collection(entries)
        panels = {
            f"{collection} {name}".strip(): curves.series(mine, x, self.by, name)
            for collection, mine in groups.items()
            for name in names
            if any(name in each["scores"] for each in mine)
        }
        if len(panels) > _MOST_PANELS:
            raise UsageError(
                f"a figure has at most {_MOST_PANELS} panels, and this one would have {len(panels):,}; "
                "choose some measures with --measure"
            )
        lines = [line for panel in panels.values() for line in panel.lines.values()]
        if not lines:
            known = ", ".join(curves.parameters(entries, numeric=True)) or "none"
            raise UsageError(
                f"--x {x}: no entry of {log} has it as a number; numeric parameters: {known}"
            )
        draw({name: panel.drawn for name, panel in panels.items()}, x, path)
        if levels := dict.fromkeys(name for panel in panels.values() for name in panel.levels):
            report.note(
                f"drawn as horizontal lines, because {x} is not a number: {'; '.join(levels)}"
            )
        if replaced := sum(panel.replaced for panel in panels.values()):
            report.note(
                f"{counted(replaced, 'point')} measured several times; the latest value is drawn"
            )
        return Plotted(path, sum(map(len, lines)), len(lines))


def _by_collection(entries: "list[LogEntry]") -> "dict[str, list[LogEntry]]":
    """Short name of a collection -> its entries."""
    from lmkcli.evaluation.results import headings
    from lmkcli.provenance import scorelog

    found: dict[str, list[LogEntry]] = {}
    for entry in entries:
        found.setdefault(scorelog.judged_by(entry), []).append(entry)
    short = headings(list(found))
    return {short[name]: mine for name, mine in found.items()}
