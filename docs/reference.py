"""Rewrites the generated parts of the documentation: flags, families of models, landmark
arithmetic, and the list of all pages.

`python docs/reference.py` writes the pages; with `--check` it changes nothing and fails when one of
them is stale. A generated table stands between `<!-- name -->` and `<!-- /name -->`.
"""

import inspect
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import navigation
import numpy as np
import written
from stub import is_operation, public, result_of
from typer.core import TyperArgument
from typer.main import get_command

import lmkcli
from lmkcli.cli import helptext
from lmkcli.cli.main import app
from lmkcli.pooling.placement import Placer
from lmkcli.pooling.table import LMK, SpecialTokens
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.result import Result
from lmkcli.training.train_settings import LoopSettings

DOCS = Path(__file__).resolve().parent
# Of many commands, with the same meaning.
COMMON = ("offline", "json", "config", "if_exists", "device", "trust_remote_code", "map_ids")
WIDTH = 120  # of a line of a page
LENGTHS, GRANULARITIES = (512, 8192, 32768), (32, 64, 128, 256)


def pages() -> dict[Path, str]:
    """Every page that has a generated table, with the text that it should have."""
    group: Any = get_command(app)
    encode = group.commands["encode"]
    recipe = _rows(encode, _names(RecipeOptions) - {"model"})
    common = _rows(group.commands["search"], COMMON) | _rows(group.commands["serve"], COMMON)
    loop = _rows(group.commands["train"], _names(LoopSettings))
    opening = _rows(group.commands["search"], _names(OpenSettings) - {*COMMON})
    shared = [
        Shared("pool", recipe, "The [recipe](recipe.md) of vectors."),
        Shared("config", common, "[Common flags](conventions.md#common-flags)."),
        Shared("schedule", loop, "As for [lmk train](train.md#flags)."),
        Shared("ef_search", opening, "As for [lmk search](search.md#flags)."),
    ]
    origins = {"train": "schedule", "search": "ef_search"}
    made: dict[Path, str] = {}
    for name, command in group.commands.items():
        page, marker = _place(name)
        up = "" if page.parent == DOCS else "../"
        elsewhere = [each for each in shared if each.first != origins.get(name)]
        table = _flags(command, elsewhere).replace("](", f"]({up}")
        made[page] = _filled(page, marker, table, made.get(page))
    root = [param for param in group.params if param.name in ("quiet", "verbose", "version")]
    conventions = DOCS / "conventions.md"
    made[conventions] = _filled(conventions, "flags", _table(map(_row, root)))
    made[DOCS / "README.md"] = _filled(DOCS / "README.md", "pages", navigation.contents())
    made[DOCS / "models.md"] = _filled(DOCS / "models.md", "families", _families())
    made[DOCS / "pooling.md"] = _filled(DOCS / "pooling.md", "truncation", _truncation())
    made[conventions] = _filled(conventions, "common", _table(common.values()), made[conventions])
    made[DOCS / "recipe.md"] = _filled(DOCS / "recipe.md", "flags", _table(recipe.values()))
    api = DOCS / "api.md"
    made[api] = _filled(api, "results", _results())
    return made


def _place(verb: str) -> tuple[Path, str]:
    """The page with the flags of a command, and the name of the table: a page of several commands
    names the command in it."""
    marker = f"flags {verb}"
    for page in sorted(DOCS.rglob("*.md")):
        if f"<!-- {marker} -->" in page.read_text(encoding="utf-8"):
            return page, marker
    return DOCS / f"{verb}.md", "flags"


def _filled(page: Path, name: str, table: str, text: str | None = None) -> str:
    """The page, or the text that it has so far, with a table in its place."""
    if not page.is_file():
        raise SystemExit(f"{page.name} is missing: no page has the flags of this command")
    text = text or page.read_text(encoding="utf-8")
    head, start, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    if not start or not end:
        raise SystemExit(f"{page}: there is no <!-- {name} --> … <!-- /{name} --> in it")
    return f"{head}{start}{table}{end}{tail}"


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def _rows(command: Any, names: Collection[str]) -> dict[str, list[str]]:
    """Return the rows of some flags of a command, by name."""
    return {param.name: _row(param) for param in command.params if param.name in names}


class Shared(NamedTuple):
    """Flags that another page describes: the row of the first one links to this page for all of them."""

    first: str
    rows: dict[str, list[str]]
    link: str


def _flags(command: Any, shared: Sequence[Shared]) -> str:
    """Return a row for each flag, and one for all flags that are the same as on another page."""
    params = {param.name: param for param in command.params}
    rows = _rows(command, params)
    for first, elsewhere, link in shared:
        names = [name for name in rows if rows[name] == elsewhere.get(name)]
        if first in names:
            rows[first] = [", ".join(_spellings(params[name]) for name in names), "", link]
            rows = {name: row for name, row in rows.items() if name == first or name not in names}
    return _table(rows.values())


def _table(rows: Iterable[list[str]]) -> str:
    lines = [["flag", "default", "meaning"], ["---", "---", "---"], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row(param: Any) -> list[str]:
    name = _argument(param) if isinstance(param, TyperArgument) else _option(param)
    help_text = re.sub(r"\s+", " ", param.help or "").replace("|", r"\|")
    return [name, _default(param), help_text]


def _results() -> str:
    """A row for each class of results: the operations that return it, and its fields."""
    kinds = {name: getattr(lmkcli, name) for name in public()}
    of: dict[Any, list[str]] = {}
    for name, kind in kinds.items():
        if is_operation(kind):
            of.setdefault(result_of(kind), []).append(f"`{name}`")
    lines = ["| result | of | meaning | fields |", "| --- | --- | --- | --- |"]
    for result in sorted(of.keys() - {Result, type(None)}, key=lambda each: str(each.__name__)):
        names = [
            f"`{name}`" for each in result.__mro__ for name in vars(each).get("__annotations__", ())
        ]
        meaning = inspect.cleandoc(result.__doc__).partition("\n\n")[0].replace("\n", " ")
        lines.append(
            f"| `{result.__name__}` | {', '.join(of[result])} | {meaning} | {', '.join(names)} |"
        )
    return "\n".join(lines) + "\n"


def _argument(param: Any) -> str:
    return f"`{param.metavar or param.name.upper()}`"


def _spellings(param: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(param.opts, key=len) + param.secondary_opts)


def _option(param: Any) -> str:
    chosen = " \\| ".join(f"`{each}`" for each in helptext.choices(param))
    value = "" if param.is_flag else f" {chosen or helptext.value_name(param)}"
    return _spellings(param) + value


def _default(param: Any) -> str:
    default = helptext.default_of(param)
    return "required" if param.required else f"`{default}`" if default else ""


def _families() -> str:
    """The families of the conformance table, grouped by how their inputs run together."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.models.families import FAMILIES  # here, because it imports transformers

    runs = {"equal": "equal lengths"}
    found: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        found.setdefault(family.runs, []).append(f"{name} ({family.public})")
    items = [f"- `{runs.get(each, each)}`: {'; '.join(names)}." for each, names in found.items()]
    return "".join(
        f"{fill(item, WIDTH, subsequent_indent='  ', break_on_hyphens=False)}\n" for item in items
    )


def _truncation() -> str:
    """landmarks / content / dangling of texts that fill every length, from the placement itself."""
    lines = ["| length | " + " | ".join(f"gran {g}" for g in GRANULARITIES) + " |"]
    lines += ["|---:|" + "---:|" * len(GRANULARITIES)]
    for length in LENGTHS:
        cells = " | ".join(_full(length, gran) for gran in GRANULARITIES)
        lines.append(f"| {length} | {cells} |")
    return "\n".join(lines) + "\n"


def _full(length: int, gran: int) -> str:
    special = SpecialTokens(prefix=(1,), suffix=(2,), cls=1, landmark=2)
    placer = Placer(LMK, special, length, str(gran), include_prompt=True)
    placed = placer.place_text(np.full(2 * length, 7, np.int32))
    landmarks = len(placed.inputs[0].marks)
    return f"{landmarks} / {placed.kept} / {placed.kept - landmarks * gran}"


def main() -> None:
    """Write the stale pages, or name them and fail."""
    written.write(pages())


if __name__ == "__main__":
    main()
