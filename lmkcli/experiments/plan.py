"""Plans: the cells of a grid and the steps that they share; senseless cells are refused with a reason."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from lmkcli.errors import DataError, LmkError, UnknownName, UsageError
from lmkcli.experiments.cells import Cell, cells
from lmkcli.experiments.gridfile import COLLECTION, MEASURES, GridFile, TableChoice
from lmkcli.experiments.steps import OUTPUTS, Chain, Step
from lmkcli.manifest_types import MOST_SHARDS
from lmkcli.reading import read_json
from lmkcli.spec.operation import operation_kind
from lmkcli.system.atomic import atomic_file

Check = Callable[
    [Step], None
]  # raises the errors of the operation that can be known before it runs
NAME = "plan.json"
_AGAIN = "run lmk grid again"


@dataclass(frozen=True)
class Refused:
    """A cell that has no sense, and why."""

    cell: str
    why: str


@dataclass(frozen=True)
class Plan:
    """Cells in their order, each with the keys of its steps; the last of them scores it."""

    cells: list[Cell]
    chains: dict[str, tuple[str, ...]]
    steps: dict[str, Step]
    refused: list[Refused]
    table: TableChoice = field(default_factory=TableChoice)
    file: str = ""  # that it was made of

    def uses(self) -> Counter[str]:
        """Key -> how many cells a step serves."""
        return Counter(key for chain in self.chains.values() for key in chain)

    def only(self, names: Sequence[str]) -> "Plan":
        """The part of it that makes cells of these names, in which '*' stands for anything.

        UsageError where no cell has such a name.
        """
        chosen = [each for each in self.cells if any(fnmatchcase(each.name, n) for n in names)]
        if not chosen:
            known = ", ".join(each.name for each in self.cells[:10])
            more = " …" if len(self.cells) > 10 else ""
            raise UsageError(f"no cell is called {' or '.join(names)}; cells are {known}{more}")
        chains = {each.name: self.chains[each.name] for each in chosen}
        keys = {key for chain in chains.values() for key in chain}
        steps = {key: step for key, step in self.steps.items() if key in keys}
        return Plan(chosen, chains, steps, [], self.table, self.file)

    def write(self, folder: Path) -> None:
        """Keep it in the folder of the results, where `read` finds it."""
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / NAME) as temporary:
            text = json.dumps(self._as_json(), indent=1, ensure_ascii=False)
            temporary.write_text(text, encoding="utf-8")

    def _as_json(self) -> dict[str, Any]:
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
    """The plan of a grid whose results go to `folder`; nothing is read but names and model folders.

    Tokens are a step of their own where more than one encoding reads them. UsageError when every cell
    is refused; UnknownName and DataError for what is not there.
    """
    drafts: list[_Draft] = []
    refused: list[Refused] = []
    checked: dict[str, LmkError | None] = {}
    for cell in cells(grid):
        try:
            drafts.append(_draft(cell, Chain(cell, folder, grid.shards), check, checked))
        except (UnknownName, DataError):  # a slip of the pen, not a cell without a meaning
            raise
        except LmkError as error:
            refused.append(Refused(cell.name, str(error)))
    if not drafts:
        reasons = (
            "; ".join(dict.fromkeys(each.why for each in refused)) or "its axes have no values"
        )
        raise UsageError(f"the grid has no cell that makes sense: {reasons}")
    return _joined(drafts, refused, grid.table)


class _Draft(NamedTuple):
    """A cell with its chain, and the encoding of documents in it, if there is one."""

    cell: Cell
    chain: Chain
    encodes: str


def _draft(cell: Cell, chain: Chain, check: Check, checked: dict[str, LmkError | None]) -> _Draft:
    """A cell whose commands accept their words; each step is asked about once."""
    steps = chain.steps()
    for step in steps:
        if step.key not in checked:
            checked[step.key] = _fault(step, check)
        if fault := checked[step.key]:
            raise fault
    return _Draft(cell, chain, next((step.key for step in steps if step.verb == "encode"), ""))


def _fault(step: Step, check: Check) -> LmkError | None:
    try:
        check(step)
    except LmkError as error:
        return error
    return None


def _joined(drafts: list[_Draft], refused: list[Refused], table: TableChoice) -> Plan:
    """The plan in which each step is there once, and tokens where two encodings or more read them."""
    read = {(each.chain.tokens.key, each.encodes) for each in drafts if each.chain.tokens}
    readers = Counter(tokens for tokens, _ in read)
    chains: dict[str, tuple[str, ...]] = {}
    steps: dict[str, Step] = {}
    for cell, chain, _ in drafts:
        tokens = chain.tokens if chain.tokens and readers[chain.tokens.key] > 1 else None
        needed = [*([tokens] if tokens else []), *chain.steps(tokens)]
        steps |= {step.key: steps.get(step.key, step) for step in needed}
        chains[cell.name] = tuple(step.key for step in needed)
    return Plan([each.cell for each in drafts], chains, steps, refused, table)


def is_there(folder: Path) -> bool:
    """Whether `lmk grid`, of this version or another, left a plan in a folder."""
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
    """What `plan.json` contains."""

    cells: list[Cell]
    chains: dict[str, tuple[str, ...]]
    steps: dict[str, _StoredStep]
    refused: list[Refused]
    table: NotRequired[TableChoice]
    file: NotRequired[str]


def read(folder: Path) -> Plan:
    """The plan that `lmk grid` left in a folder of results; DataError where there is none."""
    try:
        stored: Any = read_json(folder / NAME, _Stored, _AGAIN)
    except FileNotFoundError:
        raise DataError(f"{folder} has no {NAME}: it is no folder of results; {_AGAIN}") from None
    try:
        plan = Plan(
            [Cell(each["name"], _tuples(each["values"])) for each in stored["cells"]],
            _tuples(stored["chains"]),
            {key: _step(step) for key, step in stored["steps"].items()},
            [Refused(**each) for each in stored["refused"]],
            TableChoice(**_tuples(stored.get("table", {}))),
            stored.get("file", ""),
        )
    except DataError as error:
        raise DataError(f"{folder / NAME} cannot be read ({error}); {_AGAIN}") from error
    if fault := _misfit(plan):
        raise DataError(f"{folder / NAME} cannot be read ({fault}); {_AGAIN}")
    return plan


def _step(stored: _StoredStep) -> Step:
    operation = operation_kind(stored["operation"]).from_json(stored["operation"])
    return Step(stored["key"], operation, tuple(stored["needs"]), stored["shards"])


def _misfit(plan: Plan) -> str:
    """What in a plan is not as `lmk grid` writes it; empty if all is."""
    axes = {frozenset(cell.values) for cell in plan.cells}
    if len(axes) != 1 or not next(iter(axes)) >= {COLLECTION, MEASURES}:
        return "its cells have not the same axes"
    for key, step in plan.steps.items():
        named = step.key == key and re.fullmatch(rf"{re.escape(step.verb)}-\w+", key)
        if not named or step.verb not in OUTPUTS:  # a key is the name of a folder
            return f"steps[{key}] is none"
        if step.shards not in range(1, MOST_SHARDS + 1):
            return f"steps[{key}].shards is {step.shards}, which cannot be"
    chains = [plan.chains.get(cell.name, ()) for cell in plan.cells]
    needed = {
        key for keys in (*chains, *(step.needs for step in plan.steps.values())) for key in keys
    }
    return "" if all(chains) and needed <= plan.steps.keys() else "it lacks steps of its cells"


def _tuples(raw: dict[str, Any]) -> dict[str, Any]:
    """The same with tuples in the place of lists, which JSON has alone."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
