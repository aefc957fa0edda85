"""Command lines as data: what a verb was asked is recorded with what it makes, and asked again."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any

from typer.core import TyperArgument

from lmkcli.cli import console, naming
from lmkcli.cli.helptext import Explained
from lmkcli.errors import DataError
from lmkcli.system import network


class Recorded(Explained):
    """A command whose parameters are in the manifests of what it makes, as `call`."""

    def __init__(self, name: str | None, *, params: list[Any], **others: Any) -> None:
        super().__init__(name, params=params, **others)
        for param in params:
            if not isinstance(param, TyperArgument):
                param.envvar = variable(str(name), param)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; parameters without a value are left out, and '~' is what a shell makes of it."""
        ctx.params = {name: _at_home(value) for name, value in ctx.params.items()}
        given = {name: _plain(value) for name, value in ctx.params.items()}
        known = {key: value for key, value in given.items() if value not in (None, [])}
        if ctx.params.get("offline"):
            network.forbid()
        for line in naming.both(ctx.params):
            console.note(line)
        with _running({"operation": ctx.info_name, "version": 1, **known}):
            return super().invoke(ctx)


def variable(verb: str, param: Any) -> str:
    """The environment variable of a flag: LMK_<VERB>_<FLAG>, by the flag's longest name."""
    longest = max(param.opts, key=len).removeprefix("--")
    return f"LMK_{verb}_{longest}".upper().replace("-", "_")


_call: ContextVar[dict[str, Any]] = ContextVar("call")


def call() -> dict[str, Any]:
    """The verb that runs and its parameters, for the manifests of what it makes; empty outside one."""
    return _call.get({})


@contextmanager
def _running(call: dict[str, Any]) -> Iterator[None]:
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def call_with(given: dict[str, Any]) -> AbstractContextManager[None]:
    """The call with some arguments replaced, for one of the several artifacts that a command makes."""
    return _running({**call(), **{name: _plain(value) for name, value in given.items()}})


def _at_home(value: Any) -> Any:
    """Paths with their '~' or '~name' replaced, as a shell does where no '--flag=' stands before them."""
    if isinstance(value, list | tuple):
        return type(value)(map(_at_home, value))
    return Path(os.path.expanduser(value)) if isinstance(value, Path) else value


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def words(lmk: Any, call: dict[str, Any]) -> list[str]:
    """The words after `lmk` that ask for a recorded call; DataError when this lmk cannot be asked so.

    `lmk` is the command that holds the verbs. A call holds values alone, never where they came from: a
    record that names a --config file could bring flags that nobody sees.
    """
    command = lmk.commands.get(call["verb"])
    if command is None:
        raise DataError(f"this lmk has no command '{call['verb']}'; install the one that made it")
    unknown = call.keys() - {
        "verb",
        *(param.name for param in command.params if param.expose_value),
    }
    if unknown:
        raise DataError(
            f"this lmk's {call['verb']} knows no {', '.join(sorted(unknown))}; install the lmk that made it"
        )
    flags: list[str] = []
    arguments: list[str] = []
    for param in command.params:
        value = call.get(param.name)
        if not _fits(param, value):
            raise DataError(
                f"its record gives {param.name} as {str(value)[:40]!r}, which 'lmk {call['verb']}' never "
                "writes; the manifest was changed"
            )
        if isinstance(param, TyperArgument):
            arguments += _texts(value)
        elif value != _plain(param.default):
            flags += _flag(param, value)
    return [call["verb"], *flags, "--", *arguments]


def _fits(param: Any, value: Any) -> bool:
    """Whether a recorded value is of a kind that a parameter can have."""
    if isinstance(value, bool) or getattr(param, "is_flag", False):
        return value is None or (isinstance(value, bool) and getattr(param, "is_flag", False))
    if isinstance(value, list):
        return param.nargs != 1 or getattr(param, "multiple", False)
    return value is None or isinstance(value, str | int | float)


def _flag(param: Any, value: Any) -> list[str]:
    name = max(param.opts, key=len)
    if isinstance(value, bool):
        return [name] if value else param.secondary_opts[:1]
    return [f"{name}={text}" for text in _texts(value)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    return [] if value is None else [str(value)]


def run(lmk: Any, line: list[str], shown: bool = False) -> None:
    """Run a command line in this process, its results unseen unless they are to be shown.

    Variables for its flags do not count.
    """
    with (
        _argv(["lmk", *line]),
        no_variables(line[0]),
        open(os.devnull, "w") as nowhere,
        nullcontext() if shown else redirect_stdout(nowhere),
    ):
        lmk.main([*console.flags(), *line], standalone_mode=False)


@contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def no_variables(verb: str) -> Iterator[None]:
    """Without the environment variables for the flags of a command."""
    start = f"LMK_{verb.upper()}_"
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(start)}
    try:
        yield
    finally:
        os.environ.update(hidden)
