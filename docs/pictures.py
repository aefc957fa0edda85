"""Draws what poolers, units and windows do to one sentence, from the placement that encoding uses.

`python docs/pictures.py` writes docs/landmark-pooling.svg, docs/placements.svg and docs/units.svg; with
`--check` it changes nothing and fails when one of them is stale.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import written

from lmkcli.encoding.resolution import open_pooler
from lmkcli.pooling.placement import Input, Placement, Placer
from lmkcli.pooling.table import SpecialTokens

DOCS = Path(__file__).resolve().parent
WORDS = ("[CLS]", "[SEP]", *"steep green tea at eighty degrees for two minutes .".split())
SPECIAL = SpecialTokens(prefix=(0,), suffix=(1,), cls=0, landmark=1)
TEXT = np.arange(2, len(WORDS), dtype=np.int32)
FULL = 512  # positions: more than the sentence takes

BOX, HIGH, GAP, LEFT = 60, 26, 4, 16  # a token, its height, between tokens, the margin; in pixels
COLOURS = ("#0f766e", "#b45309", "#6d28d9", "#be123c", "#1d4ed8", "#4d7c0f")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2933; text-anchor: middle }
.said { font-size: 13px; text-anchor: start }
.name { font: 600 14px ui-monospace, monospace; text-anchor: start }
.end { font-size: 13px; text-anchor: end; fill: #52606d }
.marked { fill: #ffffff; font-weight: 600 }
.ground { fill: #ffffff; stroke: none }
.token { fill: #f4f7fa; stroke: #b6c2cf }
.encoder { fill: #e4ebf2; stroke: #b6c2cf }
.line { fill: none; stroke: #0f766e; stroke-width: 1.8 }
""".strip()


class Row(NamedTuple):
    """One line of a picture: what it is called, its flags of `lmk encode`, and its settings."""

    name: str
    flags: str
    pool: str
    gran: str = ""
    unit: str = "doc"
    window: str = "full"
    limit: int = FULL


POOLERS = (
    Row("cls", "--pool cls", "cls"),
    Row("last", "--pool last", "last"),
    Row("mean", "--pool mean", "mean"),
    Row("mean@k", "--pool mean@4", "mean@4"),
    Row("multicls", "--pool multicls --gran 4", "multicls", "4"),
    Row("lmk", "--pool lmk --gran 4", "lmk", "4"),
)
UNITS = (
    Row("truncation (FirstP)", "--max-length 8", "mean", limit=8),
    Row("average of windows", "--window 8", "mean", window="8", limit=8),
    Row("landmark pooling", "--pool lmk --gran 4", "lmk", "4"),
    Row("landmarks kept apart", "--pool lmk --gran 4 --unit chunk", "lmk", "4", "chunk"),
    Row("late chunking", "--unit chunk --gran 4", "mean", "4", "chunk"),
    Row(
        "chunk-then-embed (MaxP)",
        "--unit chunk --gran 4 --window chunk",
        "mean",
        "4",
        "chunk",
        "chunk",
    ),
    Row("late interaction", "--unit token", "mean", "", "token"),
)


def placed(row: Row) -> Placement:
    """The inputs and marks of the sentence, by the rules of `lmk encode`."""
    placer = Placer(open_pooler(row.pool), SPECIAL, row.limit, row.gran, True, row.unit, row.window)
    return placer.place_text(TEXT)


def placements(title: str, rows: tuple[Row, ...]) -> str:
    """The SVG of one line a row: the inputs, a colour for each vector, and how many vectors."""
    lines, top, width = [], LEFT, 0
    for row in rows:
        placement = placed(row)
        lines += [
            _text("name", LEFT, top + 12, row.name),
            _text("end", 0, top + 12, f"{row.flags}: {_made(row, placement.vectors)}"),
        ]
        left, top = LEFT, top + 20
        for item in placement.inputs:
            lines += _input(item, left, top)
            left += (BOX + GAP) * len(item.ids) + 3 * GAP
        width, top = max(width, left), top + HIGH + 24
    body = "\n".join(lines).replace('x="0"', f'x="{width - LEFT}"')
    return _svg(title, width, top - 8, body)


def _made(row: Row, vectors: int) -> str:
    if row.unit == "doc" and vectors > 1:
        return f"the mean of {vectors} vectors"
    return f"{vectors} vector{'s' * (vectors != 1)}"


def _input(item: Input, left: int, top: int) -> list[str]:
    """The boxes of one input, with the marked ones in the colour of their vector."""
    group = dict(zip(item.marks.tolist(), item.groups.tolist(), strict=True))
    return [
        _token(left + i * (BOX + GAP), top, WORDS[token], group.get(i))
        for i, token in enumerate(item.ids.tolist())
    ]


def _token(left: int, top: int, word: str, group: int | None) -> str:
    fill = "" if group is None else f' style="fill:{COLOURS[group % len(COLOURS)]}"'
    said = _text("plain" if group is None else "marked", left + BOX // 2, top + 17, word)
    return f'<rect class="token"{fill} x="{left}" y="{top}" width="{BOX}" height="{HIGH}" rx="4"/>{said}'


def landmarks() -> str:
    """The SVG of the first page: a sentence with landmarks, its states, and the mean of the marked."""
    only = placed(POOLERS[-1]).inputs[0]
    width = 2 * LEFT + (BOX + GAP) * len(only.ids) - GAP
    plain = only._replace(marks=only.marks[:0], groups=only.groups[:0])
    middle, inside = width // 2, width - 2 * LEFT
    lines = [
        _text("said", LEFT, 28, "A landmark, [SEP], is put after every chunk of 4 tokens:"),
        *_input(plain, LEFT, 42),
        f'<rect class="encoder" x="{LEFT}" y="88" width="{inside}" height="34" rx="6"/>',
        _text("plain", middle, 109, "encoder: every token sees every other"),
        *_input(only, LEFT, 142),
        *(_curve(LEFT + i * (BOX + GAP) + BOX // 2, middle) for i in only.marks.tolist()),
        f'<rect x="{middle - 90}" y="228" width="180" height="30" rx="6" fill="{COLOURS[0]}"/>',
        _text("marked", middle, 247, "mean: one vector"),
        _text("said", LEFT, 247, "The states of the landmarks"),
        _text("said", LEFT, 264, "are averaged, no others."),
    ]
    return _svg("Landmark pooling of one sentence", width, 282, "\n".join(lines))


def _curve(start: int, end: int) -> str:
    return f'<path class="line" d="M{start} {142 + HIGH} C{start} 210 {end} 190 {end} 228"/>'


def _text(kind: str, left: int, base: int, said: str) -> str:
    return f'<text class="{kind}" x="{left}" y="{base}">{escape(said)}</text>'


def _svg(title: str, width: int, height: int, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f'<rect class="ground" width="{width}" height="{height}"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    """Write the pictures, or name what is stale and fail."""
    written.write(
        {
            DOCS / "landmark-pooling.svg": landmarks(),
            DOCS / "placements.svg": placements("Which positions each pooler averages", POOLERS),
            DOCS / "units.svg": placements("What one vector stands for, method by method", UNITS),
        }
    )


if __name__ == "__main__":
    main()
