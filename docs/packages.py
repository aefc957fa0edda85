"""Draw the subpackages of lmkcli and their imports.

`python docs/packages.py` writes docs/packages.svg and the table in ARCHITECTURE.md. With `--check` it
changes nothing and fails if one of them is stale. tests/test_architecture.py defines the order of the
subpackages and reads the imports.
"""

import ast
import sys
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path
from textwrap import wrap

DOCS = Path(__file__).resolve().parent
ARCHITECTURE = DOCS.parent / "ARCHITECTURE.md"
sys.path.insert(0, str(DOCS.parent))

import written  # noqa: E402

from tests.test_architecture import FACE, PACKAGE, SUBPACKAGES, TOP, modules, own_imports, rank  # noqa: E402

LEFT, WIDTH, HEIGHT, STEP = 150, 660, 44, 60  # a box, and from one to the next, in pixels
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2933 }
.name { font-weight: 600; font-size: 15px }
rect { fill: #f4f7fa; stroke: #b6c2cf; rx: 6px }
.ground { fill: #ffffff; stroke: none }
path { fill: none; stroke: #2f6690; stroke-width: 1.6 }
marker path { fill: #2f6690; stroke: none }
""".strip()


def descriptions() -> dict[str, str]:
    """Subpackage -> its one-line description, in their order; the single modules come first."""
    sentences = {"files": f"{', '.join(TOP)}: single modules."}
    for name in SUBPACKAGES:
        tree = ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))
        sentences[name] = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    return sentences


def arrows() -> list[tuple[int, int]]:
    """(importing, imported) places in `descriptions`, without imports that follow from a chain of others."""
    imported: dict[int, set[int]] = {place: set() for place in range(len(SUBPACKAGES) + 1)}
    for name in modules().keys() - {FACE}:
        imported[rank(name) + 1] |= {rank(target) + 1 for target in own_imports(name)}
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
    """The SVG: a box for each subpackage, with arrows on the left to its imports."""
    height = STEP * (len(SUBPACKAGES) + 1) + STEP - HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 16} {height}" '
        f'width="{LEFT + WIDTH + 16}" height="{height}" role="img">',
        "<title>The subpackages of lmkcli and their imports</title>",
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>',
        f'<rect class="ground" width="{LEFT + WIDTH + 16}" height="{height}"/>',
        *(_box(place, *each) for place, each in enumerate(descriptions().items())),
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
    text = "".join(
        f'<text x="{LEFT + 130}" y="{middle + shift + 18 * i}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{LEFT}" y="{middle - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}"/>'
        f'<text class="name" x="{LEFT + 14}" y="{middle + 5}">{name}</text>{text}'
    )


def _arrow(start: int, end: int) -> str:
    out = LEFT - 20 - 22 * (start - end)
    first, last = _middle(start) - 6, _middle(end) + 6
    return (
        f'<path d="M{LEFT} {first} C{out} {first} {out} {last} {LEFT} {last}" '
        'marker-end="url(#head)"/>'
    )


def plugins() -> dict[str, str]:
    """Plug-in -> its one-line description."""
    files = sorted(PACKAGE.glob("plugins/*/__init__.py"))
    trees = {file.parent.name: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    return {
        name: (ast.get_docstring(tree) or "").partition("\n")[0] for name, tree in trees.items()
    }


def _page() -> str:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    text = _with_table(text, "packages", "subpackage", descriptions())
    return _with_table(text, "plugins", "plug-in", plugins())


def _with_table(text: str, name: str, column: str, sentences: dict[str, str]) -> str:
    """The page with a new table between two comments."""
    head, start, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    if not start or not end:
        raise SystemExit(f"{ARCHITECTURE.name}: <!-- {name} --> … <!-- /{name} --> is missing")
    rows = "".join(f"| {each} | {sentence} |\n" for each, sentence in sentences.items())
    return f"{head}{start}| {column} | description |\n|---|---|\n{rows}{end}{tail}"


def main() -> None:
    """Write the picture and the table; with --check, name stale files and fail."""
    written.write({DOCS / "packages.svg": picture(), ARCHITECTURE: _page()})


if __name__ == "__main__":
    main()
