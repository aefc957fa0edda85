"""lmk eval: runs to scores."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli.cli import console, options
from lmkcli.cli.console import Format
from lmkcli.errors import CheckFailed, DataError, UsageError

if TYPE_CHECKING:
    from lmkcli.collection import Qrel
    from lmkcli.measures import Scores


class Correction(StrEnum):
    """Corrections for many tests."""

    holm = "holm"
    bonferroni = "bonferroni"
    bh = "bh"


MEASURES = ["nDCG@10", "R@100", "RR@10"]


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="TREC runs; qrels may come first, as in trec_eval."),
    ],
    qrels: Annotated[
        str | None, typer.Option(help="A qrels file or a collection; else as the run says.")
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure", "-m", help="ir-measures names; repeat it. Default: " + ", ".join(MEASURES)
        ),
    ] = None,
    per_query: Annotated[bool, typer.Option("--per-query", "-p", help="One row a query.")] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Test every other run against this one of the runs, query by query."),
    ] = None,
    correction: Annotated[
        Correction, typer.Option(help="Of the p-values, for the number of tests.")
    ] = Correction.holm,
    form: Annotated[
        Format,
        typer.Option("--format", "-f", envvar="LMK_EVAL_FORMAT", help="How the table is printed."),
    ] = Format.table,
    offline: options.Offline = False,
    json: options.Json = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 4 when a judged query is missing from a run.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(help="Append each result with its provenance to this JSON-lines file."),
    ] = None,
) -> None:
    """Runs to measures. Judged queries that a run lacks count as 0 and are reported.

    Without --qrels, the judgements are those of the collection whose queries made the run. With
    --baseline, differences come with a 95 % bootstrap interval, wins/ties/losses, and the p-values of a
    paired t-test and a randomisation test.
    """
    from lmkcli.measures import evaluate as score
    from lmkcli.measures import parse_measures
    from lmkcli.run import read_run

    measures = parse_measures(measure or MEASURES)
    runs, qrels = _order(runs, qrels)
    results = []
    for path in runs:
        judgements = _qrels(qrels, path)
        results.append((path, score(read_run(path), judgements, measures)))
    form = Format.json if json else form
    if baseline is not None and per_query:
        raise UsageError("--per-query and --baseline print different tables; give one of them")
    if log is not None:
        from lmkcli.scorelog import append

        for path, scores in results:
            append(log, path, qrels, scores)
    if baseline is not None:
        _compare(results, baseline, correction, form)
    else:
        (_per_query if per_query else _means)(results, form)
    for path, scores in results:
        _coverage(path, scores)
    missing = [
        f"{path} lacks {len(s.coverage.missing)} judged queries"
        for path, s in results
        if s.coverage.missing
    ]
    if strict and missing:
        raise CheckFailed("; ".join(missing))


def _order(runs: list[Path], qrels: str | None) -> tuple[list[Path], str | None]:
    """trec_eval's order, qrels first, is recognised by their four columns."""
    missing = [str(path) for path in runs if not path.is_file()]
    if missing:
        raise DataError(f"no such run: {', '.join(missing)}")
    if qrels is None and len(runs) > 1 and _columns(runs[0]) in (3, 4):
        return runs[1:], str(runs[0])
    if _columns(runs[0]) in (3, 4):
        raise UsageError(f"{runs[0]} looks like qrels, not like a run; give a run after it")
    return runs, qrels


def _columns(path: Path) -> int:
    import gzip

    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", errors="replace") as file:
        return len(next((line for line in file if line.strip()), "").split())


def _qrels(given: str | None, run: Path) -> "list[Qrel]":
    from lmkcli.collection import open_collection
    from lmkcli.formats import read_qrels

    if given is not None:
        path = Path(given)
        return list(read_qrels(path) if path.is_file() else open_collection(given).qrels())
    from lmkcli.outputs import sidecar
    from lmkcli.searching import read_manifest

    if not sidecar(run).is_file():
        raise UsageError(
            f"{run} does not say which queries made it: give the judgements with --qrels"
        )
    return list(open_collection(read_manifest(run).facts["collection"]).qrels())


def _means(results: "list[tuple[Path, Scores]]", form: Format) -> None:
    names = list(results[0][1].aggregated)
    rows: list[list[Any]] = [[str(path), *scores.aggregated.values()] for path, scores in results]
    console.table(["run", *names], rows, form)


def _per_query(results: "list[tuple[Path, Scores]]", form: Format) -> None:
    rows: list[list[Any]] = []
    for path, scores in results:
        names = list(scores.per_query)
        rows += [
            [str(path), query, *(scores.per_query[name][query] for name in names)]
            for query in scores.per_query[names[0]]
        ]
    console.table(["run", "query", *results[0][1].per_query], rows, form)


def _compare(
    results: "list[tuple[Path, Scores]]", baseline: Path, correction: Correction, form: Format
) -> None:
    """One row a run and measure; p-values are corrected over all rows of the table."""
    from lmkcli.compare import compare, correct

    base = next((scores for path, scores in results if path == baseline), None)
    others = [(path, scores) for path, scores in results if path != baseline]
    if base is None or not others:
        raise UsageError(f"--baseline {baseline} must be one of two or more runs given")
    tests = [
        (path, name, compare(base.per_query[name], scores.per_query[name]))
        for path, scores in others
        for name in scores.per_query
    ]
    t_tests = correct([test.t_test for *_, test in tests], correction.value)
    flips = correct([test.randomisation for *_, test in tests], correction.value)
    console.note(f"{len(tests)} tests against {baseline}; p-values corrected by {correction.value}")
    rows = [
        [str(path), name, test.difference, *test.interval, test.wins, test.ties, test.losses, p, q]
        for (path, name, test), p, q in zip(tests, t_tests, flips, strict=True)
    ]
    columns = ["run", "measure", "difference", "low", "high", "wins", "ties", "losses"]
    console.table([*columns, "p (t-test)", "p (randomisation)"], rows, form)


def _coverage(path: Path, scores: "Scores") -> None:
    c = scores.coverage
    judged = ", ".join(f"judged@{k} {share:.1%}" for k, share in c.judged_at.items())
    tied = ", ".join(f"ties at {k}: {share:.1%}" for k, share in c.tied_at.items())
    line = f"{path}: {c.answered} of {c.judged} judged queries answered; depth {c.depth}; {judged}; {tied}"
    if c.missing:
        few = ", ".join(c.missing[:3]) + (" …" if len(c.missing) > 3 else "")
        line += f"; {len(c.missing)} missing count as 0 ({few})"
    if c.unjudged:
        line += f"; {c.unjudged} queries without judgements ignored"
    if c.depth < c.cutoff:
        line += f"; the run is shallower than the cut-off {c.cutoff}"
    console.note(line)
