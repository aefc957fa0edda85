"""The constructors of operations for people and type checkers: plain signatures, and a text for each setting.

The fields of an operation have the types of its values, such as Path or Granularity. A constructor accepts
more: a text for a path, a number for a granularity. `docs/stubs.py` writes the same signatures into the stub
of the package.
"""

import inspect
import re
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from lmkcli.spec.option import Option, members, options
from lmkcli.spec.values import Device, Muvera, Shard, Size, parser_of

_WIDTH = 100
_PLACES = ("artifact", "model", "run", "file", "output")  # roles of texts that may be paths
_FLAG = re.compile(r"--([a-z][a-z-]*)")
_TEXTS = (Device, Muvera)  # value types that a number cannot spell


class Annotation(str):
    """A type as a text; signatures show it without quotation marks."""

    def __repr__(self) -> str:
        return str(self)


def annotation(option: Option) -> Annotation:
    """Return the types that the constructor of an operation accepts for a field."""
    kinds = members(option.kind)
    accepted: list[str] = []
    for kind in kinds:
        accepted += _accepted(kind, option)
    if NoneType in kinds:
        accepted = [*(each for each in accepted if each != "None"), "None"]
    return Annotation(" | ".join(dict.fromkeys(accepted)))


def _accepted(kind: Any, option: Option) -> list[str]:
    role = option.flag.role
    if get_origin(kind) is list:
        (inner,) = get_args(kind)
        single = _accepted(inner, option)
        several = single if role != "collection" else ["str", "Path"]
        return [*single, f"Sequence[{' | '.join(several)}]"]
    if get_origin(kind) is Literal:
        return [f"Literal[{', '.join(map(repr, get_args(kind)))}]"]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [f"Literal[{', '.join(repr(str(each.value)) for each in kind)}]"]
    if kind is NoneType:
        return ["None"]
    if role == "collection" and kind is str:
        return ["Source"]
    if kind is Path or (kind is str and role in _PLACES):
        return ["str", "Path"]
    if kind is Shard:
        return ["str", "Shard"]
    if kind is Size:
        return ["int", "str"]
    if parser_of(kind):
        return ["str"] if kind in _TEXTS else ["int", "str"]
    return [kind.__name__]


def signature(kind: Any) -> inspect.Signature:
    """Return the signature of the constructor: arguments, then required settings, then the most used ones."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = sorted(
        options(kind),
        key=lambda each: (not each.flag.argument, not each.required, not each.flag.often),
    )
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                positional if each.flag.argument and not each.field.kw_only else keyword,
                default=_default(each),
                annotation=annotation(each),
            )
            for each in found
        ]
    )


def with_settings(function: Any, *kinds: Any, without: str) -> inspect.Signature:
    """Return the signature of a function whose `settings` are fields of operations, except some names.

    If two operations have a field of the same name, the first one declares it.
    """
    own = [
        each.replace(annotation=Annotation("Source")) if each.annotation == "Source" else each
        for each in inspect.signature(function).parameters.values()
        if each.name != "settings"
    ]
    left_out = {*without.split(), *(each.name for each in own)}
    found: dict[str, inspect.Parameter] = {}
    for kind in kinds:
        found = {
            **found,
            **{n: each for n, each in signature(kind).parameters.items() if n not in found},
        }
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = [each.replace(kind=keyword) for name, each in found.items() if name not in left_out]
    return inspect.Signature([*own, *settings])


def _default(option: Option) -> Any:
    if option.required:
        return inspect.Parameter.empty
    default = option.field.default
    if default is MISSING:
        return None
    if isinstance(default, Shard | Size):
        return str(default)
    return str(default) if isinstance(default, str | Path) else default


def described(kind: Any, summary: str) -> str:
    """Return the docstring of an operation: its summary, then each setting with its meaning and default."""
    lines = [inspect.cleandoc(summary), "", "Args:"]
    known = {each.name: each for each in options(kind)}
    for name in signature(kind).parameters:
        flag = known[name].flag
        shown = f" Default: {flag.shown}." if flag.shown else ""
        text = f"{name}: {_FLAG.sub(_as_name, flag.help)}{shown}"
        lines.append(fill(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8))
    return "\n".join(lines)


def _as_name(flag: re.Match[str]) -> str:
    """Return the name of a field, from its flag."""
    return flag[1].replace("-", "_")
