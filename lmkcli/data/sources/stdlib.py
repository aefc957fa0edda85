"""Functions and modules of the installed Python's standard library: a collection without a network.

A query is the first sentence of a public function's docstring, its answer the function's source
(stdlib/functions) or the whole module's (stdlib/modules), both without those docstrings. Nothing is
imported or run, and the result depends on the Python version alone.
"""

import ast
import io
import os
import platform
import re
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
)
from lmkcli.errors import DataError, UnknownName

NAMES = ("stdlib/functions", "stdlib/modules")
SKIPPED = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages"}
MIN_WORDS = 4


def open_stdlib(name: str, options: dict[str, str]) -> "StdlibCollection":
    """'stdlib/functions' or 'stdlib/modules'; UnknownName for another. There are no options."""
    check_options(name, options, ())
    if name not in NAMES:
        raise UnknownName("collection", name, NAMES)
    return StdlibCollection(name)


class StdlibCollection(Collection):
    """One of the two views of the standard library."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings = {"python": platform.python_version()}

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        docs = list(self._texts().values())
        mine = shard.rows(len(docs))
        return CountedDocs(lambda: iter(docs[mine.start : mine.stop]), len(mine))

    def queries(self) -> Iterator[Query]:
        return (Query(function.id, function.sentence) for function in _asked())

    def qrels(self) -> Iterator[Qrel]:
        texts = self._texts()
        for function in _asked():
            text = function.source if self.name == NAMES[0] else _modules()[function.module].text
            yield Qrel(function.id, texts[text].id, 1)

    def _texts(self) -> dict[str, Doc]:
        """Text -> document. Of documents with the same text the first stands for all."""
        texts: dict[str, Doc] = {}
        if self.name == NAMES[0]:
            for function in _functions():
                texts.setdefault(function.source, Doc(function.id, function.source))
        else:
            for module in _modules().values():
                texts.setdefault(module.text, Doc(module.name, module.text))
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


def _functions() -> Iterator[Function]:
    return (function for module in _modules().values() for function in module.functions)


def _asked() -> list[Function]:
    """The functions whose sentence can be asked: long enough, and of no other function."""
    times = Counter(function.sentence for function in _functions())
    return [
        function
        for function in _functions()
        if times[function.sentence] == 1 and len(function.sentence.split()) >= MIN_WORDS
    ]


@cache
def _modules() -> dict[str, Module]:
    """Every public module that parses, by name, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = [_module(path, name) for path, name in _walk(root)]
    found = {module.name: module for module in modules if module and module.text.strip()}
    if not found:
        raise DataError(f"{root}: no library sources there; use a Python that ships them")
    return found


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    for folder, folders, files in os.walk(root):
        # A folder that is no package holds data, or installed packages.
        folders[:] = sorted(
            name
            for name in folders
            if _public(name) and name not in SKIPPED and Path(folder, name, "__init__.py").exists()
        )
        for file in sorted(files):
            parts = (Path(folder) / file).relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if file.endswith(".py") and parts and _public(parts[-1]):
                yield Path(folder) / file, ".".join(parts)


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
