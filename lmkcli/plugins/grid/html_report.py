"""The report of a grid: one HTML file without other files, for readers without lmk.

Each measure has a table. A dot with a whisker under each score shows its place and its interval on the axis
of its column. A click on a heading sorts the table. Below are small line charts over axes of numbers, and
the commands of each cell. The page loads nothing from the network, and follows the dark mode of the browser.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from lmkcli.evaluation.results import headings
from lmkcli.evaluation.score_plots import Panel
from lmkcli.plugins.grid import html_charts
from lmkcli.plugins.grid.execution import REPORT, ResultsFolder
from lmkcli.plugins.grid.gridfile import COLLECTION, MEASURES, GridCell, varying
from lmkcli.plugins.grid.html_charts import Scale
from lmkcli.plugins.grid.plan import Plan
from lmkcli.plugins.grid.scores import (
    Cost,
    GridTable,
    ScoredCell,
    TableEntry,
    TableRow,
    figures,
    short_values,
    words_of,
)
from lmkcli.system.atomic import atomic_file
from lmkcli.text.formatting import size

_FEWEST = 3  # values of an axis that need a chart; the table shows two as clearly
_COSTS = ("ms per document", "peak memory", "stored")  # of the encodings
_STUCK = 26  # letters of the axes of rows that stay visible while a narrow screen scrolls
_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fff; --ink: #1c2530; --soft: #5a6675; --rule: #dde3e9; --shade: #f4f6f9; --dot: #8795a5;
  --best: #0072b2; --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b8578f; --s4: #3d9bd6; --s5: #b87800;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161b; --ink: #e4e9ef; --soft: #98a4b3; --rule: #2c343d; --shade: #1a2027; --dot: #74818f;
    --best: #58b4f0; --s0: #58b4f0; --s1: #ff8a3d; --s2: #35cfa3; --s3: #e89ac7; --s4: #9ad7ff; --s5: #f2bd4b;
  }
}
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
body { margin: 1.5rem auto; max-width: 96rem; padding: 0 1rem }
h1 { font-size: 1.45rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
h3 { font-size: .95rem; margin: 1.2rem 0 .2rem }
p { margin: .2rem 0 }
.note, footer, figcaption, code { color: var(--soft); font-size: 13px }
.note b { color: var(--ink); font-weight: 600 }
.wide { overflow: auto; max-height: 92vh; max-width: 100%; width: fit-content }
.wide { border: 1px solid var(--rule); border-radius: 6px }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap; background: var(--page) }
tbody td { border-bottom: 1px solid var(--rule); line-height: 1.25 }
tbody tr:last-child td { border-bottom: 0 }
tbody tr:hover td { background: var(--shade) }
thead th { position: sticky; top: 0; z-index: 2; background: var(--shade) }
thead th { border-bottom: 1px solid var(--dot); vertical-align: bottom; font-weight: 600; font-size: 13.5px }
.axis { text-align: left }
.stuck { position: sticky; z-index: 1; left: var(--left); min-width: var(--wide); max-width: var(--wide) }
.stuck { box-sizing: border-box } thead .stuck { z-index: 3 }
.last { border-right: 1px solid var(--rule) }
td.value strong { color: var(--best) } td svg, th svg { display: block; margin-left: auto }
sup { line-height: 0; font-size: .75em }
thead button { all: unset; cursor: pointer; max-width: 9.5rem; overflow-wrap: break-word }
thead button { white-space: normal }
thead .axis button { white-space: nowrap }
thead button:focus-visible { outline: 2px solid var(--best) }
th[aria-sort=ascending] button::after { content: " ↑" }
th[aria-sort=descending] button::after { content: " ↓" }
svg text { fill: var(--soft); font: 10.5px system-ui, sans-serif } svg .name { font-size: 11.5px }
svg .rule { stroke: var(--rule) } svg .axis { stroke: var(--dot); fill: none }
.strip .whisker { stroke: var(--dot); stroke-width: 2 }
.strip .dot { fill: var(--dot) } .strip .best { fill: var(--best) }
.s0 { --own: var(--s0) } .s1 { --own: var(--s1) } .s2 { --own: var(--s2) }
.s3 { --own: var(--s3) } .s4 { --own: var(--s4) } .s5 { --own: var(--s5) } .others { --own: var(--rule) }
.line { stroke: var(--own); fill: none; stroke-width: 1.2; opacity: .65 } .level { stroke: var(--own) }
.level { stroke-dasharray: 5 3; stroke-width: 1.4 }
.chart .whisker { stroke: var(--own); stroke-width: 1.4 } .chart .dot, .legend .dot { fill: var(--own) }
.charts { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem } figure { margin: 0 }
figcaption { padding-left: 40px; font-weight: 600; max-width: 232px; overflow-wrap: anywhere }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; list-style: none; margin: .2rem 0; padding: 0 }
.legend { font-size: 13px }
details { border-bottom: 1px solid var(--rule) } summary { cursor: pointer; padding: .25rem 0 }
summary code { margin-left: .6rem; overflow-wrap: anywhere }
pre { background: var(--shade); padding: .6rem .8rem; overflow-x: auto; font-size: 12.5px }
pre { margin: .3rem 0 .6rem }
footer { margin-top: 2rem }
@media (max-width: 40rem) {
  body { margin: .8rem auto; padding: 0 .6rem } th, td { padding: .2rem .35rem; font-size: 13px }
  td.axis { white-space: normal; overflow-wrap: anywhere; min-width: 4.4em }
}
@media print { .wide { overflow: visible; max-height: none } }
"""
_SCRIPT = """
for (const head of document.querySelectorAll("thead th")) {
  head.querySelector("button").addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const first = head.classList.contains("axis") ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const value = row => row.cells[at].dataset.value;
    const number = text => text !== "" && !isNaN(text);
    const rows = [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      if (number(x) !== number(y)) return number(x) ? -1 : 1;  // words and missing values are last
      const up = number(x) ? x - y : x.localeCompare(y);
      return order === "ascending" ? up : -up;
    });
    body.append(...rows);
  });
}
"""


def write(
    results: ResultsFolder,
    plan: Plan,
    scored: Sequence[ScoredCell],
    table: GridTable,
    legends: Sequence[str],
) -> Path:
    """Write the report to the folder of results; `legends` explain the marks."""
    name = escape(results.folder.absolute().name)
    computed = {
        str(measure): requested
        for each in scored
        for requested, measure in each.result.measures.items()
    }
    drawn = list(figures(scored))
    parts = [f"<h1>{name}</h1>", *_summary(plan, scored)]
    for measure in dict.fromkeys(row.measure for row in table.rows):
        charts = [
            (collection, axis, panel)
            for collection, axis, panels in drawn
            for each, panel in panels.items()
            if computed.get(each) == measure
        ]
        parts += [*_section(table, measure, legends), *_charts(charts)]
    parts += [*_cells(plan, results), *_left_out(plan)]
    text = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n"
        + "\n".join(parts)
        + f"\n<footer>Written by lmk grid.</footer>\n<script>{_SCRIPT}</script>\n</html>\n"
    )
    path = results.folder / REPORT
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
    return path


def _summary(plan: Plan, scored: Sequence[ScoredCell]) -> list[str]:
    """Return the number of cells, and the settings that all cells share."""
    cells = [cell.values for cell in plan.cells]
    differing = varying(cells)
    axes = [
        f"{len({each[axis] for each in cells})} \N{MULTIPLICATION SIGN} {axis}"
        for axis in differing
    ]
    same = {
        axis: plan.cells[0].shown(axis)
        for axis, value in cells[0].items()
        if axis not in (*differing, MEASURES) and value
    }
    shared = " · ".join(f"{escape(axis)} <b>{escape(value)}</b>" for axis, value in same.items())
    lines = [f"{len(scored)} of {len(plan.cells)} cells are finished: {escape(', '.join(axes))}"]
    lines += [f"The same in all cells: {shared}"] * bool(shared)
    return [f'<p class="note">{line}</p>' for line in lines]


def _section(table: GridTable, measure: str, legends: Iterable[str]) -> list[str]:
    """Return the table of one measure, with the costs of the encodings."""
    of_systems = {each.system: each.cost for each in table.costs}
    rows = [row for row in table.rows if row.measure == measure]
    shown = [short_values([row.system[place] for row in rows]) for place in range(len(table.heads))]
    widths = [
        max(map(len, (head, *names.values())))
        for head, names in zip(table.heads, shown, strict=True)
    ]
    stuck = _stuck(widths)
    axes = [_scale(row.entries[n] for row in rows) for n in range(len(table.columns))]
    heads = [
        f"<th{place}><button>{escape(head)}</button></th>"
        for head, place in zip(table.heads, stuck, strict=True)
    ]
    heads += [
        f"<th><button>{escape(column)}</button>{html_charts.strip_axis(axis) if axis else ''}</th>"
        for column, axis in zip(table.columns, axes, strict=True)
    ]
    if table.costs:
        heads += [f"<th><button>{head}</button></th>" for head in _COSTS]
    body = [
        _row(row, shown, stuck, axes, _costs(of_systems.get(row.system)) if of_systems else "")
        for row in rows
    ]
    return [
        f"<h2>{escape(measure)}</h2>",
        f'<div class="wide"><table>\n<thead><tr>{"".join(heads)}</tr></thead>',
        "<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>",
        *(f'<p class="note">{escape(line)}</p>' for line in legends),
        '<p class="note">Dots: the scores, on an axis per column; blue is the highest. '
        "Whiskers: 95 % bootstrap intervals over queries.</p>",
    ]


def _stuck(widths: Sequence[int]) -> list[str]:
    """Return the attributes of the columns of axes, which stay at the left if they are narrow."""
    if sum(widths) > _STUCK:
        places = [' class="axis"'] * len(widths)
    else:
        sizes = [f"{0.62 * width + 1.8:.2f}" for width in widths]  # in em, with padding and arrow
        lefts = [
            f"{sum(0.62 * width + 1.8 for width in widths[:n]):.2f}" for n in range(len(widths))
        ]
        places = [
            f' class="axis stuck" style="--left:{left}em;--wide:{size}em"'
            for left, size in zip(lefts, sizes, strict=True)
        ]
    return [*places[:-1], places[-1].replace('"axis', '"last axis')]


def _scale(entries: Iterable[TableEntry]) -> Scale | None:
    """Return the axis of a column: its values and intervals; None for a column without values."""
    given = [entry for entry in entries if entry.value is not None]
    values = [entry.value for entry in given if entry.value is not None]
    ends = [end for entry in given for end in entry.interval or ()]
    return html_charts.scale([*values, *ends]) if values else None


def _row(
    row: TableRow,
    shown: Sequence[dict[str, str]],
    stuck: Sequence[str],
    axes: Sequence[Scale | None],
    costs: str,
) -> str:
    cells = [
        f'<td{place} data-value="{escape(each)}" title="{escape(each)}">{escape(names[each])}</td>'
        for each, names, place in zip(row.system, shown, stuck, strict=True)
    ]
    cells += [_entry(entry, axis) for entry, axis in zip(row.entries, axes, strict=True)]
    return f"<tr>{''.join(cells)}{costs}</tr>"


def _costs(cost: Cost | None) -> str:
    """Return the cells of the cost of the encodings of a row; '-' for rows without one, such as BM25."""
    if cost is None:
        return '<td class="value" data-value="">-</td>' * len(_COSTS)
    shown = (
        (cost.milliseconds, f"{cost.milliseconds:.4g}"),
        (cost.memory, size(cost.memory)),
        (cost.stored, size(cost.stored)),
    )
    return "".join(
        f'<td class="value" data-value="{value}">{escape(text)}</td>' for value, text in shown
    )


def _entry(entry: TableEntry, axis: Scale | None) -> str:
    if entry.value is None or axis is None:
        return '<td class="value" data-value="">-</td>'
    shown = f"{entry.value:.4f}"
    shown = f"<strong>{shown}</strong>" if entry.best else shown
    shown += f"<sup>{escape(entry.mark)}</sup>" if entry.mark else ""
    title = ""
    if entry.interval:
        low, high = entry.interval
        title = f' title="95 % interval: {low:.4f} to {high:.4f}"'
    dot = html_charts.strip(axis, entry.value, entry.interval, entry.best)
    return f'<td class="value" data-value="{entry.value}"{title}>{shown}{dot}</td>'


def _charts(charts: Sequence[tuple[str, str, Panel]]) -> list[str]:
    """Small line charts, a row for each axis: collection, axis and panel of one measure."""
    parts = []
    for axis in dict.fromkeys(axis for _, axis, _ in charts):
        mine = [(collection, panel) for collection, each, panel in charts if each == axis]
        points = {point.x for _, panel in mine for line in panel.lines.values() for point in line}
        if len(points) < _FEWEST:
            continue
        looks = html_charts.looks(panel for _, panel in mine)
        levels = {name for _, panel in mine for name in panel.levels}
        parts += [f"<h3>Over {escape(axis)}</h3>", html_charts.legend(looks, levels)]
        parts.append('<div class="charts">')
        parts += [
            f"<figure><figcaption>{escape(collection)}</figcaption>"
            f"{html_charts.line_chart(panel, looks, axis)}</figure>"
            for collection, panel in mine
        ]
        parts.append("</div>")
    return parts


def _cells(plan: Plan, results: ResultsFolder) -> list[str]:
    """Return the commands of each cell, below the settings by which it differs from the others."""
    axes = [axis for axis in varying([cell.values for cell in plan.cells]) if axis != MEASURES]
    short = headings(list(dict.fromkeys(cell.shown(COLLECTION) for cell in plan.cells)))
    others = [axis for axis in axes if axis != COLLECTION]
    lines = ["<h2>Cells and their commands</h2>"]
    for cell, words in zip(plan.cells, words_of(plan.cells, others), strict=True):
        collection = [short[cell.shown(COLLECTION)]] if COLLECTION in axes else []
        lines.append(_cell(cell, " · ".join([*collection, *words]) or cell.name, plan, results))
    return lines


def _cell(cell: GridCell, label: str, plan: Plan, results: ResultsFolder) -> str:
    chain = [plan.steps[key] for key in plan.chains[cell.name]]
    done = results.is_done(chain[-1])
    commands = "\n".join(step.operation.command_line() for step in chain)
    errors = "".join(
        f'<p class="note">{escape(step.key)}: {escape(results.error(step.key))}</p>'
        for step in chain
        if not done and not results.is_done(step) and results.error(step.key)
    )
    state = "" if done else " (not finished)"
    return (
        f"<details><summary>{escape(label)}{state}<code>{escape(cell.name)}</code></summary>{errors}"
        f"<pre>{escape(commands)}</pre></details>"
    )


def _left_out(plan: Plan) -> list[str]:
    if not plan.refused:
        return []
    items = "".join(f"<li>{escape(each.cell)}: {escape(each.why)}</li>" for each in plan.refused)
    return [f"<h2>Left out</h2>\n<ul>{items}</ul>"]
