"""The tutorials can be followed as written, and print what they show."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests import tutorials

ELSEWHERE = {"slurm.md"}  # run by test_slurm.py, which has a cluster
NEEDED = {  # what a page needs besides the extra `demo`
    "your-documents.md": ("inscriptis", "pypdfium2", "matplotlib"),
    "compare-poolers.md": ("matplotlib",),
    "train.md": ("accelerate",),
    "search-page.md": ("fastapi", "mcp"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in tutorials.PAGES if p.name not in ELSEWHERE], ids=lambda p: p.stem
)
def test_a_tutorial_prints_what_it_shows(
    page: Path, minilm: Path, lmk_program: Path, tmp_path: Path
) -> None:
    for package in NEEDED.get(page.name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    tutorials.check(page, tmp_path, lmk_program)
    shutil.rmtree(tmp_path / "work")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a  0.53 b", "a 0.54 b\n"),
        ("1,000 documents", "1020 documents"),
        ("first\n…\nlast", "first\n2\n3\nlast\n"),
        ("made: … with lmk", "made: 2026-01-01T00:00:00 with lmk"),
        ("one\n…", "one\ntwo\nthree"),
        ("", "\n"),
    ],
)
def test_outputs_that_are_the_same(shown: str, printed: str) -> None:
    assert not tutorials.differs(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a 0.53 b", "a 0.59 b"),
        ("3 documents", "4 documents"),
        ("1,000 documents", "1,100 documents"),
        ("1,000 documents", "1,000 queries"),
        ("first", "first\nsecond"),
        ("first\nsecond", "first"),
        ("first\n…\nlast", "first\n2\n"),
        ("…\nb\nd", "a\nb\nc\n"),
        ("one", ""),
    ],
)
def test_outputs_that_differ(shown: str, printed: str) -> None:
    assert tutorials.differs(shown, printed)


def test_steps_are_read_from_a_page() -> None:
    page = "Save this as `a/b.txt`:\n\n```text\nx\n```\n\n```console\n$ one \\\n> two\nout\n$ three\n```\n"
    saved, first, second = tutorials.steps(page)
    assert saved == ("a/b.txt", "x\n")
    assert (first[0], second[0]) == ("one \\\ntwo", "three")
    assert (first[1], second[1]) == ("out\n", "")
