"""Draws the rooms of the package and the arrows between them, from its real imports.

`python docs/rooms.py` writes docs/rooms.svg and the table of rooms in docs/architecture.md; with
`--check` it changes nothing and fails when one of them is stale. The order of the rooms and the reading
of imports are those of tests/test_architecture.py.
"""

import ast
import sys
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path
from textwrap import wrap

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import written  # noqa: E402

from tests.test_architecture import FACE, PACKAGE, ROOMS, TOP, modules, own_imports, room  # noqa: E402

LEFT, WIDTH, HEIGHT, STEP = 150, 660, 44, 60  # a box, and from one to the next, in pixels
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2933 }
.name { font-weight: 600; font-size: 15px }
rect { fill: #f4f7fa; stroke: #b6c2cf; rx: 6px }
.ground { fill: #ffffff; stroke: none }
path { fill: none; stroke: #2f6690; stroke-width: 1.6 }
marker path { fill: #2f6690; stroke: none }
""".strip()


def doors() -> dict[str, str]:
    """Room -> the sentence over its door, in the order of the rooms; the lone files come first."""
    sentences = {"files": f"{', '.join(TOP)}: exactly one of each."}
    for name in ROOMS:
        tree = ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))
        sentences[name] = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    return sentences


def arrows() -> list[tuple[int, int]]:
    """(importing, imported) places in `doors`, without those that follow from a chain of others."""
    imported: dict[int, set[int]] = {place: set() for place in range(len(ROOMS) + 1)}
    for name in modules().keys() - {FACE}:
        imported[room(name) + 1] |= {room(target) + 1 for target in own_imports(name)}
    imported = {place: targets - {place} for place, targets in imported.items()}
    reached: dict[int, set[int]] = {}
    for place in TopologicalSorter(imported).static_order():
        reached[place] = imported[place].union(*(reached[target] for target in imported[place]))
    return [
        (place, target)
        for place, targets in imported.items()
        for target in sorted(targets)
        if not any(target in reached[other] for other in targets)
    ]


def picture() -> str:
    """The SVG: one box a room, arrows on the left from a room to what it imports."""
    height = STEP * (len(ROOMS) + 1) + STEP - HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 16} {height}" '
        f'width="{LEFT + WIDTH + 16}" height="{height}" role="img">',
        "<title>The rooms of lmkcli and what each imports</title>",
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>',
        f'<rect class="ground" width="{LEFT + WIDTH + 16}" height="{height}"/>',
        *(_box(place, *door) for place, door in enumerate(doors().items())),
        *(_arrow(*ends) for ends in arrows()),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _middle(place: int) -> int:
    return STEP * place + (STEP - HEIGHT) + HEIGHT // 2


def _box(place: int, name: str, sentence: str) -> str:
    middle = _middle(place)
    lines = wrap(sentence, 64)
    shift = 5 - 9 * (len(lines) - 1)
    said = "".join(
        f'<text x="{LEFT + 130}" y="{middle + shift + 18 * i}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{LEFT}" y="{middle - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}"/>'
        f'<text class="name" x="{LEFT + 14}" y="{middle + 5}">{name}</text>{said}'
    )


def _arrow(start: int, end: int) -> str:
    out = LEFT - 20 - 22 * (start - end)
    first, last = _middle(start) - 6, _middle(end) + 6
    return (
        f'<path d="M{LEFT} {first} C{out} {first} {out} {last} {LEFT} {last}" '
        'marker-end="url(#head)"/>'
    )


def _page() -> str:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    head, start, rest = text.partition("<!-- rooms -->\n")
    _, end, tail = rest.partition("<!-- /rooms -->")
    if not start or not end:
        raise SystemExit("architecture.md: there is no <!-- rooms --> … <!-- /rooms --> in it")
    rows = "".join(f"| {name} | {sentence} |\n" for name, sentence in doors().items())
    return f"{head}{start}| room | over its door |\n|---|---|\n{rows}{end}{tail}"


def main() -> None:
    """Write the picture and the table, or name what is stale and fail."""
    written.write({DOCS / "rooms.svg": picture(), DOCS / "architecture.md": _page()})


if __name__ == "__main__":
    main()
