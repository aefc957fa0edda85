"""Mutations: break lines of the core one at a time, and see whether the tests notice.

Not a test module; run it by hand after a change of the tests:

    python -m tests.mutations --seed 32 --lines 20 --draw      # prints the mutations only
    python -m tests.mutations --seed 32 --lines 20             # mirrored tests, then the default level
    python -m tests.mutations --seed 32 --lines 20 --only 7,12 # some of them

A seed draws lines that do something (no docstring, import, annotation or error text) and one mutation of
each: a comparison, a sign, a bound of a slice or a constant changes, a condition is negated, or a statement
is dropped. The tests run in a copy of the project, so the working tree never changes. A mutation is caught
if a test fails or does not end. The tests of the mirrored folder run first, then the files that import the
module, then the whole default level.
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from ast import unparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CORE = (
    "pooling/chunks.py", "pooling/layout.py", "pooling/placement.py", "pooling/reductions.py",
    "retrieval/engines/exact/exact_search.py", "retrieval/engines/exact/topk.py",
    "store/parts.py", "store/part_reader.py", "store/part_writer.py", "artifact/kinds.py",
    "artifact/manifest.py",
    "evaluation/measures.py", "evaluation/coverage.py",
)  # fmt: skip
SECONDS = 900  # of a run of tests
COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
    ast.BitAnd: "|", ast.BitOr: "&", ast.Pow: "*", ast.RShift: "<<", ast.LShift: ">>",
}  # fmt: skip
NAMES = {
    "max": "min", "min": "max", "any": "all", "all": "any", "maximum": "minimum",
    "minimum": "maximum", "amax": "amin", "amin": "amax", "zeros": "ones", "right": "left",
    "mean": "sum", "zeros_like": "ones_like", "issubset": "issuperset",
}  # fmt: skip


class Mutation(NamedTuple):
    """The text [start, stop) of a file, counted in bytes, and what replaces it."""

    file: str
    line: int
    start: int
    stop: int
    text: str
    what: str


def mutations(file: str) -> list[Mutation]:
    """All mutations of a module of lmkcli."""
    source = (ROOT / "lmkcli" / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, replacement in _replacements(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old = " ".join(source[start:stop].decode().split())
        new = " ".join(replacement.split())
        found.append(Mutation(file, node.lineno, start, stop, replacement, f"{old} -> {new}"))
    return found


def _replacements(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes and what to write in their place."""
    if isinstance(tree, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return  # texts; whether an error is raised is decided elsewhere
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _replacements(child)
    if isinstance(tree, ast.expr | ast.stmt):
        for text in _variants(tree):
            yield tree, text


def _variants(node: ast.expr | ast.stmt) -> Iterator[str]:
    yield from _operations(node)
    yield from _values(node)
    yield from _statements(node)


def _operations(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
            yield f"{unparse(left)} {COMPARISONS[type(op)]} {unparse(right)}"
        case ast.BinOp(left, op, right) if type(op) in OPERATORS and not _is_text(left, right):
            yield f"({unparse(left)} {OPERATORS[type(op)]} {unparse(right)})"
        case ast.BoolOp(op, values):
            other = " and " if isinstance(op, ast.Or) else " or "
            yield f"({other.join(f'({unparse(value)})' for value in values)})"
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand):
            yield f"({unparse(operand)})"
        case ast.IfExp(test, body, other):
            yield f"({unparse(other)} if {unparse(test)} else {unparse(body)})"
        case ast.Call(ast.Attribute(value, "copy" | "clone"), []):
            yield unparse(value)
        case ast.Call(ast.Name("sorted"), [only]):
            yield f"list({unparse(only)})"


def _values(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() as value):
            yield f"{value + 1}"
        case ast.Constant(str() as value) if value in NAMES:
            yield repr(NAMES[value])
        case ast.Name(name) if name in NAMES:
            yield NAMES[name]
        case ast.Attribute(value, name) if name in NAMES:
            yield f"{unparse(value)}.{NAMES[name]}"
        case ast.Slice(lower, upper, step):
            ends = [unparse(end) if end else "" for end in (lower, upper, step)]
            if lower:
                yield ":".join([f"{ends[0]} + 1", *ends[1:]]).removesuffix(":")
            if upper:
                yield ":".join([ends[0], f"({ends[1]}) - 1", ends[2]]).removesuffix(":")


def _statements(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.If(test) | ast.While(test):
            word, indent = ("if" if isinstance(node, ast.If) else "while"), " " * node.col_offset
            head = f"{word} {unparse(test)}:"
            changed = unparse(node).replace(head, f"{word} not ({unparse(test)}):", 1)
            yield changed.replace("\n", f"\n{indent}")
        case ast.Expr(ast.Call()) | ast.Continue() | ast.Break():
            yield "pass"
        case ast.AugAssign(target, op, value) if type(op) in OPERATORS:
            yield f"{unparse(target)} {OPERATORS[type(op)]}= {unparse(value)}"
            yield "pass"
        case ast.Assign([ast.Name(target)], value) if _uses(value, target):
            yield "pass"  # a correction of a variable


def _is_text(*nodes: ast.expr) -> bool:
    return any(isinstance(node, ast.JoinedStr | ast.Constant) and not isinstance(
        getattr(node, "value", None), int | float) for node in nodes)  # fmt: skip


def _uses(value: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def draw(seed: int, count: int) -> list[Mutation]:
    """One mutation each of `count` lines of the core."""
    by_line: dict[tuple[str, int], list[Mutation]] = {}
    for file in CORE:
        for each in mutations(file):
            by_line.setdefault((file, each.line), []).append(each)
    number = random.Random(seed)
    lines = number.sample(sorted(by_line), count)
    return [number.choice(by_line[line]) for line in lines]


def stages(file: str) -> Iterator[tuple[str, list[str]]]:
    """The tests that may notice a mutation of a module, the nearest first."""
    path = Path(file)
    own = ROOT / "tests" / path.parent / f"test_{path.name}"
    if own.is_file():
        yield "its tests", [str(own.relative_to(ROOT))]
    folder = ROOT / "tests" / path.parent
    while not folder.is_dir():
        folder = folder.parent
    yield "its folder", [str(folder.relative_to(ROOT))]
    dotted = "lmkcli." + ".".join(path.with_suffix("").parts)
    package, _, module = dotted.rpartition(".")
    uses = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(package)} import .*\b{module}\b")
    files = sorted(
        test for test in (ROOT / "tests").rglob("test_*.py") if uses.search(test.read_text())
    )
    if files:
        yield "tests that import it", [str(test.relative_to(ROOT)) for test in files]
    yield "the default level", []


def run(copy: Path, tests: list[str], seconds: float) -> str:
    """Why tests fail in a copy of the project; empty if all pass."""
    words = [sys.executable, "-m", "pytest", "-x", "--tb=line", "-p", "no:cacheprovider", *tests]
    words += ["-o", "faulthandler_timeout=120"]  # of a test; a mutated loop may never end
    if tests:
        words += ["-n", "0"]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    process = subprocess.Popen(
        words, cwd=copy, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end within {seconds:.0f} s"
    finally:  # also after Ctrl-C
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    # 5: no test was selected, for instance in a folder of slow tests
    if process.returncode in (0, 5):
        return ""
    if process.returncode == 4:
        raise SystemExit(f"pytest did not understand its command line:\n{out}")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", out, re.MULTILINE)
    return failed[0] if failed else out[-300:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Break lines of the core one at a time.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, default=20, metavar="COUNT")
    parser.add_argument("--only", default="", metavar="NUMBERS", help="such as 3,7; default: all")
    parser.add_argument("--near", action="store_true", help="never run the whole default level")
    parser.add_argument("--draw", action="store_true", help="print the mutations and stop")
    options = parser.parse_args()
    drawn = list(enumerate(draw(options.seed, options.lines), 1))
    chosen = {int(word) for word in options.only.split(",") if word} or {n for n, _ in drawn}
    if options.draw:
        for number, each in drawn:
            print(f"{number:3} {each.file}:{each.line}: {each.what[:150]}")
        return
    survivors = []
    with tempfile.TemporaryDirectory(prefix="lmk-mutations-") as folder:
        copy = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".git", ".venv", "site", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for number, each in drawn:
            if number not in chosen:
                continue
            print(f"{number:3} {each.file}:{each.line}: {each.what[:150]}", flush=True)
            path = copy / "lmkcli" / each.file
            source = path.read_bytes()
            path.write_bytes(source[: each.start] + each.text.encode() + source[each.stop :])
            try:
                for name, tests in stages(each.file):
                    if options.near and not tests:
                        continue
                    started = time.monotonic()
                    why = run(copy, tests, SECONDS)
                    seconds = time.monotonic() - started
                    print(f"      {name}: {why or 'pass'} ({seconds:.0f} s)", flush=True)
                    if why:
                        break
                else:
                    survivors.append(number)
            finally:
                path.write_bytes(source)
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} caught; survivors: {survivors or 'none'}"
    )


if __name__ == "__main__":
    main()
