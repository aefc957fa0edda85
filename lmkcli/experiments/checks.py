"""Checks of a grid's steps before anything runs: names that are unknown, recipes that no model allows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmkcli import catalog
from lmkcli.errors import DataError, LmkError, UnknownName, UsageError
from lmkcli.experiments.steps import Step
from lmkcli.recipe import RecipeOptions


def check(step: Step) -> None:
    """Raise UsageError, UnknownName or DataError for a step that its command would refuse.

    Nothing is downloaded: checks that need a model are made if the model is on this machine.
    """
    try:
        if further := _CHECKS.get(step.verb):
            further(step.operation, step)
    except UnknownName:
        raise
    except DataError as error:
        raise DataError(f"lmk {step.verb}: {error}") from error
    except LmkError as error:
        raise UsageError(f"lmk {step.verb}: {error}") from error


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
