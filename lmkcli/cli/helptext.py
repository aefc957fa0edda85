"""Help pages: what a command does, its flags by panel with the most used first, and examples.

Typer's own pages give a flag five columns, which at 80 characters makes three lines of most. Here are
two: how it is written, and what it does with its default.
"""

import inspect
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup

from lmkcli.cli.verbs import START, VERBS

_WIDEST = 100  # lines beyond are hard to read
_WRITTEN = 28  # columns for how a flag is written
_TYPES = {int: "N", float: "X", str: "TEXT"}  # and PATH
_FLAGS, _OTHERS = "Flags", "Others"
Sections = dict[str, list[tuple[str, str]]]  # the two columns below each heading


class Explained(TyperCommand):
    """A command whose help is a page of this module."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments as help calls them, and a word for all flags."""
        return [_written(param) for param in self.params if _is_argument(param)] + ["[FLAGS]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page of one command."""
        out = _console()
        _head(out, ctx, self.help)
        panels: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            panel = getattr(param, "rich_help_panel", None)
            name = "" if _is_argument(param) else panel or _OTHERS
            panels.setdefault(name, []).append(param)
        if set(panels) <= {"", _OTHERS}:
            panels[_FLAGS] = panels.pop(_OTHERS)
        _sections(out, {name: _rows(panels[name]) for name in sorted(panels, key=_OTHERS.__eq__)})
        if verb := VERBS.get(str(ctx.info_name)):
            lines = "".join(f"\n  {line}" for line in verb.examples)
            out.print(Text.assemble(("\nExamples", "bold"), lines), soft_wrap=True)


class Overview(TyperGroup):
    """The commands in groups; without a word the first lines to try."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page of all commands."""
        out = _console()
        _head(out, ctx, self.help)
        rows: Sections = {}
        for name, verb in VERBS.items():
            rows.setdefault(verb.group, []).append((name, verb.summary))
        _sections(out, rows)
        _sections(out, {_FLAGS: _rows(self.get_params(ctx))})
        out.print(Text(f"\n{self.epilog}"))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """A command and what belongs to it."""
        return ["[FLAGS]", "COMMAND …"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words of the command line; without any, say how to begin and leave with code 2."""
        if not args and not ctx.resilient_parsing:
            _console().print(Text(START))
            ctx.exit(2)
        return super().parse_args(ctx, args)


def value_name(param: Any) -> str:
    """What help calls the value of a flag or an argument: its own word, a choice, or its type."""
    if param.metavar:
        return str(param.metavar)
    if choices(param):
        return "CHOICE"
    annotation = param.type_descriptor.annotation
    while get_args(annotation):
        annotation = get_args(annotation)[0]  # of a list, or of what may be None
    return _TYPES.get(annotation, "PATH")


def choices(param: Any) -> list[str]:
    """The words that a flag takes; none where it takes any."""
    words = _choices(param.type_descriptor.annotation)
    return [str(getattr(each, "value", each)) for each in words]


def _choices(annotation: Any) -> Sequence[Any]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return list(annotation)
    return next(filter(None, map(_choices, get_args(annotation))), ())


def default_of(param: Any) -> str:
    """The default as it would be written; empty where there is none to speak of."""
    if isinstance(param.show_default, str):
        return param.show_default
    value = getattr(param.default, "value", param.default)
    if isinstance(value, bool) and param.secondary_opts:
        return "on" if value else "off"
    return str(value) if value else ""


def _console() -> Console:
    out = Console(highlight=False)
    out.width = min(out.width, _WIDEST)
    return out


def _head(out: Console, ctx: Any, text: str | None) -> None:
    """How the command is written, and what its docstring says."""
    usage = " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)])
    out.print(Text.assemble(("Usage: ", "bold"), usage))
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        out.print(Text("\n" + " ".join(paragraph.split())))


def _rows(params: list[Any]) -> list[tuple[str, str]]:
    return [(_written(each), _meaning(each)) for each in params]


def _sections(out: Console, sections: Sections) -> None:
    """Headings with two columns below them, as wide in one section as in all others."""
    left = [each for rows in sections.values() for each, _ in rows]
    width = min(_WRITTEN, max(map(len, left)))
    for title, rows in sections.items():
        out.print(Text(f"\n{title}" if title else "", style="bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="cyan", width=width)
        grid.add_column()
        for written, meaning in rows:
            grid.add_row(Text(written), Text(meaning))
        out.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _is_argument(param: Any) -> bool:
    return isinstance(param, TyperArgument)


def _written(param: Any) -> str:
    """'-m, --model TEXT', '--[no-]normalize', or the argument's own word."""
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
