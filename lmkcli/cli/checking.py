"""Command lines checked without being run: what a command says of its words before it reads anything.

A grid refuses cells by these checks, so each is the command's own.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument

from lmkcli import catalog
from lmkcli.cli import recording
from lmkcli.errors import DataError, LmkError, UnknownName, UsageError
from lmkcli.experiments.gridfile import Flags, Spelling
from lmkcli.experiments.steps import Step
from lmkcli.recipe import RecipeOptions
from lmkcli.spec.operation import Operation


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
        operation = operation_of(lmk, step)
        if further := _CHECKS.get(step.verb):
            further(operation, step)
    except UnknownName:
        raise
    except DataError as error:
        raise DataError(f"lmk {step.verb}: {error}") from error
    except LmkError as error:
        raise UsageError(f"lmk {step.verb}: {error}") from error


def operation_of(lmk: Any, step: Step) -> Operation[Any]:
    """The operation that the words of a step mean; UsageError for words that mean none.

    Variables for its flags do not count, as when the step runs.
    """
    command = lmk.commands[step.verb]
    try:
        with recording.no_variables(step.verb):
            context = command.make_context(step.verb, list(step.words[1:]))
    except typer.BadParameter as error:
        raise UsageError(error.format_message()) from error
    values = {name: None if value in ((), []) else value for name, value in context.params.items()}
    json = bool(values.pop("json", False))
    operation: Operation[Any] = command.callback.operation(context, values, json)
    return operation


def _encode(operation: Any, step: Step) -> None:
    from lmkcli.encoding import asking
    from lmkcli.encoding.resolving import resolve
    from lmkcli.experiments import sources
    from lmkcli.models.folder import TRAINED

    recipe = operation.part(RecipeOptions)
    asking.check(recipe)
    if step.trained:
        here = (Path(recipe.model) / TRAINED).is_file()
    else:
        here = sources.local_model(recipe.model, recipe.revision or "") is not None
    if here:
        resolve(recipe, offline=True)
    _collection(operation.source)


def _collection(spelling: str) -> None:
    """UnknownName for an unknown collection; known ones need not be on this machine."""
    from lmkcli.data import known
    from lmkcli.data.collection import open_collection

    if known.facts_of(spelling) is None:
        open_collection(spelling)


def _index(operation: Any, step: Step) -> None:
    if operation.kind in catalog.LEXICAL:
        _collection(operation.source)


def _eval(operation: Any, step: Step) -> None:
    from lmkcli.evaluation.measures import parse_measures

    parse_measures(operation.measure)


def _train(operation: Any, step: Step) -> None:
    from lmkcli.encoding.asking import check_grans

    check_grans(operation.part(RecipeOptions))


# What is checked in addition to the operation's own checks.
_CHECKS: dict[str, Callable[[Any, Step], None]] = {
    "pretrain": _train,
    "train": _train,
    "encode": _encode,
    "index": _index,
    "eval": _eval,
}
