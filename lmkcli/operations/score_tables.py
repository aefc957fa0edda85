"""The tables of lmk eval, and the notes below them.

Formats for people (table, markdown, latex) have wide tables, with the best value of a column in bold and with
significance marks. Formats for programs (csv, json) have one value per row if there are several collections
or groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmkcli.spec.result import PROGRAMS, Cell, Format, PValue, Table

if TYPE_CHECKING:
    from lmkcli.evaluation.breakdown import Stratum
    from lmkcli.evaluation.compare import PairedTest
    from lmkcli.evaluation.results import Column, ScoredRun, ScoreTable
    from lmkcli.evaluation.scoring import QrelSet

Marks = Mapping[tuple[str, str, str], str]  # (system, collection, computed measure) -> mark
CORRECTIONS = {"holm": "Holm-Bonferroni", "bonferroni": "Bonferroni", "bh": "Benjamini-Hochberg"}


Blocks = Iterator[Table | str]


def means(
    results: "Sequence[ScoredRun]", marks: Marks, letters: Mapping[str, str], form: Format
) -> Blocks:
    """Yield one collection: one row per run, one column per measure."""
    names = list(results[0].scores.aggregated)
    columns = [[result.scores.aggregated[name] for result in results] for name in names]
    cells = [_best(column, name) for name, column in zip(names, columns, strict=True)]
    rows = []
    for number, result in enumerate(results):
        values = [
            column[number]._replace(mark=marks.get((result.system, result.collection, name), ""))
            for name, column in zip(names, cells, strict=True)
        ]
        rows.append([_labelled(result.system, letters), *values])
    yield Table(["run", *names], rows)


def across(
    results: "Sequence[ScoredRun]", marks: Marks, letters: Mapping[str, str], form: Format
) -> Blocks:
    """Yield several collections: systems x collections with their means, for each measure."""
    from lmkcli.evaluation.results import collections_of, columns_of, score_table

    grids = [score_table(results, name) for name in results[0].measures]
    columns = columns_of(collections_of(results))
    if form in PROGRAMS:
        yield _long(results, grids, columns)
        return
    rows = []
    for each in grids:
        computed = {r.collection: str(r.measures[each.measure]) for r in results}
        of_column = [c.collections[0] if len(c.collections) == 1 else "" for c in columns]
        keys = [(name, computed.get(name, "")) for name in of_column]
        for system, cells in _cells(each).items():
            of_row = [marks.get((system, *key), "") for key in keys]
            of_row += [""] * (len(cells) - len(of_row))
            values = [cell._replace(mark=mark) for cell, mark in zip(cells, of_row, strict=True)]
            rows.append([_labelled(system, letters), each.measure, *values])
    yield _wide(["system", "measure", *grids[0].columns], rows)
    parts = [c for c in columns if len(c.collections) > 1]
    yield from (f"{c.name}: mean of {len(c.collections)} collections" for c in parts)


def groups(
    grids: "Sequence[ScoreTable]", strata: "Sequence[Stratum]", by: str, form: Format
) -> Table:
    """Return a breakdown: systems x groups of queries, for each measure."""
    counts = [len(each.queries) for each in strata]
    if form in PROGRAMS:
        rows = [
            [system, grid.measure, group.name, len(group.queries), value]
            for grid in grids
            for system, values in grid.rows.items()
            for group, value in zip(strata, values, strict=True)
        ]
        return Table(["run", "measure", by, "queries", "score"], rows)
    shown: list[list[Any]] = [["(queries)", "", *counts]]
    for grid in grids:
        shown += [[system, grid.measure, *cells] for system, cells in _cells(grid).items()]
    return _wide(["run", "measure", *grids[0].columns], shown)


def per_query(results: "Sequence[ScoredRun]", form: Format) -> Table:
    """Return one row per query; with several collections, a column for the collection."""
    from lmkcli.evaluation.results import collections_of, headings

    short = headings(collections_of(results))
    several = len(short) > 1
    names = list(results[0].measures if several else results[0].scores.per_query)
    rows: list[list[Any]] = []
    for each in results:
        columns = [each.by_query(n) if several else each.scores.per_query[n] for n in names]
        name = each.collection if form in PROGRAMS else short[each.collection]
        head = [each.system, name] if several else [each.system]
        rows += [[*head, query, *(column[query] for column in columns)] for query in columns[0]]
    return Table([*(["system", "collection"] if several else ["run"]), "query", *names], rows)


def paired_tests(tests: "Sequence[PairedTest]", form: Format) -> Table:
    """Return one row per test."""
    from lmkcli.evaluation.results import headings

    program = form in PROGRAMS
    short = headings(list(dict.fromkeys(test.collection for test in tests)))
    pairs = len({test.against for test in tests}) > 1
    rows = []
    for test in tests:
        row: dict[str, Any] = {"run": test.run}
        row |= {"against": test.against} if pairs or program else {}
        if program or len(short) > 1:
            row["collection"] = test.collection if program else short[test.collection]
        row |= {"measure": test.measure}
        row |= _numbers(test) if program else _readable(test)
        row |= {"p (t-test)": PValue(test.t_test), "p (randomisation)": PValue(test.randomisation)}
        rows.append(row)
    return Table(list(rows[0]), [list(row.values()) for row in rows])


def _numbers(test: "PairedTest") -> dict[str, Any]:
    comparison = test.comparison
    return {
        "score": test.score,
        "difference": comparison.difference,
        "low": comparison.interval[0],
        "high": comparison.interval[1],
        "wins": comparison.wins,
        "ties": comparison.ties,
        "losses": comparison.losses,
    }


def _readable(test: "PairedTest") -> dict[str, Any]:
    comparison = test.comparison
    low, high = comparison.interval
    return {
        "difference": comparison.difference,
        "95 % interval": f"[{low:.4f}, {high:.4f}]",
        "wins/ties/losses": f"{comparison.wins}/{comparison.ties}/{comparison.losses}",
    }


def marks_of(
    tests: "Sequence[PairedTest]", letters: Mapping[str, str]
) -> dict[tuple[str, str, str], str]:
    """Return the marks of significant differences.

    Without letters, a dagger marks a difference from the baseline. With letters, the marks of a run are the
    letters of all runs with significantly lower scores.
    """
    marks: dict[tuple[str, str, str], str] = {}
    for test in tests:
        if test.significant and not letters:
            marks[test.run, test.collection, test.measure] = "†"
        elif test.significant:
            pair = (test.run, test.against)
            winner, loser = pair if test.comparison.difference > 0 else pair[::-1]
            key = (winner, test.collection, test.measure)
            marks[key] = "".join(sorted(marks.get(key, "") + letters[loser]))
    return marks


def legend(tests: "Sequence[PairedTest]", letters: Mapping[str, str], correction: str) -> str:
    """Return the legend of the marks of a table."""
    from lmkcli.evaluation.compare import LEVEL

    how = "two-sided paired t-test"
    if len(tests) > 1:
        how += f", {CORRECTIONS[correction]} over {len(tests)} tests"
    if letters:
        return f"Letters: better than the run with that letter, p < {LEVEL} ({how})."
    return f"†: differs from {tests[0].against}, p < {LEVEL} ({how})."


def winners_legend(mark: str, tests: int, correction: str) -> str:
    """Return the legend of values that are significantly higher than all others; without a mark, there are
    none.
    """
    from lmkcli.evaluation.compare import LEVEL

    how = f"two-sided paired t-test, {CORRECTIONS[correction]} over {tests} tests"
    if mark:
        return f"{mark}: higher than every other value of the column, p < {LEVEL} ({how})."
    return f"No value is significantly higher than all others of its column, p < {LEVEL} ({how})."


def notes(results: "Sequence[ScoredRun]", qrel_sets: "Sequence[QrelSet]") -> Iterator[str]:
    """Notes: one line per known collection that changes a measure, one line per run, and uneven depths."""
    noted = set()
    for result, qrel_set in zip(results, qrel_sets, strict=True):
        raised = [
            f"{name} is {measure}"
            for name, measure in result.measures.items()
            if "rel=" in str(measure) and "rel=" not in name
        ]
        if qrel_set.rel > 1 and raised and qrel_set.name not in noted:
            noted.add(qrel_set.name)
            yield f"{qrel_set.name}: relevant means grade {qrel_set.rel} or higher; {', '.join(raised)}"
    for result in results:
        yield f"{result.run}: {_coverage(result)}"
    yield from _depths(results)


def _depths(results: "Sequence[ScoredRun]") -> Iterator[str]:
    """Yield a note for each collection with runs twice as deep as others, if a measure has no cut-off."""
    without_cutoff = [
        name
        for name, measure in results[0].measures.items()
        if "cutoff" in measure.SUPPORTED_PARAMS and "cutoff" not in measure.params
    ]
    for name in dict.fromkeys(each.collection for each in results):
        depths = [each.scores.coverage.depth for each in results if each.collection == name]
        if without_cutoff and 0 < 2 * min(depths) <= max(depths):
            yield (
                f"{name}: {', '.join(without_cutoff)} has no cut-off, and the runs have depths from "
                f"{min(depths)} to {max(depths)}; for a fair comparison use a cut-off such as "
                f"{without_cutoff[0]}@{min(depths)}"
            )


def _coverage(result: "ScoredRun") -> str:
    c = result.scores.coverage
    judged = ", ".join(f"judged@{k} {share:.1%}" for k, share in c.judged_at.items())
    tied = ", ".join(f"ties at {k}: {share:.1%}" for k, share in c.tied_at.items())
    line = f"{c.answered} of {c.judged} judged queries answered; depth {c.depth}; {judged}; {tied}"
    if c.strangers:
        mine, judged = c.strangers
        line += f"; no judged document is in the run: it has ids such as '{mine}', the qrels have '{judged}'"
        line += " (--level chunk ranks chunks)" if "#" in judged and "#" not in mine else ""
    if c.contradicted:
        queries = "query" if c.contradicted == 1 else "queries"
        line += (
            f"; in {c.contradicted} {queries} the ranks contradict the scores, and the scores count, highest "
            "first (negate them if they are distances)"
        )
    if c.missing:
        few = ", ".join(c.missing[:3]) + (" …" if len(c.missing) > 3 else "")
        line += f"; {len(c.missing)} missing count as 0 ({few})"
    if c.unjudged:
        line += f"; {c.unjudged} without judgements ignored"
    if c.self_dropped:
        line += f"; self-hits dropped: {c.self_hits}"
    elif 2 * c.self_hits > c.answered:
        line += f"; {c.self_hits} queries find the document with their own id (--drop-self yes removes it)"
    if c.beyond:
        line += f"; the run is not deep enough for {', '.join(c.beyond)}"
    return line


def _labelled(system: str, letters: Mapping[str, str]) -> str:
    return f"({letters[system]}) {system}" if letters else system


def _cells(grid: "ScoreTable") -> dict[str, list[Cell]]:
    """Return the rows of a grid, with the best value of each column marked."""
    columns = [
        _best([row[number] for row in grid.rows.values()], grid.measure)
        for number in range(len(grid.columns))
    ]
    return {
        system: [column[number] for column in columns] for number, system in enumerate(grid.rows)
    }


def _best(values: Sequence[float | None], measure: str) -> list[Cell]:
    """Return one column with its best value marked."""
    from lmkcli.evaluation.results import best_values

    marked = zip(values, best_values(values, measure), strict=True)
    return [Cell(value, best=is_best) for value, is_best in marked]


def _wide(columns: list[str], rows: list[list[Any]]) -> Table:
    """Return a table without its second column, the measure, if all rows have the same measure."""
    if len({row[1] for row in rows if row[1]}) == 1:
        measure = next(row[1] for row in rows if row[1])
        columns = [f"{columns[0]} ({measure})", *columns[2:]]
        rows = [[row[0], *row[2:]] for row in rows]
    return Table(columns, rows)


def _long(
    results: "Sequence[ScoredRun]", grids: "Sequence[ScoreTable]", columns: "Sequence[Column]"
) -> Table:
    """Return a table with one value per row: all results, and then the means."""
    rows: list[list[Any]] = [
        [each.system, each.collection, name, value]
        for each in results
        for name, value in each.scores.aggregated.items()
    ]
    plain = {number for number, column in enumerate(columns) if len(column.collections) == 1}
    rows += [
        [system, grid.columns[number], grid.measure, value]
        for grid in grids
        for system, values in grid.rows.items()
        for number, value in enumerate(values)
        if number not in plain
    ]
    return Table(["system", "collection", "measure", "score"], rows)
