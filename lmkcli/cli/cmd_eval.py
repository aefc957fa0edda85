"""lmk eval: runs to scores."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli.cli import console, options, scoretables
from lmkcli.cli.flags import with_flags
from lmkcli.cli.tables import Format
from lmkcli.errors import CheckFailed, DataError, UsageError
from lmkcli.settings import Offline

if TYPE_CHECKING:
    from lmkcli.evaluation.compare import PairedTest
    from lmkcli.evaluation.results import Result
    from lmkcli.evaluation.scoring import Judge


class Correction(StrEnum):
    """Corrections for many tests."""

    holm = "holm"
    bonferroni = "bonferroni"
    bh = "bh"


class DropSelf(StrEnum):
    """Whether documents of the query's own id are removed."""

    auto = "auto"
    yes = "yes"
    no = "no"


@with_flags
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="TREC runs, or folders of runs that lmk made; qrels may come first, as in trec_eval.",
        ),
    ],
    qrels: Annotated[
        list[str] | None,
        typer.Option(
            help="A qrels file or a collection, for all runs or, repeated, one for each; else as "
            "each run says."
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            "-m",
            help="ir-measures names; repeat it. Default: the collection's own if it is known, else "
            "nDCG@10, R@100, RR@10.",
        ),
    ] = None,
    per_query: Annotated[bool, typer.Option("--per-query", "-p", help="One row a query.")] = False,
    baseline: Annotated[
        str | None,
        typer.Option(help="Test every other run against this one of the runs, query by query."),
    ] = None,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Test every run against every other.")
    ] = False,
    correction: Annotated[
        Correction | None,
        typer.Option(help="Of the p-values, for the number of tests.", show_default="holm"),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Break scores down by length (words of the relevant documents), query-length, or "
            "what the collection says of its queries, such as position or language."
        ),
    ] = None,
    bins: Annotated[
        str | None,
        typer.Option(help="Edges for --by, such as 0,512,2048,8192; else quarters of the queries."),
    ] = None,
    drop_self: Annotated[
        DropSelf,
        typer.Option(
            help="Remove documents of the query's own id first; auto: where the collection is known "
            "to need it (ArguAna, Quora)."
        ),
    ] = DropSelf.auto,
    form: Annotated[
        Format,
        typer.Option("--format", "-f", envvar="LMK_EVAL_FORMAT", help="How the table is printed."),
    ] = Format.table,
    offline: Offline = False,
    json: options.Json = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 4 when a judged query is missing from a run.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(help="Append each result with its provenance to this JSON-lines file."),
    ] = None,
    ir_metadata: Annotated[
        bool,
        typer.Option("--ir-metadata", help="Write what is known of each run beside it, as YAML."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the means with intervals; with --baseline the differences query by query, with "
            "--by a curve over the groups (.png, .svg or .pdf; extra plot)."
        ),
    ] = None,
) -> None:
    """Runs to measures. Judged queries that a run lacks count as 0 and are reported.

    Without --qrels, the judgements are those of the collection whose queries made the run; runs on
    several collections make a table of systems x collections with arithmetic and geometric means.
    With --baseline or --all-pairs, differences come with a 95 % bootstrap interval, wins/ties/losses,
    and the p-values of a paired t-test and a randomisation test.
    """
    from lmkcli.evaluation import scoring

    _one_table(per_query=per_query, baseline=baseline, all_pairs=all_pairs, by=by)
    if bins is not None and by is None:
        raise UsageError("--bins has no effect without --by; add --by length, or drop it")
    if correction is not None and baseline is None and not all_pairs:
        raise UsageError(
            "--correction has no effect without --baseline or --all-pairs; add one, or drop it"
        )
    if json and form not in (Format.table, Format.json):
        raise UsageError(f"--json and --format {form.value} print different tables; drop one")
    form = Format.json if json else form
    runs, spellings = _order(runs, qrels or [])
    judges = scoring.judges(runs, spellings)
    drop = {"yes": True, "no": False}.get(drop_self.value)
    results = scoring.score_all(runs, judges, measure or scoring.default_measures(judges), drop)
    against = None if baseline is None else _system(results, baseline)
    if by is not None:
        show = _breakdown(results, judges, by, _edges(bins), form, plot)
    elif per_query:
        show = partial(scoretables.per_query, results, form)
    else:
        method = correction or Correction.holm
        tests = _tests(results, against, method) if against or all_pairs else []
        show = partial(_scores, results, tests, all_pairs, method, form)
    if plot is not None and by is None:
        _plot(results, against, plot)
    if ir_metadata:
        _ir_metadata(results, judges, spellings)
    if log is not None:  # after all that can be refused: the same command again would log twice
        _log(log, results, judges, spellings)
    show()
    scoretables.notes(results, judges)
    missing = [
        f"{each.run} lacks {len(each.scores.coverage.missing)} of the judged queries"
        for each in results
        if each.scores.coverage.missing
    ]
    if strict and missing:
        raise CheckFailed("; ".join(missing))


def _log(log: Path, results: "list[Result]", judges: "list[Judge]", spellings: list[str]) -> None:
    from lmkcli.provenance.scorelog import append

    asked: list[str | None] = [*spellings] or [None] * len(results)
    for result, judge, spelling in zip(results, judges, asked, strict=True):
        append(log, result.run, result.scores, spelling, judge.qrels)


def _ir_metadata(results: "list[Result]", judges: "list[Judge]", spellings: list[str]) -> None:
    from lmkcli.provenance import irmetadata, scorelog

    asked: list[str | None] = [*spellings] or [None] * len(results)
    for result, judge, spelling in zip(results, judges, asked, strict=True):
        known = scorelog.entry_of(result.run, result.scores, spelling, judge.qrels)
        console.note(f"{result.run}: what is known of it is in {irmetadata.write(known)}")


def _plot(results: "list[Result]", baseline: str | None, path: Path) -> None:
    from lmkcli.cli import plotting

    if baseline is None:
        plotting.scores(results, path)
    else:
        plotting.differences(results, baseline, path)
    console.note(f"the plot is in {path}")


def _one_table(**flags: object) -> None:
    """Of the flags that choose a table, one at most."""
    given = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} print different tables; give one of them")


def _order(runs: list[Path], qrels: list[str]) -> tuple[list[Path], list[str]]:
    """The runs, and one spelling of qrels for each or none at all.

    trec_eval's order, qrels first, is recognised by their four columns. One run may come twice only
    with judgements of its own each time.
    """
    runs = [run for path in runs for run in _runs_in(path)]
    missing = [str(path) for path in runs if not path.is_file()]
    if missing:
        raise DataError(f"no such run: {', '.join(missing)}")
    if not qrels and len(runs) > 1 and _columns(runs[0]) in (3, 4):
        runs, qrels = runs[1:], [str(runs[0])]
    if _columns(runs[0]) in (3, 4):
        raise UsageError(f"{runs[0]} looks like qrels, not like a run; give a run after it")
    twice = [str(run) for run in dict.fromkeys(runs) if runs.count(run) > 1]
    if twice and len(qrels) <= 1:
        raise UsageError(f"{', '.join(twice)}: given twice; give each run once")
    return runs, qrels * len(runs) if len(qrels) == 1 else qrels


def _runs_in(path: Path) -> list[Path]:
    """A folder's runs, known by the manifests beside them, by name; a file itself."""
    from lmkcli.store.outputs import SIDECAR, sidecar

    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if sidecar(each).is_file())
    if not found:
        raise DataError(f"{path}: no run with its manifest (<run>{SIDECAR}) in this folder")
    return found


def _columns(path: Path) -> int:
    import gzip
    import zlib

    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", errors="replace") as file:
            return len(next((line for line in file if line.strip()), "").split())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _tests(
    results: "list[Result]", against: str | None, correction: Correction
) -> "list[PairedTest]":
    from lmkcli.evaluation.compare import compare_all

    if against is None:
        scoretables.letters_of(results)  # before any work: there may be too many
    with console.progress("comparing") as progress:
        tests = compare_all(results, against, correction.value, progress)
    if not tests:
        raise UsageError("a comparison needs two runs of the same queries at least")
    return tests


def _scores(
    results: "list[Result]",
    tests: "list[PairedTest]",
    all_pairs: bool,
    correction: Correction,
    form: Format,
) -> None:
    """The scores with the marks of the tests, then the tests; programs get the tests alone."""
    from lmkcli.evaluation.results import collections_of

    letters = scoretables.letters_of(results) if all_pairs else {}
    if not (tests and form in scoretables.PROGRAMS):
        marks = scoretables.marks_of(tests, letters)
        several = len(collections_of(results)) > 1
        (scoretables.across if several else scoretables.means)(results, marks, letters, form)
    if tests:
        scoretables.legend(tests, letters, correction.value, form)
        scoretables.differences(tests, form)


def _system(results: "list[Result]", baseline: str) -> str:
    """The system that --baseline names, by its run or by its row."""
    for each in results:
        if baseline == each.system or Path(baseline) == each.run:
            return each.system
    known = ", ".join(dict.fromkeys(each.system for each in results))
    raise UsageError(f"--baseline {baseline} must be one of two or more runs given: {known}")


def _edges(bins: str | None) -> list[float]:
    try:
        return [float(edge) for edge in bins.split(",")] if bins else []
    except ValueError:
        raise UsageError(f"--bins {bins}: write numbers, such as 0,512,2048,8192") from None


def _breakdown(
    results: "list[Result]",
    judges: "list[Judge]",
    by: str,
    edges: list[float],
    form: Format,
    plot: Path | None,
) -> Callable[[], None]:
    """Draws the groups if `plot` says where, and returns what prints their table."""
    from lmkcli.cli import plotting
    from lmkcli.evaluation import breakdown

    values: dict[breakdown.Key, breakdown.Value] = {}
    judged = 0
    for judge in {judge.name: judge for judge in judges}.values():
        if judge.collection is None:
            raise UsageError(
                f"--by {by} needs the collection, and {judge.name} holds judgements alone: name the "
                "collection with --qrels"
            )
        asked = {qrel.query_id for qrel in judge.qrels}
        judged += len(asked)
        with console.progress(judge.name) as progress:
            found = breakdown.values_of(by, judge.collection, judge.qrels, judge.rel, progress)
        values |= {(judge.name, q): value for q, value in found.items() if q in asked}
    strata = breakdown.strata(values, edges)
    grids = [breakdown.grid(results, strata, name) for name in results[0].measures]
    if plot is not None:
        plotting.groups(grids, [[values[key] for key in each.queries] for each in strata], by, plot)
        console.note(f"the plot is in {plot}")
    left = judged - sum(len(each.queries) for each in strata)
    if left:
        console.note(
            f"{left} of {judged} queries are in no group: their {by} is unknown or too low"
        )
    return partial(scoretables.groups, grids, strata, by, form)
