"""lmk eval: runs to scores."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from lmkcli.cli import console, recording, runlist, scoretables, tables
from lmkcli.cli.evaloptions import Correction, RecordOptions, ScoreOptions, TableOptions
from lmkcli.cli.flags import with_flags
from lmkcli.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from lmkcli.evaluation.breakdown import Key, Value
    from lmkcli.evaluation.compare import PairedTest
    from lmkcli.evaluation.results import Result
    from lmkcli.evaluation.scoring import QrelSet


class Scored(NamedTuple):
    """Each run's result, its judgements, and how the command line named those (None: not at all)."""

    results: "list[Result]"
    qrel_sets: "list[QrelSet]"
    spellings: list[str | None]


@with_flags
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="TREC runs, or folders of runs that lmk made; qrels may come first, as in trec_eval.",
        ),
    ],
    scores: ScoreOptions,
    table: TableOptions,
    records: RecordOptions,
) -> None:
    """Runs to measures. Judged queries that a run lacks count as 0 and are reported.

    Without --qrels, the judgements are those of the collection whose queries made the run; runs on
    several collections make a table of systems x collections with arithmetic and geometric means.
    With --baseline or --all-pairs, differences come with a 95 % bootstrap interval, wins/ties/losses,
    and the p-values of a paired t-test and a randomisation test.
    """
    paths, spellings = runlist.order(runs, scores.qrels or [])
    from lmkcli.evaluation import scoring

    qrel_sets = scoring.qrel_sets(paths, spellings)
    measures = scores.measure or scoring.default_measures(qrel_sets)
    _check_names(table.name, len(paths))
    results = scoring.score_all(paths, qrel_sets, measures, scores.drops_self)
    results = runlist.named(results, table.name, table.format in tables.PROGRAMS)
    scored = Scored(results, qrel_sets, [*spellings] or [None] * len(results))
    show = _table(scored, table, records.plot)
    _record(scored, records)
    show()
    scoretables.notes(results, qrel_sets)
    if scores.strict:
        _check_complete(results)


def _check_names(names: list[str] | None, runs: int) -> None:
    """UsageError where not every run has its name."""
    if names and len(names) != runs:
        raise UsageError(f"{len(names)} --name for {runs} runs: give one for each, in their order")


def _table(scored: Scored, table: TableOptions, plot: Path | None) -> Callable[[], None]:
    """What prints the table. All that can be refused is refused here, and what is asked for is drawn."""
    results = scored.results
    if table.by is not None:
        return _breakdown(scored, table, table.by, plot)
    against = None if table.baseline is None else _system(results, table.baseline)
    tests = _tests(results, against, table.method) if against or table.all_pairs else []
    if plot is not None:
        _plot(results, against, plot)
    if table.per_query:
        return partial(scoretables.per_query, results, table.format)
    return partial(_scores, results, tests, table)


def _record(scored: Scored, records: RecordOptions) -> None:
    """The files beside the runs, and last the log: the same command again would log twice."""
    from lmkcli.provenance import irmetadata, scorelog

    if not records.ir_metadata and records.log is None:
        return
    entries = [
        scorelog.entry_of(result.run, result.scores, spelling, qrel_set.qrels, recording.call())
        for result, qrel_set, spelling in zip(*scored, strict=True)
    ]
    if records.ir_metadata:
        for result, entry in zip(scored.results, entries, strict=True):
            console.note(f"{result.run}: what is known of it is in {irmetadata.write(entry)}")
    if records.log is not None:
        for entry in entries:
            scorelog.append(records.log, entry)


def _check_complete(results: "list[Result]") -> None:
    """CheckFailed when a run lacks a judged query."""
    missing = [
        f"{each.run} lacks {len(each.scores.coverage.missing)} of the judged queries"
        for each in results
        if each.scores.coverage.missing
    ]
    if missing:
        raise CheckFailed("; ".join(missing))


def _plot(results: "list[Result]", baseline: str | None, path: Path) -> None:
    from lmkcli.cli import plotting

    if baseline is None:
        plotting.scores(results, path)
    else:
        plotting.query_differences(results, baseline, path)
    console.note(f"the plot is in {path}")


def _tests(
    results: "list[Result]", against: str | None, correction: Correction
) -> "list[PairedTest]":
    from lmkcli.evaluation.compare import compare_all

    if against is None:
        scoretables.letters_of(results)  # before any work: there may be too many
    with console.progress("comparing") as progress:
        tests = compare_all(results, against, correction, progress)
    if not tests:
        raise UsageError("a comparison needs two runs of the same queries at least")
    return tests


def _scores(results: "list[Result]", tests: "list[PairedTest]", table: TableOptions) -> None:
    """The scores with the marks of the tests, then the tests; programs get the tests alone."""
    from lmkcli.evaluation.results import collections_of

    form = table.format
    letters = scoretables.letters_of(results) if table.all_pairs else {}
    if not (tests and form in tables.PROGRAMS):
        marks = scoretables.marks_of(tests, letters)
        several = len(collections_of(results)) > 1
        (scoretables.across if several else scoretables.means)(results, marks, letters, form)
    if tests:
        scoretables.legend(tests, letters, table.method, form)
        scoretables.paired_tests(tests, form)


def _system(results: "list[Result]", baseline: str) -> str:
    """The system that --baseline names: by its row, its run, or as much of the path as is no other's."""
    for each in results:
        if baseline == each.system or Path(baseline) == each.run:
            return each.system
    end = Path(baseline).parts
    ends = {each.system for each in results if end and each.run.parts[-len(end) :] == end}
    if len(ends) == 1:
        return ends.pop()
    known = ", ".join(dict.fromkeys(each.system for each in results))
    raise UsageError(f"--baseline {baseline} must be one of two or more runs given: {known}")


def _breakdown(
    scored: Scored, table: TableOptions, by: str, plot: Path | None
) -> Callable[[], None]:
    """Draws the groups if `plot` says where, and returns what prints their table."""
    from lmkcli.cli import plotting
    from lmkcli.evaluation import breakdown

    edges = table.edges
    values, judged = _values(scored, by)
    strata = breakdown.strata(values, edges)
    measures = scored.results[0].measures
    grids = [breakdown.grid(scored.results, strata, name) for name in measures]
    if plot is not None:
        plotting.groups(grids, [[values[key] for key in each.queries] for each in strata], by, plot)
        console.note(f"the plot is in {plot}")
    left = judged - sum(len(each.queries) for each in strata)
    if left:
        console.note(
            f"{left} of {judged} queries are in no group: their {by} is unknown or too low"
        )
    return partial(scoretables.groups, grids, strata, by, table.format)


def _values(scored: Scored, by: str) -> "tuple[dict[Key, Value], int]":
    """What each judged query is grouped by, where that is known; and how many queries are judged."""
    from lmkcli.evaluation import breakdown

    values: dict[breakdown.Key, breakdown.Value] = {}
    judged = 0
    for qrel_set in {each.name: each for each in scored.qrel_sets}.values():
        if qrel_set.collection is None:
            raise UsageError(
                f"--by {by} needs the collection, and {qrel_set.name} holds judgements alone: name the "
                "collection with --qrels"
            )
        queries = {qrel.query_id for qrel in qrel_set.qrels}
        judged += len(queries)
        with console.progress(qrel_set.name) as progress:
            of_query = breakdown.values_of(
                by, qrel_set.collection, qrel_set.qrels, qrel_set.rel, progress
            )
        values |= {(qrel_set.name, q): value for q, value in of_query.items() if q in queries}
    return values, judged
