"""Functions and modules of installed Python code: collections that need no network.

A query is the first sentence of a public function's docstring. Its relevant document is the source of the
function (…/functions) or of the whole module (…/modules), both without those docstrings. The code is the
standard library (stdlib/…) or an installed package (python/PACKAGE/…). lmk does not import or run the code.
The result depends only on the version of the code.
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
from collections.abc import Iterator, Mapping
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
from lmkcli.text.formatting import shell_line

VIEWS = ("functions", "modules")
SKIPPED = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages"}
SKIPPED |= {"vendor", "_vendor", "_vendored", "extern", "externals"}  # copies of other packages
MIN_WORDS = 4  # of a query


class Tree(NamedTuple):
    """The source files of a library."""

    root: Path
    """The folder, or the single file of the library."""
    prefix: str = ""
    """The package name at the start of all dotted names; empty for the standard library."""
    private: bool = False
    """Whether modules with an underscore are read. Packages keep most public functions in such modules
    (sklearn.svm._base); the standard library does not."""
    packages: frozenset[str] = frozenset()
    """The packages and modules of the root that are read; empty for all."""


def open_stdlib(name: str, options: dict[str, str]) -> "PythonCollection":
    """Open 'stdlib/functions' or 'stdlib/modules'.

    The option `package` restricts the collection to some packages or modules, such as 'json+email'. Raises
    UnknownName for other names and for packages that the standard library does not have.
    """
    check_options(name, options, ("package",))
    if name not in (known := [f"stdlib/{view}" for view in VIEWS]):
        raise UnknownName("collection", name, known)
    packages = frozenset(options["package"].split("+") if "package" in options else ())
    for package in sorted(packages - sys.stdlib_module_names):
        raise UnknownName("package", package, sys.stdlib_module_names)
    tree = Tree(Path(sysconfig.get_paths()["stdlib"]), packages=packages)
    settings = {"python": platform.python_version(), **options}
    return PythonCollection(spell(name, options), tree, settings)


def open_package(name: str, options: dict[str, str]) -> "PythonCollection":
    """Open 'python/PACKAGE/functions' or 'python/PACKAGE/modules' for an importable PACKAGE. No options.

    Raises UnknownName for another view, DataError for a package that is not installed, UsageError for a
    package of the standard library.
    """
    check_options(name, options, ())
    _, package, view = (*name.split("/", 2), "", "")[:3]
    if view not in VIEWS:
        raise UnknownName("collection", name, [f"python/{package}/{known}" for known in VIEWS])
    distributions = _distributions(tuple(sys.path)).get(package, [])
    version = importlib.metadata.version(distributions[0]) if distributions else ""
    return PythonCollection(name, package_tree(package), {"version": version})


@cache
def _distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Map the importable packages of sys.path to their distributions. This reads all metadata (0.3 s)."""
    return importlib.metadata.packages_distributions()


def package_tree(package: str) -> Tree:
    """Return the source files of an installed package or of a single-file module. Nothing is imported."""
    if package in sys.stdlib_module_names:
        raise UsageError(
            f"python/{package}: {package} belongs to the standard library; its functions are in "
            "stdlib/functions"
        )
    # find_spec would import the parents of a dotted name.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    folders = list(spec.submodule_search_locations or []) if spec else []
    if spec is None or not (folders or spec.origin):
        install = shell_line(sys.executable, "-m", "pip", "install", package or "PACKAGE")
        raise DataError(
            f"python/{package}: this Python has no package of that name; write the name in its import "
            f"statement, or install it: {install}"
        )
    return Tree(Path(folders[0] if folders else str(spec.origin)), package, private=True)


class PythonCollection(Collection):
    """One of the two views of a library: functions or modules."""

    def __init__(self, name: str, tree: Tree, settings: dict[str, str]) -> None:
        self.name = name
        self.settings = settings
        self._tree = tree
        self._whole_modules = name.partition(",")[0].endswith("/modules")

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        docs = list(self._texts().values())
        rows = shard.rows(len(docs))
        return CountedDocs(lambda: iter(docs[rows.start : rows.stop]), len(rows))

    def queries(self) -> Iterator[Query]:
        return (Query(function.id, function.sentence) for function in query_functions(self._tree))

    def qrels(self) -> Iterator[Qrel]:
        texts, modules = self._texts(), read_modules(self._tree)
        for function in query_functions(self._tree):
            text = modules[function.module].text if self._whole_modules else function.source
            yield Qrel(function.id, texts[text].id, 1)

    def _texts(self) -> dict[str, Doc]:
        """Text -> document. Several functions with the same text give one document, with the first id."""
        texts: dict[str, Doc] = {}
        for module in read_modules(self._tree).values():
            if self._whole_modules:
                texts.setdefault(module.text, Doc(module.name, module.text))
                continue
            for function in module.functions:
                texts.setdefault(function.source, Doc(function.id, function.source))
        return texts


class Function(NamedTuple):
    """A public function or method with a docstring."""

    id: str
    """The dotted name."""
    module: str
    sentence: str
    """The first sentence of the docstring."""
    source: str
    """The source without the docstring."""


class Module(NamedTuple):
    """A public module."""

    name: str
    text: str
    """The source without the docstrings of `functions`."""
    functions: list[Function]


def query_functions(tree: Tree) -> list[Function]:
    """Return the functions with a query: the first sentence is long enough, and no other function has it."""
    functions = [each for module in read_modules(tree).values() for each in module.functions]
    times = Counter(function.sentence for function in functions)
    return [
        function
        for function in functions
        if times[function.sentence] == 1 and len(function.sentence.split()) >= MIN_WORDS
    ]


@cache
def read_modules(tree: Tree) -> dict[str, Module]:
    """Name -> public module, in the order of their paths. Modules that Python cannot parse are skipped."""
    modules = [_parse_module(path, name) for path, name in _walk(tree)]
    by_name = {module.name: module for module in modules if module and module.text.strip()}
    if not by_name:
        if tree.packages:
            packages = "+".join(sorted(tree.packages))
            raise DataError(
                f"package={packages}: it has no public Python code; name other packages"
            )
        raise DataError(f"{tree.root}: no Python sources in it; install a Python with its sources")
    return by_name


def _walk(tree: Tree) -> Iterator[tuple[Path, str]]:
    """Yield the path and the dotted name of every module that is read."""
    if tree.root.is_file():
        yield tree.root, tree.prefix
    for folder, folders, files in os.walk(tree.root):
        # A folder that is not a package contains data or installed packages.
        folders[:] = sorted(
            name
            for name in folders
            if _is_read(name, tree) and Path(folder, name, "__init__.py").exists()
        )
        if tree.packages and Path(folder) == tree.root:
            folders[:] = [name for name in folders if name in tree.packages]
            files = [name for name in files if name.partition(".")[0] in tree.packages]
        for file in sorted(files):
            parts = (Path(folder) / file).relative_to(tree.root).with_suffix("").parts
            parts = (tree.prefix, *parts) if tree.prefix else parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if file.endswith(".py") and parts and _is_read(parts[-1], tree):
                yield Path(folder) / file, ".".join(parts)


def _is_read(name: str, tree: Tree) -> bool:
    """Return whether a module or package of this name is read."""
    return name.isidentifier() and name not in SKIPPED and (tree.private or _public(name))


def _public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _parse_module(path: Path, name: str) -> Module | None:
    """Parse a module; None if it is not valid Python or not UTF-8."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = io.StringIO(source).readlines()  # counted as in ast: a form feed does not end a line
    functions: dict[str, Function] = {}
    docstring_lines: set[int] = set()
    for prefix, node in _documented(tree, name):
        # The lines [first, last) of the docstring, counted from zero.
        first, last = node.body[0].lineno - 1, node.body[0].end_lineno or node.body[0].lineno
        docstring_lines.update(range(first, last))
        start = min([node.lineno, *(item.lineno for item in node.decorator_list)]) - 1
        text = "".join(lines[start:first] + lines[last : node.end_lineno])
        paragraph = (ast.get_docstring(node) or "").split("\n\n")[0]
        sentence = re.split(r"(?<=[.!?])\s", " ".join(paragraph.split()), maxsplit=1)[0]
        function = Function(f"{prefix}.{node.name}", name, sentence, textwrap.dedent(text))
        functions.setdefault(function.id, function)
    text = "".join(line for number, line in enumerate(lines) if number not in docstring_lines)
    return Module(name, text, list(functions.values()))


Definition = ast.FunctionDef | ast.AsyncFunctionDef


def _documented(tree: ast.Module, name: str) -> Iterator[tuple[str, Definition]]:
    """Public functions, and methods of public classes, with a docstring and at least one more statement.

    Yields the dotted name of the module or class, and the node.
    """
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
