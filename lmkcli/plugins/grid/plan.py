"""Plans: the cells of a grid, their shared steps, and checks before a step runs."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from lmkcli import catalog
from lmkcli.catalog import engine_row
from lmkcli.errors import DataError, LmkError, UnknownName, UsageError
from lmkcli.plugins.grid.gridfile import (
    COLLECTION,
    MEASURES,
    GridCell,
    GridFile,
    TableChoice,
    cells,
)
from lmkcli.plugins.grid.steps import OUTPUTS, CellSteps, GridStep, local_model
from lmkcli.spec.operation import operation_kind
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.spec.values import MOST_SHARDS
from lmkcli.system.atomic import atomic_file, make_folder
from lmkcli.system.input_files import read_json

# Raises the errors of an operation that are known before it runs, given the step before it (`check_step`)
Check = Callable[[GridStep, GridStep | None], None]
NAME = "plan.json"
_AGAIN = "run lmk grid again"


@dataclass(frozen=True)
class Refused:
    """A cell with settings that do not fit together, and the reason."""

    cell: str
    why: str


@dataclass(frozen=True)
class Plan:
    """The cells in order, and for each the keys of its steps; the last step scores the cell."""

    cells: list[GridCell]
    chains: dict[str, tuple[str, ...]]
    steps: dict[str, GridStep]
    refused: list[Refused]
    table: TableChoice = field(default_factory=TableChoice)
    file: str = ""  # the grid file

    def uses(self) -> Counter[str]:
        """Key of each step -> number of its cells."""
        return Counter(key for chain in self.chains.values() for key in chain)

    def only(self, names: Sequence[str]) -> "Plan":
        """Return the plan of the cells with these names, which may have the wildcard '*'.

        UsageError if no cell has such a name.
        """
        chosen = [each for each in self.cells if any(fnmatchcase(each.name, n) for n in names)]
        if not chosen:
            known = ", ".join(each.name for each in self.cells[:10])
            more = " …" if len(self.cells) > 10 else ""
            raise UsageError(f"no cell is named {' or '.join(names)}; cells are {known}{more}")
        chains = {each.name: self.chains[each.name] for each in chosen}
        keys = {key for chain in chains.values() for key in chain}
        steps = {key: step for key, step in self.steps.items() if key in keys}
        return Plan(chosen, chains, steps, [], self.table, self.file)

    def write(self, folder: Path) -> None:
        """Write it to the folder of results, for `read`."""
        make_folder(folder)
        with atomic_file(folder / NAME) as temporary:
            text = json.dumps(self._as_json(), indent=1, ensure_ascii=False)
            temporary.write_text(text, encoding="utf-8")

    def _as_json(self) -> dict[str, Any]:
        """Return the contents of plan.json (`_Stored`)."""
        steps = {
            key: {
                "key": key,
                "operation": step.operation.as_json(),
                "needs": step.needs,
                "shards": step.shards,
            }
            for key, step in self.steps.items()
        }
        return {
            "cells": [asdict(cell) for cell in self.cells],
            "chains": self.chains,
            "steps": steps,
            "refused": [asdict(each) for each in self.refused],
            "table": asdict(self.table),
            "file": self.file,
        }


def plan(grid: GridFile, folder: Path, check: Check) -> Plan:
    """Plan a grid with results in `folder`; only names and model folders are read.

    Each step is checked once. A cell with a refused step is refused. UsageError if all cells are refused;
    UnknownName and DataError for unknown or unreadable inputs.
    """
    errors: dict[str, LmkError | None] = {}  # key of a checked step -> its error
    made: dict[Any, GridStep] = {}
    chains: list[tuple[GridCell, CellSteps]] = []
    refused: list[Refused] = []
    for cell in cells(grid):
        try:
            chain = CellSteps(cell, folder, grid.shards, made)
            before: GridStep | None = None  # its key is in the key of the step
            for step in chain.steps:
                if step.key not in errors:
                    errors[step.key] = _error(step, before, check)
                if error := errors[step.key]:
                    raise error
                before = step
            chains.append((cell, chain))
        except (
            UnknownName,
            DataError,
        ):  # a mistake in the file, which concerns more than this cell
            raise
        except LmkError as error:
            refused.append(Refused(cell.name, str(error)))
    if not chains:
        reasons = (
            "; ".join(dict.fromkeys(each.why for each in refused)) or "its axes have no values"
        )
        raise UsageError(f"the grid has no valid cell: {reasons}")
    return _share(chains, refused, grid.table)


def _error(step: GridStep, before: GridStep | None, check: Check) -> LmkError | None:
    try:
        check(step, before)
    except LmkError as error:
        return error
    return None


def _share(
    chains: list[tuple[GridCell, CellSteps]], refused: list[Refused], table: TableChoice
) -> Plan:
    """Return the plan with each step once. If several encodings read the same tokens, they share a step."""
    readers: dict[str, set[str]] = {}  # key of tokens -> keys of the encodings
    for _, chain in chains:
        if chain.tokens:
            encodings = {step.key for step in chain.steps if step.verb == "encode"}
            readers.setdefault(chain.tokens.key, set()).update(encodings)
    keys: dict[str, tuple[str, ...]] = {}
    steps: dict[str, GridStep] = {}
    for cell, chain in chains:
        tokens = chain.tokens if chain.tokens and len(readers[chain.tokens.key]) > 1 else None
        needed = [tokens, *chain.reading(tokens)] if tokens else chain.steps
        for step in needed:
            steps.setdefault(step.key, step)
        keys[cell.name] = tuple(step.key for step in needed)
    return Plan([cell for cell, _ in chains], keys, steps, refused, table)


def has_plan(folder: Path) -> bool:
    """Return whether a folder has a plan of `lmk grid`, of this version or another."""
    try:
        stored = read_json(folder / NAME, dict[str, Any], _AGAIN)
    except (DataError, OSError):
        return False
    return stored.keys() >= {"cells", "chains", "steps"}


class _StoredStep(TypedDict):
    """A step in `plan.json`."""

    key: str
    operation: dict[str, Any]
    needs: list[str]
    shards: int


class _Stored(TypedDict):
    """The contents of `plan.json`."""

    cells: list[GridCell]
    chains: dict[str, tuple[str, ...]]
    steps: dict[str, _StoredStep]
    refused: list[Refused]
    table: NotRequired[TableChoice]
    file: NotRequired[str]


def read(folder: Path) -> Plan:
    """Return the plan in a folder of results; DataError if there is none."""
    try:
        stored: Any = read_json(folder / NAME, _Stored, _AGAIN)
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no {NAME}: it is not a folder of results; {_AGAIN}"
        ) from None
    try:
        plan = Plan(
            [GridCell(each["name"], _tuples(each["values"])) for each in stored["cells"]],
            _tuples(stored["chains"]),
            {key: _step(step) for key, step in stored["steps"].items()},
            [Refused(**each) for each in stored["refused"]],
            TableChoice(**_tuples(stored.get("table", {}))),
            stored.get("file", ""),
        )
    except (DataError, TypeError) as error:  # a TypeError names an unknown key
        raise DataError(f"{folder / NAME} cannot be read ({error}); {_AGAIN}") from error
    if problem := _problem(plan):
        raise DataError(f"{folder / NAME} cannot be read ({problem}); {_AGAIN}")
    return plan


def _step(stored: _StoredStep) -> GridStep:
    operation = operation_kind(stored["operation"]).from_json(stored["operation"])
    return GridStep(stored["key"], operation, tuple(stored["needs"]), stored["shards"])


def _problem(plan: Plan) -> str:
    """Return the problem with a plan that `lmk grid` did not write; empty if there is none."""
    axes = {frozenset(cell.values) for cell in plan.cells}
    if len(axes) != 1 or not next(iter(axes)) >= {COLLECTION, MEASURES}:
        return "its cells have different axes"
    for key, step in plan.steps.items():
        named = step.key == key and re.fullmatch(rf"{re.escape(step.verb)}-\w+", key)
        if not named or step.verb not in OUTPUTS:  # a key is the name of a folder
            return f"steps[{key}] is not a step"
        if step.shards not in range(1, MOST_SHARDS + 1):
            return f"steps[{key}].shards is {step.shards}, outside of 1 to {MOST_SHARDS}"
    chains = [plan.chains.get(cell.name, ()) for cell in plan.cells]
    needed = {
        key for keys in (*chains, *(step.needs for step in plan.steps.values())) for key in keys
    }
    return "" if all(chains) and needed <= plan.steps.keys() else "it has cells without their steps"


def _tuples(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the values with tuples instead of the lists of JSON."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}


def check_step(step: GridStep, before: GridStep | None) -> None:
    """Raise UsageError, UnknownName or DataError if the command of a step would refuse its settings.

    `before` is the previous step of the cell: an index must fit the vectors of its encoding. The operation
    has checked its own settings. Nothing is downloaded: a model is checked only if it is on this machine.
    """
    operation: Any = step.operation
    try:
        if step.verb in ("pretrain", "train"):
            from lmkcli.encoding.resolution import check_grans

            check_grans(operation.part(RecipeOptions))
        elif step.verb == "encode":
            _check_encoding(operation, step)
        elif step.verb == "index" and catalog.is_lexical(operation.kind):
            _check_collection(operation.source)
        elif step.verb == "index" and before and before.verb == "encode":
            _check_index(operation, before)
        elif step.verb == "eval":
            _check_measures(tuple(operation.measure))
    except UnknownName:
        raise
    except DataError as error:
        raise DataError(f"lmk {step.verb}: {error}") from error
    except LmkError as error:
        raise UsageError(f"lmk {step.verb}: {error}") from error


def _check_encoding(operation: Any, step: GridStep) -> None:
    from lmkcli.encoding.resolution import check_options

    check_options(operation.part(RecipeOptions))
    _recipe(operation, step)
    _check_collection(operation.source)


def _recipe(operation: Any, step: GridStep) -> Recipe | None:
    """Return the recipe of an encoding; None if its model is not on this machine."""
    from lmkcli.encoding.resolution import resolve
    from lmkcli.models.model_folder import TRAINED

    options = operation.part(RecipeOptions)
    # A model of many steps is read once. A model that a step trains may be made while the grid runs.
    folder = None if step.trained else local_model(options.model, options.revision or "")
    if folder or (step.trained and (Path(options.model) / TRAINED).is_file()):
        return resolve(options, offline=True, folder=folder).recipe
    return None


def unfit_poolers(plan: Plan) -> list[str]:
    """Return a note per model of this machine that the encodings or trainings of a plan
    give other poolers.
    """
    from lmkcli.encoding import resolution

    pools: dict[tuple[str, str], list[str]] = {}
    for step in plan.steps.values():
        if step.verb in ("encode", "train") and not step.trained:
            options = step.operation.part(RecipeOptions)
            pools.setdefault((options.model, options.revision or ""), []).append(options.pool)
    notes = []
    for (model, revision), asked in pools.items():
        folder = local_model(model, revision)
        notes += resolution.unfit_poolers(folder, asked) if folder else []
    return notes


def _check_index(operation: Any, encoding: GridStep) -> None:
    """UsageError for an index over vectors that it cannot hold."""
    from lmkcli.encoding.resolution import representation_of

    recipe = _recipe(encoding.operation, encoding)
    if recipe is None:
        return
    made, needed = representation_of(recipe.doc.pool).kind, engine_row(operation.kind).takes
    if made != needed:
        raise UsageError(
            f"--kind {operation.kind} needs {needed} vectors, and --pool {recipe.doc.pool} makes {made} ones"
        )
    if operation.muvera and recipe.doc.unit == "doc":
        raise UsageError("--muvera has no effect with --unit doc: each document has one vector")


@cache
def _check_measures(names: tuple[str, ...]) -> None:
    from lmkcli.evaluation.measures import parse_measures

    parse_measures(names)


@cache
def _check_collection(spelling: str) -> None:
    """UnknownName for an unknown collection. A known collection need not be on this machine."""
    from lmkcli.data import known_collections
    from lmkcli.data.collection import open_collection

    if known_collections.facts_of(spelling) is None:
        open_collection(spelling)
