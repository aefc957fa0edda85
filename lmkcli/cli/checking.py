"""Command lines checked without being run: what a command says of its words before it reads anything.

A grid refuses cells by these checks, so each is the command's own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument

from lmkcli import catalog
from lmkcli.cli import cmd_index, recording
from lmkcli.errors import DataError, LmkError, UnknownName, UsageError
from lmkcli.experiments.gridfile import Flags, Spelling
from lmkcli.experiments.steps import Step

Settings = Mapping[str, Any]  # a command's parameters, dataclasses among them


def spellings(lmk: Any, verbs: Sequence[str]) -> Flags:
    """Verb -> flag -> how it is written, for commands below `lmk`.

    A flag that is not called as its parameter is known by both names (`--hits` is `k`).
    """
    return {verb: _spelled(lmk.commands[verb].params) for verb in verbs}


def _spelled(params: Sequence[Any]) -> dict[str, Spelling]:
    spellings: dict[str, Spelling] = {}
    for param in params:
        if isinstance(param, TyperArgument):
            continue
        on = max(param.opts, key=len)
        spelling = Spelling(on, next(iter(param.secondary_opts), ""), bool(param.is_flag))
        for name in (on.removeprefix("--"), str(param.name).replace("_", "-")):
            spellings.setdefault(name, spelling)
    return spellings


def check(lmk: Any, step: Step) -> None:
    """UsageError where `lmk` would refuse the words of a step.

    UnknownName and DataError name what is not there, or cannot be read, whatever stands beside it. What
    depends on a model is asked where the model is on this machine.
    """
    try:
        _CHECKS[step.verb](settings_of(lmk, step), step)
    except UnknownName:
        raise
    except DataError as error:
        raise DataError(f"lmk {step.verb}: {error}") from error
    except LmkError as error:
        raise UsageError(f"lmk {step.verb}: {error}") from error


def settings_of(lmk: Any, step: Step) -> Settings:
    """What the command of a step makes of its words; UsageError where it does not understand them.

    Variables for its flags do not count, as when the step is run.
    """
    command = lmk.commands[step.verb]
    try:
        with recording.no_variables(step.verb):
            context = command.make_context(step.verb, list(step.words[1:]))
    except typer.BadParameter as error:
        raise UsageError(error.format_message()) from error
    given = {name: None if value in ((), []) else value for name, value in context.params.items()}
    settings: Settings = command.callback.settings({**given, "given": context})
    return settings


def _encode(settings: Settings, step: Step) -> None:
    from lmkcli.encoding import asking
    from lmkcli.encoding.resolving import resolve
    from lmkcli.experiments import sources
    from lmkcli.models.folder import TRAINED

    recipe = settings["recipe"]
    asking.check(recipe)
    if step.trained:
        here = (Path(recipe.model) / TRAINED).is_file()
    else:
        here = sources.local_model(recipe.model, recipe.revision or "") is not None
    if here:
        resolve(recipe, offline=True)
    _collection(settings["source"])


def _collection(spelling: str) -> None:
    """UnknownName for what is no collection; known ones need not be here."""
    from lmkcli.data import known
    from lmkcli.data.collection import open_collection

    if known.facts_of(spelling) is None:
        open_collection(spelling)


def _index(settings: Settings, step: Step) -> None:
    cmd_index.check(settings["dense"], settings["milvus"], settings["given"])
    if settings["dense"].kind in catalog.LEXICAL:
        _collection(settings["source"])


def _search(settings: Settings, step: Step) -> None:
    settings["asked"].check(settings["queries"], settings["output"])
    settings["stages"].check(settings["given"], settings["asked"])


def _eval(settings: Settings, step: Step) -> None:
    from lmkcli.evaluation.measures import parse_measures

    parse_measures(settings["scores"].measure)


def _train(settings: Settings, step: Step) -> None:
    from lmkcli.encoding.asking import check_grans

    check_grans(settings["recipe"])


_CHECKS: dict[str, Callable[[Settings, Step], None]] = {
    "pretrain": _train,
    "train": _train,
    "encode": _encode,
    "index": _index,
    "search": _search,
    "eval": _eval,
}
