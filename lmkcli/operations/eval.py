"""Evaluate: compute measures of runs, with significance tests between runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lmkcli.errors import CheckFailed, UsageError
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import PROGRAMS, Format, Result, Table
from lmkcli.spec.settings import Flag, Offline, Settings
from lmkcli.system.atomic import exclusive

if TYPE_CHECKING:
    from lmkcli.evaluation.breakdown import Key, Stratum, Value
    from lmkcli.evaluation.compare import PairedTest
    from lmkcli.evaluation.results import ScoredRun, ScoreTable
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
            "Judgements: a qrels file or a collection, once for all runs or once per run. Default: "
            "the collection recorded with each run.",
            often=True,
            role="collection",
            suggest_for="--judgements --judgments --gold",
        ),
    ] = None
    measure: Annotated[
        list[str] | None,
        Flag(
            "Measures, in the notation of ir-measures; repeatable. Default: the measures of a known "
            "collection, else nDCG@10, R@100, RR@10.",
            short="-m",
            often=True,
            aliases="--metric",
            suggest_for="--metrics --measures",
        ),
    ] = None
    drop_self: Annotated[
        Literal["auto", "yes", "no"],
        Flag(
            "First remove documents with the same id as the query; auto: for known collections that "
            "need it (ArguAna, Quora, LoCo).",
            suggest_for="--remove-query --ignore-identical-ids",
        ),
    ] = "auto"
    strict: Annotated[bool, Flag("Exit with code 4 if a judged query is missing from a run.")] = (
        False
    )
    offline: Offline = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure:
            from lmkcli.evaluation.measures import parse_measures

            parse_measures(self.measure)


@dataclass(frozen=True, kw_only=True)
class TableOptions(Settings):
    """The table to print, and its format."""

    panel: ClassVar[str] = "Table"

    name: Annotated[
        list[str] | None,
        Flag("Name of a row, once per run in their order; repeatable.", role="layout"),
    ] = None
    per_query: Annotated[bool, Flag("Print one row per query.", short="-p", role="layout")] = False
    baseline: Annotated[
        str | None,
        Flag(
            "Compare every other run with this run, query by query, with significance tests.",
            often=True,
            role="layout",
            suggest_for="--compare --significance --against",
        ),
    ] = None
    all_pairs: Annotated[
        bool,
        Flag("Compare every run with every other run.", role="layout", suggest_for="--pairwise"),
    ] = False
    correction: Annotated[
        Correction | None,
        Flag("Correction of the p-values for multiple tests.", shown=CORRECTION, role="layout"),
    ] = None
    by: Annotated[
        str | None,
        Flag(
            "Break scores down by length (words of the relevant documents), tokens:MODEL, query-length, "
            "or a property of the queries that the collection provides, such as position or language.",
            role="layout",
            suggest_for="--breakdown --group-by",
        ),
    ] = None
    bins: Annotated[
        str | None,
        Flag(
            "Edges of the groups for --by, such as 0,512,2048,8192. Default: quartiles of the "
            "queries.",
            role="layout",
        ),
    ] = None
    form: Annotated[
        Format,
        Flag(
            "Format of the table.",
            short="-f",
            long="--format",
            often=True,
            role="mode",
            suggest_for="--markdown --latex --csv --output-format",
        ),
    ] = Format.table

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [n for n in ("per_query", "baseline", "all_pairs", "by") if getattr(self, n)]
        if len(given) > 1:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{flags} print different tables; use only one")
        if self.bins is not None and self.by is None:
            raise UsageError("--bins has no effect without --by; add --by length, or drop --bins")
        if self.correction is not None and self.baseline is None and not self.all_pairs:
            raise UsageError(
                "--correction has no effect without --baseline or --all-pairs; add one, or drop --correction"
            )

    @property
    def method(self) -> Correction:
        """The correction, by default Holm's."""
        return self.correction or CORRECTION

    @property
    def edges(self) -> list[float]:
        """The edges of the groups; empty for quartiles."""
        try:
            return [float(edge) for edge in (self.bins or "").split(",") if self.bins]
        except ValueError:
            raise UsageError(
                f"--bins {self.bins}: write numbers, such as 0,512,2048,8192"
            ) from None


@dataclass(frozen=True, kw_only=True)
class RecordOptions(Settings):
    """Files in addition to the table."""

    panel: ClassVar[str] = "Files"

    log: Annotated[
        Path | None,
        Flag(
            "Append each result with its provenance to this JSON Lines file.",
            often=True,
            role="output",
            suggest_for="--output --save --append",
        ),
    ] = None
    ir_metadata: Annotated[
        bool,
        Flag("Write the metadata of each run as YAML (ir-metadata) next to the run.", role="mode"),
    ] = False
    plot: Annotated[
        Path | None,
        Flag(
            "Draw the means with intervals; with --baseline the differences per query, with --by a "
            "curve over the groups (.png, .svg or .pdf; extra plot).",
            role="output",
        ),
    ] = None


@dataclass(frozen=True)
class Breakdown:
    """Scores of groups of queries: one grid per measure, and the property that forms the groups."""

    grids: "list[ScoreTable]"
    strata: "list[Stratum]"
    by: str


@dataclass(frozen=True, repr=False)
class Evaluated(Result):
    """The scores of each run, tests between runs, and scores of groups of queries.

    Iteration returns one `evaluation.results.ScoredRun` per run, with its aggregated and per-query scores.
    `options` determine the printed table.
    """

    results: "list[ScoredRun]"
    qrel_sets: "list[QrelSet]"
    tests: "list[PairedTest]"
    breakdown: Breakdown | None
    options: TableOptions
    strict: bool

    def __iter__(self) -> "Iterator[ScoredRun]":
        return iter(self.results)

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.results)

    @property
    def form(self) -> Format:
        """The format of the tables."""
        return self.options.form

    def as_json(self) -> Any:
        """Return the rows of the table, one value per row if there are several collections or groups."""
        as_printed = replace(self, options=replace(self.options, form=Format.json))
        (table,) = as_printed.blocks()
        assert isinstance(table, Table)
        return table.as_json()

    def blocks(self) -> Iterator[Table | str]:
        """Yield the tables and the legends of their marks."""
        from lmkcli.operations import score_tables

        options, results, form = self.options, self.results, self.form
        if self.breakdown is not None:
            groups = self.breakdown
            yield score_tables.groups(groups.grids, groups.strata, groups.by, form)
        elif options.per_query:
            yield score_tables.per_query(results, form)
        else:
            yield from self._compared()

    def _compared(self) -> Iterator[Table | str]:
        """Yield one row per run, then the tests between runs.

        Formats for programs have only one of these tables.
        """
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
        """Notes on judged queries, ties and depths."""
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
    """Evaluate runs. Judged queries that are missing from a run count as 0 and are reported.

    Without --qrels, lmk uses the judgements of the collection that provided the queries of the run. For runs
    on several collections, it prints a table of systems x collections with arithmetic and geometric means.
    With --baseline or --all-pairs, each difference has a 95 % bootstrap interval, wins/ties/losses, and the
    p-values of a paired t-test and a randomisation test.
    """

    verb: ClassVar[str] = "eval"

    runs: Annotated[
        list[Path],
        Flag(
            "TREC runs, or folders of runs made by lmk; qrels may come first, as in trec_eval.",
            argument=True,
            metavar="RUN...",
            role="run",
        ),
    ] = field()

    def execute(self, report: Report) -> Evaluated:
        """Score the runs, compare them, and write the log and the plot."""
        from lmkcli.evaluation import scoring
        from lmkcli.evaluation.score_plots import check_figure
        from lmkcli.operations.options import check_file

        if self.log is not None:
            check_file("--log", self.log, "scores.jsonl")
        if self.plot is not None:
            check_file("--plot", self.plot, "scores.svg")
            check_figure(self.plot)
        paths, spellings = scoring.runs_and_qrels(self.runs, self.qrels or [])
        qrel_sets = scoring.qrel_sets(paths, spellings)
        measures = self.measure or scoring.default_measures(qrel_sets)
        if self.name and len(self.name) != len(paths):
            raise UsageError(
                f"{len(self.name)} --name for {len(paths)} runs; give one per run, in their order"
            )
        drops_self = {"yes": True, "no": False}.get(self.drop_self)
        results = scoring.score_all(paths, qrel_sets, measures, drops_self)
        results = scoring.named_rows(results, self.name, self.form in PROGRAMS)
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
        results: "list[ScoredRun]",
        qrel_sets: "list[QrelSet]",
        spellings: list[str | None],
        report: Report,
    ) -> None:
        """Write the metadata of the runs, then the log.

        If writing the metadata fails, the log is unchanged.
        """
        from lmkcli.provenance import irmetadata, scorelog

        if not self.ir_metadata and self.log is None:
            return
        entries = [
            scorelog.entry_of(result.run, result.scores, spelling, qrel_set.qrels, report.call)
            for result, qrel_set, spelling in zip(results, qrel_sets, spellings, strict=True)
        ]
        if self.ir_metadata:
            for result, entry in zip(results, entries, strict=True):
                report.note(f"{result.run}: metadata written to {irmetadata.write(entry)}")
        if self.log is not None:
            scorelog.append(self.log, entries)

    def _tests(
        self, results: "list[ScoredRun]", against: str | None, report: Report
    ) -> "list[PairedTest]":
        from lmkcli.evaluation.compare import compare_all, letters_of

        if against is None:
            letters_of(results)  # before any work: it raises for too many runs
        with report.step("comparing") as job:
            tests = compare_all(results, against, self.method, job.progress)
        if not tests:
            raise UsageError("a comparison needs at least two runs of the same queries")
        return tests

    def _breakdown(
        self, results: "list[ScoredRun]", qrel_sets: "list[QrelSet]", by: str, report: Report
    ) -> Breakdown:
        from lmkcli.evaluation import breakdown, score_plots

        values, judged = _values(qrel_sets, by, report)
        strata = breakdown.strata(values, self.edges)
        grids = [breakdown.score_groups(results, strata, name) for name in results[0].measures]
        if self.plot is not None:
            of_groups = [[values[key] for key in each.queries] for each in strata]
            with exclusive(self.plot):
                score_plots.groups(grids, of_groups, by, self.plot)
            report.note(f"the plot is in {self.plot}")
        left = judged - sum(len(each.queries) for each in strata)
        if left:
            report.note(
                f"{left} of {judged} queries are in no group because their {by} is unknown or too low"
            )
        return Breakdown(grids, strata, by)


def _plot(results: "list[ScoredRun]", baseline: str | None, path: Path, report: Report) -> None:
    from lmkcli.evaluation import score_plots

    with exclusive(path):
        if baseline is None:
            score_plots.scores(results, path)
        else:
            score_plots.query_differences(results, baseline, path)
    report.note(f"the plot is in {path}")


def _system(results: "list[ScoredRun]", baseline: str) -> str:
    """Return the system that --baseline names: by its row, its run, or a unique suffix of its path."""
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
    """Return the value of --by for each judged query, if known, and the number of judged queries."""
    from lmkcli.evaluation import breakdown

    values: dict[Key, Value] = {}
    judged = 0
    for qrel_set in {each.name: each for each in qrel_sets}.values():
        if qrel_set.collection is None:
            raise UsageError(
                f"--by {by} needs a collection, and {qrel_set.name} contains only judgements; name the "
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
