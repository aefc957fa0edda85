"""Functions and modules of installed Python code: collections without a network.

A query is the first sentence of a public function's docstring, its answer the function's source
(…/functions) or the whole module's (…/modules), both without those docstrings. The code is that of the
standard library (stdlib/…) or of an installed package (python/PACKAGE/…). Nothing is imported or run,
and the result depends on the version of that code alone.
"""

import ast
import importlib.metadata
import importlib.util
import io
import os
import platform
import re
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.errors import DataError, UnknownName, UsageError

VIEWS = ("functions", "modules")
SKIPPED = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages"}
SKIPPED |= {"vendor", "_vendor", "_vendored", "extern", "externals"}  # other people's packages
MIN_WORDS = 4


class Tree(NamedTuple):
    """Where a library's files lie, and what their names begin with.

    A package keeps most of its public functions in modules with an underscore (sklearn.svm._base), the
    standard library none: `private` says whether such modules are read. `packages` are the only ones of
    its root that are; none means all.
    """

    root: Path
    prefix: str = ""
    private: bool = False
    packages: frozenset[str] = frozenset()


def open_stdlib(name: str, options: dict[str, str]) -> "PythonCollection":
    """'stdlib/functions' or 'stdlib/modules'; UnknownName for another.

    The option `package` names packages or modules, such as 'json+email', that are read alone;
    UnknownName for one that the standard library does not have.
    """
    check_options(name, options, ("package",))
    if name not in (known := [f"stdlib/{view}" for view in VIEWS]):
        raise UnknownName("collection", name, known)
    chosen = frozenset(options["package"].split("+") if "package" in options else ())
    for package in sorted(chosen - sys.stdlib_module_names):
        raise UnknownName("package", package, sys.stdlib_module_names)
    tree = Tree(Path(sysconfig.get_paths()["stdlib"]), packages=chosen)
    settings = {"python": platform.python_version(), **options}
    return PythonCollection(spell(name, options), tree, settings)


def open_package(name: str, options: dict[str, str]) -> "PythonCollection":
    """'python/PACKAGE/functions' or 'python/PACKAGE/modules' of what Python could import as PACKAGE.

    UnknownName for another view, DataError for a package that is not installed, UsageError for one of
    the standard library's. There are no options.
    """
    check_options(name, options, ())
    _, package, view = (*name.split("/", 2), "", "")[:3]
    if view not in VIEWS:
        raise UnknownName("collection", name, [f"python/{package}/{known}" for known in VIEWS])
    return PythonCollection(name, installed(package), {"version": _version(package)})


def installed(package: str) -> Tree:
    """The files of an installed package, or of a module that is one file. Nothing is imported."""
    if package in sys.stdlib_module_names:
        raise UsageError(
            f"python/{package}: {package} belongs to the standard library; its functions are in "
            "stdlib/functions"
        )
    # The parents of a dotted name would be imported.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    folders = list(spec.submodule_search_locations or []) if spec else []
    if spec is None or not (folders or spec.origin):
        raise DataError(
            f"python/{package}: this Python has no package of that name; write the name that is "
            f"imported, or install it: {sys.executable} -m pip install {package or 'PACKAGE'}"
        )
    return Tree(Path(folders[0] if folders else str(spec.origin)), package, private=True)


def _version(package: str) -> str:
    """Of the distribution that brought the package; empty for a folder that none brought."""
    names = importlib.metadata.packages_distributions().get(package, [])
    return importlib.metadata.version(names[0]) if names else ""


class PythonCollection(Collection):
    """One of the two views of a library."""

    def __init__(self, name: str, tree: Tree, settings: dict[str, str]) -> None:
        self.name = name
        self.settings = settings
        self._tree = tree
        self._whole = name.partition(",")[0].endswith("/modules")

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        docs = list(self._texts().values())
        mine = shard.rows(len(docs))
        return CountedDocs(lambda: iter(docs[mine.start : mine.stop]), len(mine))

    def queries(self) -> Iterator[Query]:
        return (Query(function.id, function.sentence) for function in asked(self._tree))

    def qrels(self) -> Iterator[Qrel]:
        texts, modules = self._texts(), read_modules(self._tree)
        for function in asked(self._tree):
            text = modules[function.module].text if self._whole else function.source
            yield Qrel(function.id, texts[text].id, 1)

    def _texts(self) -> dict[str, Doc]:
        """Text -> document. Of documents with the same text the first stands for all."""
        texts: dict[str, Doc] = {}
        for module in read_modules(self._tree).values():
            parts = [(module.name, module.text)] if self._whole else module.functions
            for name, text in ((part[0], part[-1]) for part in parts):
                texts.setdefault(text, Doc(name, text))
        return texts


class Function(NamedTuple):
    """A public function or method with a docstring: its id is its dotted name."""

    id: str
    module: str
    sentence: str
    source: str


class Module(NamedTuple):
    """A public module: its source without the docstrings of its `functions`."""

    name: str
    text: str
    functions: list[Function]


def asked(tree: Tree) -> list[Function]:
    """The functions whose sentence can be asked: long enough, and of no other function."""
    functions = [each for module in read_modules(tree).values() for each in module.functions]
    times = Counter(function.sentence for function in functions)
    return [
        function
        for function in functions
        if times[function.sentence] == 1 and len(function.sentence.split()) >= MIN_WORDS
    ]


@cache
def read_modules(tree: Tree) -> dict[str, Module]:
    """Every public module that parses, by name, in the order of their paths."""
    modules = [_module(path, name) for path, name in _walk(tree)]
    by_name = {module.name: module for module in modules if module and module.text.strip()}
    if not by_name:
        if tree.packages:
            named = "+".join(sorted(tree.packages))
            raise DataError(f"package={named}: nothing public in Python there; name other packages")
        raise DataError(f"{tree.root}: no Python sources there; install what ships them")
    return by_name


def _walk(tree: Tree) -> Iterator[tuple[Path, str]]:
    if tree.root.is_file():
        yield tree.root, tree.prefix
    for folder, folders, files in os.walk(tree.root):
        # A folder that is no package holds data, or installed packages.
        folders[:] = sorted(
            name
            for name in folders
            if _read(name, tree) and Path(folder, name, "__init__.py").exists()
        )
        if tree.packages and Path(folder) == tree.root:
            folders[:] = [name for name in folders if name in tree.packages]
            files = [name for name in files if name.partition(".")[0] in tree.packages]
        for file in sorted(files):
            parts = (Path(folder) / file).relative_to(tree.root).with_suffix("").parts
            parts = (tree.prefix, *parts) if tree.prefix else parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if file.endswith(".py") and parts and _read(parts[-1], tree):
                yield Path(folder) / file, ".".join(parts)


def _read(name: str, tree: Tree) -> bool:
    """Whether a module or folder of that name is."""
    return name.isidentifier() and name not in SKIPPED and (tree.private or _public(name))


def _public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _module(path: Path, name: str) -> Module | None:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    lines = io.StringIO(source).readlines()  # as ast counts them; form feeds end no line
    functions: dict[str, Function] = {}
    holes: set[int] = set()
    for prefix, node in _documented(tree, name):
        first, last = _span(node.body[0])
        holes.update(range(first, last))
        start = min([node.lineno, *(item.lineno for item in node.decorator_list)]) - 1
        text = "".join(lines[start:first] + lines[last : node.end_lineno])
        function = Function(f"{prefix}.{node.name}", name, _sentence(node), textwrap.dedent(text))
        functions.setdefault(function.id, function)
    text = "".join(line for number, line in enumerate(lines) if number not in holes)
    return Module(name, text, list(functions.values()))


Definition = ast.FunctionDef | ast.AsyncFunctionDef


def _documented(tree: ast.Module, name: str) -> Iterator[tuple[str, Definition]]:
    """Public functions, and methods of public classes, that have a docstring and a body besides."""
    scopes: list[tuple[str, list[ast.stmt]]] = [(name, tree.body)]
    scopes += [
        (f"{name}.{node.name}", node.body)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and _public(node.name)
    ]
    for prefix, body in scopes:
        for node in body:
            if (
                isinstance(node, Definition)
                and _public(node.name)
                and len(node.body) > 1
                and ast.get_docstring(node)
                and node.body[0].lineno > node.lineno
            ):
                yield prefix, node


def _span(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, from zero, the last exclusive."""
    return node.lineno - 1, node.end_lineno or node.lineno


def _sentence(node: Definition) -> str:
    paragraph = (ast.get_docstring(node) or "").split("\n\n")[0]
    return re.split(r"(?<=[.!?])\s", " ".join(paragraph.split()), maxsplit=1)[0]
