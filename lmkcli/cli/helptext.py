"""Help pages: what a command does, its flags by panel with the most used first, and examples.

`--help` explains the most used flags and lists the others; `--help-all` explains all.
The pages of typer have five columns per flag, so most flags need three lines of 80 characters. These pages
have two columns: the spelling of a flag, and its meaning with its default.
"""

import inspect
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup

from lmkcli.catalog import VERBS
from lmkcli.cli.verbs import start, verbs

# The base class of the parser's errors. typer exports only one of its subclasses.
ParsingError: Any = typer.BadParameter.__mro__[1]
_MAX_WIDTH = 100  # longer lines are hard to read
_SPELLING_WIDTH = 28  # of the column of spellings
_TYPES = {Path: "PATH", int: "N", float: "X"}  # all others: TEXT
_FLAGS, _OTHERS = "Flags", "Others"
MOST_USED = "Most used"  # the first panel of a page
HELP_ALL = "--help-all"
ENOUGH = 5  # most used flags; a page with fewer explains all flags
Sections = dict[str, list[tuple[str, str]]]  # heading -> rows of two columns


class VerbCommand(TyperCommand):
    """One command, with a help page of this module and with aliases of its flags."""

    def make_parser(self, ctx: Any) -> Any:
        """Make a parser that also accepts the aliases of each flag, which help pages do not list.

        A word such as '-,format=csv' is standard input with options, and no flag.
        """
        parser: Any = super().make_parser(ctx)
        process = parser._process_opts

        def process_word(word: str, state: Any) -> None:
            if word.startswith("-,"):
                state.largs.append(word)
            else:
                process(word, state)

        parser._process_opts = process_word
        aliases: dict[str, list[str]] = getattr(self.callback, "aliases", {})
        for param in self.params:
            if others := aliases.get(str(param.name)):
                spellings, param.opts = param.opts, others
                param.add_to_parser(parser, ctx)
                param.opts = spellings
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, or print the page of all flags. Errors get the context, to name the command."""
        if HELP_ALL in args and not ctx.resilient_parsing:
            self._page(ctx, everything=True)
            ctx.exit()
        try:
            return super().parse_args(ctx, args)
        except ParsingError as error:
            error.ctx = error.ctx or ctx
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments, and one word for all flags."""
        return [_spelling(param) for param in self.params if _is_argument(param)] + ["[FLAGS]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page of one command with its most used flags."""
        self._page(ctx, everything=False)

    def _page(self, ctx: Any, everything: bool) -> None:
        """Print the page of one command: with `everything`, or few most used flags, it explains all flags."""
        out = _console()
        _head(out, ctx, self.help)
        panels: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            panel = getattr(param, "rich_help_panel", None)
            name = "" if _is_argument(param) else panel or _OTHERS
            panels.setdefault(name, []).append(param)
        if set(panels) <= {"", _OTHERS}:
            panels[_FLAGS] = panels.pop(_OTHERS)
        names = sorted(panels, key=_OTHERS.__eq__)
        brief = [name for name in names if name not in ("", MOST_USED)]
        if everything or len(panels.get(MOST_USED, ())) < ENOUGH:
            brief = []
        _sections(out, {name: _rows(panels[name]) for name in names if name not in brief})
        if brief:
            others = [
                (name, ", ".join(max(each.opts, key=len) for each in panels[name]))
                for name in brief
            ]
            _sections(out, {f"More flags ({ctx.command_path} {HELP_ALL} explains them)": others})
        if verb := VERBS.get(str(ctx.info_name)):
            lines = "".join(f"\n  {line}" for line in verb.examples)
            out.print(Text.assemble(("\nExamples", "bold"), lines), soft_wrap=True)


class VerbGroup(TyperGroup):
    """All commands, in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page of all commands."""
        out = _console()
        _head(out, ctx, self.help)
        rows: Sections = {}
        for name, verb in verbs().items():
            rows.setdefault(verb.group, []).append((name, verb.help))
        _sections(out, rows)
        _sections(out, {_FLAGS: _rows(self.get_params(ctx))})
        out.print(Text(f"\n{self.epilog}"))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line of `lmk` itself."""
        return ["[FLAGS]", "COMMAND …"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Without any, print the first commands to try and exit with code 2."""
        if not args and not ctx.resilient_parsing:
            _console().print(Text(start()))
            ctx.exit(2)
        return super().parse_args(ctx, args)


def value_name(param: Any) -> str:
    """Return the name of a value on help pages: the metavar, CHOICE, or a word for its type."""
    if param.metavar:
        return str(param.metavar)
    if choices(param):
        return "CHOICE"
    annotation = param.type_descriptor.annotation
    while get_args(annotation):
        annotation = get_args(annotation)[
            0
        ]  # the items of a list, or the type of an optional value
    bases = getattr(annotation, "__mro__", ())
    return next((_TYPES[base] for base in bases if base in _TYPES), "TEXT")


def choices(param: Any) -> list[str]:
    """Return the possible values of a flag; empty if it accepts any."""
    words = _choices(param.type_descriptor.annotation)
    return [str(getattr(each, "value", each)) for each in words]


def _choices(annotation: Any) -> Sequence[Any]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return list(annotation)
    return next(filter(None, map(_choices, get_args(annotation))), ())


def default_of(param: Any) -> str:
    """Return the default as a user would write it; empty if there is no default to show."""
    if isinstance(param.show_default, str):
        return param.show_default
    value = getattr(param.default, "value", param.default)
    if isinstance(value, bool) and param.secondary_opts:
        return "on" if value else "off"
    return str(value) if value else ""


def _console() -> Console:
    out = Console(highlight=False)
    out.width = min(out.width, _MAX_WIDTH)
    return out


def _head(out: Console, ctx: Any, text: str | None) -> None:
    """Print the usage line and the docstring."""
    usage = " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)])
    out.print(Text.assemble(("Usage: ", "bold"), usage))
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        out.print(Text("\n" + " ".join(paragraph.split())))


def _rows(params: list[Any]) -> list[tuple[str, str]]:
    return [(_spelling(each), _meaning(each)) for each in params]


def _sections(out: Console, sections: Sections) -> None:
    """Print headings with two columns below each; all sections have the same column widths."""
    spellings = [spelling for rows in sections.values() for spelling, _ in rows]
    width = min(_SPELLING_WIDTH, max(map(len, spellings)))
    for title, rows in sections.items():
        out.print(Text(f"\n{title}" if title else "", style="bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="cyan", width=width)
        grid.add_column()
        for spelling, meaning in rows:
            grid.add_row(Text(spelling), Text(meaning))
        out.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _is_argument(param: Any) -> bool:
    return isinstance(param, TyperArgument)


def _spelling(param: Any) -> str:
    """'-m, --model TEXT', '--[no-]normalize', or the metavar of an argument."""
    if _is_argument(param):
        return str(param.metavar or param.name.upper())
    names = sorted(param.opts, key=len)
    if param.secondary_opts:
        names[-1] = f"--[no-]{names[-1].removeprefix('--')}"
    return ", ".join(names) + ("" if param.is_flag else f" {value_name(param)}")


def _meaning(param: Any) -> str:
    return " ".join(filter(None, [" ".join((param.help or "").split()), _bracket(param)]))


def _bracket(param: Any) -> str:
    """'[required]', '[default: fp16; or fp32]', or nothing."""
    if param.required:
        return "[required]"
    words = list(_alternatives(param))
    return f"[{'; '.join(words)}]" if words else ""


def _alternatives(param: Any) -> Iterator[str]:
    default = default_of(param)
    if default:
        yield f"default: {default}"
    if others := [each for each in choices(param) if each != default]:
        yield ("or " if default else "one of ") + ", ".join(others)
