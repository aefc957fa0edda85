"""Evaluate: runs to measures, with tests between runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lmkcli.errors import CheckFailed, UsageError
from lmkcli.progress import Report
from lmkcli.settings import Flag, Offline, Settings
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import PROGRAMS, Format, Result, Table

if TYPE_CHECKING:
    from lmkcli.evaluation.breakdown import Key, Stratum, Value
    from lmkcli.evaluation.compare import PairedTest
    from lmkcli.evaluation.results import Grid
    from lmkcli.evaluation.results import Result as RunScores
    from lmkcli.evaluation.scoring import QrelSet

Correction = Literal["holm", "bonferroni", "bh"]
CORRECTION: Correction = "holm"


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Settings):
    """Judgements and measures."""

    panel: ClassVar[str] = "Scores"

    qrels: Annotated[
        list[str] | None,
        Flag(
            "A qrels file or a collection, for all runs or, repeated, one for each; else as each run "
            "says.",
            often=True,
            role="collection",
        ),
    ] = None
    measure: Annotated[
        list[str] | None,
        Flag(
            "ir-measures names; repeat it. Default: the collection's own if it is known, else "
            "nDCG@10, R@100, RR@10.",
            short="-m",
            often=True,
        ),
    ] = None
    drop_self: Annotated[
        Literal["auto", "yes", "no"],
        Flag(
            "Remove documents of the query's own id first; auto: where the collection is known to "
            "need it (ArguAna, Quora)."
        ),
    ] = "auto"
    strict: Annotated[bool, Flag("Exit 4 when a judged query is missing from a run.")] = False
    offline: Offline = False


@dataclass(frozen=True, kw_only=True)
class TableOptions(Settings):
    """Which table is printed, and how."""

    panel: ClassVar[str] = "The table"

    name: Annotated[
        list[str] | None,
        Flag(
            "What the rows are called, one for each run in their order; repeat it.", role="layout"
        ),
    ] = None
    per_query: Annotated[bool, Flag("One row per query.", short="-p", role="layout")] = False
    baseline: Annotated[
        str | None,
        Flag(
            "Test every other run against this one of the runs, query by query.",
            often=True,
            role="layout",
        ),
    ] = None
    all_pairs: Annotated[bool, Flag("Test every run against every other.", role="layout")] = False
    correction: Annotated[
        Correction | None,
        Flag("Correction of the p-values for multiple tests.", shown=CORRECTION, role="layout"),
    ] = None
    by: Annotated[
        str | None,
        Flag(
            "Break scores down by length (words of the relevant documents), query-length, or what "
            "the collection says of its queries, such as position or language.",
            role="layout",
        ),
    ] = None
    bins: Annotated[
        str | None,
        Flag(
            "Edges for --by, such as 0,512,2048,8192; else quartiles of the queries.", role="layout"
        ),
    ] = None
    form: Annotated[
        Format,
        Flag("How the table is printed.", short="-f", long="--format", often=True, role="mode"),
    ] = Format.table

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = [n for n in ("per_query", "baseline", "all_pairs", "by") if getattr(self, n)]
        if len(chosen) > 1:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
            raise UsageError(f"{flags} print different tables; give one of them")
        if self.bins is not None and self.by is None:
            raise UsageError("--bins has no effect without --by; add --by length, or drop it")
        if self.correction is not None and self.baseline is None and not self.all_pairs:
            raise UsageError(
                "--correction has no effect without --baseline or --all-pairs; add one, or drop it"
            )

    @property
    def method(self) -> Correction:
        """The correction that was given, else the default one."""
        return self.correction or CORRECTION

    @property
    def edges(self) -> list[float]:
        """The bounds of the groups; none for quartiles."""
        try:
            return [float(edge) for edge in (self.bins or "").split(",") if self.bins]
        except ValueError:
            raise UsageError(
                f"--bins {self.bins}: write numbers, such as 0,512,2048,8192"
            ) from None


@dataclass(frozen=True, kw_only=True)
class RecordOptions(Settings):
    """Files in addition to the table."""

    panel: ClassVar[str] = "Beside the table"

    log: Annotated[
        Path | None,
        Flag(
            "Append each result with its provenance to this JSON-lines file.",
            often=True,
            role="output",
        ),
    ] = None
    ir_metadata: Annotated[
        bool, Flag("Write what is known of each run beside it, as YAML.", role="mode")
    ] = False
    plot: Annotated[
        Path | None,
        Flag(
            "Draw the means with intervals; with --baseline the differences query by query, with --by "
            "a curve over the groups (.png, .svg or .pdf; extra plot).",
            role="output",
        ),
    ] = None


@dataclass(frozen=True)
class Breakdown:
    """Scores of groups of queries: a grid for each measure, and what the groups are made by."""

    grids: "list[Grid]"
    strata: "list[Stratum]"
    by: str


@dataclass(frozen=True)
class Evaluated(Result):
    """The scores of each run, tests between runs, and groups of queries; `options` lays out the table.

    Iterating gives one `evaluation.results.Result` per run, with its aggregated and per-query scores.
    """

    results: "list[RunScores]"
    qrel_sets: "list[QrelSet]"
    tests: "list[PairedTest]"
    breakdown: Breakdown | None
    options: TableOptions
    strict: bool

    def __iter__(self) -> "Iterator[RunScores]":
        return iter(self.results)

    @property
    def form(self) -> Format:
        """How its tables are printed."""
        return self.options.form

    def as_json(self) -> Any:
        """The rows of the table, one value per row if there are several collections or groups."""
        asked = replace(self, options=replace(self.options, form=Format.json))
        (table,) = asked.blocks()
        assert isinstance(table, Table)
        return table.as_json()

    def blocks(self) -> Iterator[Table | str]:
        """The tables, with lines that explain their marks."""
        from lmkcli.operations import score_tables

        options, results, form = self.options, self.results, self.form
        if self.breakdown is not None:
            found = self.breakdown
            yield score_tables.groups(found.grids, found.strata, found.by, form)
        elif options.per_query:
            yield score_tables.per_query(results, form)
        else:
            yield from self._compared()

    def _compared(self) -> Iterator[Table | str]:
        """A row per run, then the tests between runs; programs get one of the two."""
        from lmkcli.evaluation.compare import letters_of
        from lmkcli.evaluation.results import collections_of
        from lmkcli.operations import score_tables

        results, tests, form = self.results, self.tests, self.form
        letters = letters_of(results) if self.options.all_pairs else {}
        if not (tests and form in PROGRAMS):
            marks = score_tables.marks_of(tests, letters)
            several = len(collections_of(results)) > 1
            layout = score_tables.across if several else score_tables.means
            yield from layout(results, marks, letters, form)
        if tests:
            if form not in PROGRAMS:
                yield score_tables.legend(tests, letters, self.options.method)
                yield ""
            yield score_tables.paired_tests(tests, form)

    def notes(self) -> Iterator[str]:
        """What the scores rest on: judged queries, ties, depths."""
        from lmkcli.operations import score_tables

        return score_tables.notes(self.results, self.qrel_sets)

    @property
    def failure(self) -> CheckFailed | None:
        """With `strict`, the error if a run lacks a judged query."""
        missing = [
            f"{each.run} lacks {len(each.scores.coverage.missing)} of the judged queries"
            for each in self.results
            if each.scores.coverage.missing
        ]
        return CheckFailed("; ".join(missing)) if missing and self.strict else None


@dataclass(frozen=True)
class Evaluate(Operation[Evaluated], RecordOptions, TableOptions, ScoreOptions):
    """Runs to measures. Judged queries that a run lacks count as 0 and are reported.

    Without --qrels, the judgements are those of the collection whose queries made the run; runs on
    several collections make a table of systems x collections with arithmetic and geometric means.
    With --baseline or --all-pairs, differences come with a 95 % bootstrap interval, wins/ties/losses,
    and the p-values of a paired t-test and a randomisation test.
    """

    verb: ClassVar[str] = "eval"

    runs: Annotated[
        list[Path],
        Flag(
            "TREC runs, or folders of runs that lmk made; qrels may come first, as in trec_eval.",
            argument=True,
            metavar="RUN...",
            role="run",
        ),
    ] = field()

    def execute(self, report: Report) -> Evaluated:
        """Score the runs, compare them, and write the log and the plot."""
        from lmkcli.evaluation import run_list, scoring

        paths, spellings = run_list.order(self.runs, self.qrels or [])
        qrel_sets = scoring.qrel_sets(paths, spellings)
        measures = self.measure or scoring.default_measures(qrel_sets)
        if self.name and len(self.name) != len(paths):
            raise UsageError(
                f"{len(self.name)} --name for {len(paths)} runs: give one for each, in their order"
            )
        drops_self = {"yes": True, "no": False}.get(self.drop_self)
        results = scoring.score_all(paths, qrel_sets, measures, drops_self)
        results = run_list.named(results, self.name, self.form in PROGRAMS)
        tests: list[PairedTest] = []
        breakdown = None
        if self.by is not None:
            breakdown = self._breakdown(results, qrel_sets, self.by, report)
        else:
            against = None if self.baseline is None else _system(results, self.baseline)
            if against or self.all_pairs:
                tests = self._tests(results, against, report)
            if self.plot is not None:
                _plot(results, against, self.plot, report)
        self._record(results, qrel_sets, [*spellings] or [None] * len(results), report)
        options = self.part(TableOptions)
        return Evaluated(results, qrel_sets, tests, breakdown, options, self.strict)

    def _record(
        self,
        results: "list[RunScores]",
        qrel_sets: "list[QrelSet]",
        spellings: list[str | None],
        report: Report,
    ) -> None:
        """Write the metadata of the runs, then the log: the same command again would log twice."""
        from lmkcli.provenance import irmetadata, scorelog

        if not self.ir_metadata and self.log is None:
            return
        entries = [
            scorelog.entry_of(result.run, result.scores, spelling, qrel_set.qrels, report.call)
            for result, qrel_set, spelling in zip(results, qrel_sets, spellings, strict=True)
        ]
        if self.ir_metadata:
            for result, entry in zip(results, entries, strict=True):
                report.note(f"{result.run}: its metadata is in {irmetadata.write(entry)}")
        if self.log is not None:
            for entry in entries:
                scorelog.append(self.log, entry)

    def _tests(
        self, results: "list[RunScores]", against: str | None, report: Report
    ) -> "list[PairedTest]":
        from lmkcli.evaluation.compare import compare_all, letters_of

        if against is None:
            letters_of(results)  # before any work: there may be too many
        with report.step("comparing") as job:
            tests = compare_all(results, against, self.method, job.progress)
        if not tests:
            raise UsageError("a comparison needs at least two runs of the same queries")
        return tests

    def _breakdown(
        self, results: "list[RunScores]", qrel_sets: "list[QrelSet]", by: str, report: Report
    ) -> Breakdown:
        from lmkcli.evaluation import breakdown, score_plots

        values, judged = _values(qrel_sets, by, report)
        strata = breakdown.strata(values, self.edges)
        grids = [breakdown.grid(results, strata, name) for name in results[0].measures]
        if self.plot is not None:
            of_groups = [[values[key] for key in each.queries] for each in strata]
            score_plots.groups(grids, of_groups, by, self.plot)
            report.note(f"the plot is in {self.plot}")
        left = judged - sum(len(each.queries) for each in strata)
        if left:
            report.note(
                f"{left} of {judged} queries are in no group: their {by} is unknown or too low"
            )
        return Breakdown(grids, strata, by)


def _plot(results: "list[RunScores]", baseline: str | None, path: Path, report: Report) -> None:
    from lmkcli.evaluation import score_plots

    if baseline is None:
        score_plots.scores(results, path)
    else:
        score_plots.query_differences(results, baseline, path)
    report.note(f"the plot is in {path}")


def _system(results: "list[RunScores]", baseline: str) -> str:
    """The system that --baseline names: by its row, its run, or a unique end of its path."""
    for each in results:
        if baseline == each.system or Path(baseline) == each.run:
            return each.system
    end = Path(baseline).parts
    ends = {each.system for each in results if end and each.run.parts[-len(end) :] == end}
    if len(ends) == 1:
        return ends.pop()
    known = ", ".join(dict.fromkeys(each.system for each in results))
    raise UsageError(f"--baseline {baseline} must be one of two or more runs given: {known}")


def _values(qrel_sets: "list[QrelSet]", by: str, report: Report) -> "tuple[dict[Key, Value], int]":
    """The value by which each judged query is grouped, if known; and the number of judged queries."""
    from lmkcli.evaluation import breakdown

    values: dict[Key, Value] = {}
    judged = 0
    for qrel_set in {each.name: each for each in qrel_sets}.values():
        if qrel_set.collection is None:
            raise UsageError(
                f"--by {by} needs the collection, and {qrel_set.name} holds judgements alone: name the "
                "collection with --qrels"
            )
        queries = {qrel.query_id for qrel in qrel_set.qrels}
        judged += len(queries)
        with report.step(qrel_set.name) as job:
            of_query = breakdown.values_of(
                by, qrel_set.collection, qrel_set.qrels, qrel_set.rel, job.progress
            )
        values |= {(qrel_set.name, q): value for q, value in of_query.items() if q in queries}
    return values, judged
