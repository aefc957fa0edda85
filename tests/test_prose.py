"""The prose of code and pages stays plain: nine turns of phrase that are hard to read are counted.

CONTRIBUTING.md (Style) describes plain English. Well-kept projects have about 15 of these turns per 10,000
words. `python tests/test_prose.py PATH...` prints the counts, and the sentences with the most.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 40  # turns of phrase per 10,000 words
PATTERNS = {
    "what-clauses": r"\bwhat (?:is|are|was|were|has|have|had|it|they|a|an|the|no|one|can|must|makes?|"
    r"belongs?|stands?|comes?|takes?|others?)\b",
    "of/by/in which": r"\b(?:of|by|in|to|from|with|at|on|behind|under|for) which\b",
    "whose": r"\bwhose\b",
    "there as predicate": r"\b(?:is|are|was|were) there\b",
    "stand, lie": r"\b(?:stands?|stood|lies?|lay)\b",
    "say, said": r"\b(?:say|says|said|saying)\b",
    "where-clauses": r"\bwhere (?:it|they|the|there|one|no|a|an|nothing|some|many|its|this|that)\b",
    "beside": r"\bbesides?\b",
    "begin": r"\b(?:began|begins?|beginnings?)\b",
}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Each piece of prose with its line: docstrings, comments and messages, or text outside code blocks."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = re.sub(r"```.*?```", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
        yield from enumerate(text.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
            yield node.lineno, "".join(map(str, parts))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def files(*roots: Path) -> list[Path]:
    """The modules and pages below some folders, and the named files."""
    found = []
    for root in roots:
        found += [root] if root.is_file() else [*root.rglob("*.py"), *root.rglob("*.md")]
    return sorted(found)


def count(*roots: Path) -> tuple[int, Counter[str]]:
    """The number of words, and of the turns of phrase, by name."""
    words, turns = 0, Counter[str]()
    for path in files(*roots):
        for _, piece in prose(path):
            if len(piece.split()) > 3 or path.suffix == ".md":
                words += len(piece.split())
                turns.update({n: len(re.findall(p, piece, re.I)) for n, p in PATTERNS.items()})
    return words, turns


@pytest.mark.parametrize(
    "roots",
    [
        ("lmkcli",),
        ("docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
        ("CHANGELOG.md", "examples", "benchmarks"),
    ],
    ids=" ".join,
)
def test_prose_is_plain(roots: tuple[str, ...]) -> None:
    words, turns = count(*(ROOT / name for name in roots))
    rate = 10_000 * turns.total() / words
    assert rate <= LIMIT, f"{rate:.0f} per 10,000 words: {dict(turns)}; see tests/test_prose.py"


def test_the_count_finds_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("What is asked lies beside it.\n\n```\nwhat is code\n```\n")
    words, turns = count(page)
    assert words == 6
    assert +turns == {"what-clauses": 1, "stand, lie": 1, "beside": 1}


def main() -> None:
    """Print the counts of some paths, and the pieces with the most turns of phrase."""
    roots = [Path(name) for name in sys.argv[1:]]
    words, turns = count(*roots)
    for name, number in turns.items():
        print(f"{name:20}{10_000 * number / words:8.1f}")
    print(f"{'sum':20}{10_000 * turns.total() / words:8.1f}   of {words:,} words")
    pieces = [(path, line, piece) for path in files(*roots) for line, piece in prose(path)]
    found = [
        (sum(len(re.findall(p, piece, re.I)) for p in PATTERNS.values()), path, line, piece)
        for path, line, piece in pieces
    ]
    for number, path, line, piece in sorted(found, key=lambda each: -each[0])[:20]:
        if number:
            print(f"{number}  {path}:{line}: {' '.join(piece.split())[:160]}")


if __name__ == "__main__":
    main()
