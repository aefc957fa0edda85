"""The report of a grid: one HTML file that needs nothing else, for readers without lmk.

Tables sort by a click on a heading; plots are inline SVG; every cell has the commands that made it.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from lmkcli.experiments.plan import Plan
from lmkcli.experiments.running import Results
from lmkcli.experiments.scores import Scored
from lmkcli.experiments.table import Entry, Table
from lmkcli.system.atomic import atomic_file

NAME = "report.html"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933 }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #d8dee4; white-space: nowrap }
thead th { border-bottom: 2px solid #1f2933 }
th.axis, td.axis { text-align: left }
sup { line-height: 0 }
thead button { all: unset; cursor: pointer; font-weight: 600 }
thead button:focus-visible { outline: 2px solid #0072b2 }
th[aria-sort=ascending] button::after { content: " ↑" }
th[aria-sort=descending] button::after { content: " ↓" }
details { margin: .2rem 0 } summary { cursor: pointer }
pre { background: #f4f7fa; padding: .6rem .8rem; overflow-x: auto; font-size: 13px }
figure { margin: 1rem 0; overflow-x: auto } figure svg { max-width: 100%; min-width: 32rem; height: auto }
footer, .note { color: #52606d; font-size: 13px }
"""
_SCRIPT = """
for (const head of document.querySelectorAll("thead th")) {
  head.querySelector("button").addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "descending";
    for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "ascending" : "descending");
    const value = row => {
      const text = row.cells[at].dataset.value;
      return text === "" || isNaN(text) ? text : +text;
    };
    const rows = [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      const numbers = typeof x === "number" && typeof y === "number";
      const order = numbers ? x - y : String(x).localeCompare(String(y));
      return down ? order : -order;
    });
    body.append(...rows);
  });
}
"""


def write(
    made: Table, found: Sequence[Scored], plan: Plan, results: Results, figures: Mapping[str, str]
) -> Path:
    """Write the report into the folder of the results; `figures` are captions and their SVG.

    Nothing in it asks the network for anything.
    """
    parts = [
        f"<h1>{escape(results.folder.absolute().name)}</h1>",
        f"<p>{len(found)} of {len(plan.cells)} cells are finished.</p>",
        *(_section(made, measure) for measure in dict.fromkeys(row.measure for row in made.rows)),
        *_legend(made),
        *(
            f"<figure>{_embedded(svg)}<figcaption>{escape(caption)}</figcaption></figure>"
            for caption, svg in figures.items()
        ),
        "<h2>Cells and their commands</h2>",
        *(_cell(each.name, plan, results) for each in plan.cells),
        *_left_out(plan),
    ]
    text = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(results.folder.absolute().name)}</title>\n<style>{_STYLE}</style>\n"
        + "\n".join(parts)
        + f"\n<footer>Written by lmk grid.</footer>\n<script>{_SCRIPT}</script>\n</html>\n"
    )
    path = results.folder / NAME
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
    return path


def _section(made: Table, measure: str) -> str:
    heads = [f'<th class="axis"><button>{escape(head)}</button></th>' for head in made.heads]
    heads += [f"<th><button>{escape(column)}</button></th>" for column in made.columns]
    rows = [
        "<tr>"
        + "".join(
            f'<td class="axis" data-value="{escape(each)}">{escape(each)}</td>'
            for each in row.system
        )
        + "".join(map(_entry, row.entries))
        + "</tr>"
        for row in made.rows
        if row.measure == measure
    ]
    return (
        f'<h2>{escape(measure)}</h2>\n<div class="wide"><table>\n<thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
    )


def _entry(entry: Entry) -> str:
    if entry.value is None:
        return '<td data-value="">-</td>'
    shown = f"{entry.value:.4f}"
    shown = f"<strong>{shown}</strong>" if entry.best else shown
    shown += f"<sup>{escape(entry.mark)}</sup>" if entry.mark else ""
    return f'<td data-value="{entry.value}">{shown}</td>'


def _legend(made: Table) -> list[str]:
    if not made.tests:
        return []
    how = f"paired t-test over queries, corrected over {len(made.tests)} tests"
    return [
        f'<p class="note">†: differs from {escape(made.tests[0].against)}, p &lt; 0.05 ({how}).</p>'
    ]


def _embedded(svg: str) -> str:
    """An SVG without what stands before its first tag."""
    return svg[svg.index("<svg") :]


def _cell(name: str, plan: Plan, results: Results) -> str:
    chain = [plan.steps[key] for key in plan.chains[name]]
    state = "finished" if results.is_done(chain[-1]) else "not finished"
    commands = "\n".join(step.operation.command_line() for step in chain)
    errors = "".join(
        f'<p class="note">{escape(step.key)}: {escape(results.error(step.key))}</p>'
        for step in chain
        if state != "finished" and not results.is_done(step) and results.error(step.key)
    )
    return (
        f"<details><summary>{escape(name)} ({state})</summary>{errors}"
        f"<pre>{escape(commands)}</pre></details>"
    )


def _left_out(plan: Plan) -> list[str]:
    if not plan.refused:
        return []
    items = "".join(f"<li>{escape(each.cell)}: {escape(each.why)}</li>" for each in plan.refused)
    return [f"<h2>Left out</h2>\n<ul>{items}</ul>"]
