"""The commands by name, each imported when it is asked for."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import typer

from lmkcli.catalog import OPERATIONS, load
from lmkcli.cli.helptext import Explained, Overview
from lmkcli.cli.verbs import VERBS

HELP = {"help_option_names": ["-h", "--help"]}


class Commands(Mapping[str, Any]):
    """Verb -> its command, made when it is needed: `lmk show` does not import `lmk train`."""

    def __getitem__(self, verb: str) -> Any:
        if verb not in VERBS:
            raise KeyError(verb)
        return _command(verb)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class Lmk(Overview):
    """`lmk` itself, which holds them all and has imported none."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": Commands()})


@cache
def _command(verb: str) -> Any:
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    from lmkcli.cli.adapter import command

    run = command(load(OPERATIONS, verb, "operation"))
    alone.command(verb, cls=Explained, context_settings=HELP)(run)
    return typer.main.get_command(alone)
