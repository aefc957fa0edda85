"""No process that lmk starts imports modules of the current folder, which may be files of other people."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NAMES = ("socket", "torch", "numpy", "lmkcli", "json", "transformers", "multiprocessing", "signal")
LMK = [
    sys.executable,
    "-P",
    "-m",
    "lmkcli.cli.main",
]  # as the program `lmk`, without the current folder
GRID = """
[grid]
collections = "{collection}"
model = "{model}"
pool = ["mean", "cls"]
k = 5
measures = "nDCG@10"
dtype = "fp32"
"""


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder with modules that show whether somebody imported them."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in NAMES:
        text = f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\nraise SystemExit(9)\n"
        (folder / f"{name}.py").write_text(text)
    return folder


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*LMK, *map(str, words)], cwd=folder, text=True, capture_output=True, timeout=600
    )
    imported = folder.parent / "imported"
    assert not imported.exists(), imported.read_text()
    return done


def test_a_grid_imports_nothing_from_the_current_folder(
    traps: Path, tiny_model: Callable[[str], Path], beir: Path
) -> None:
    (traps / "grid.toml").write_text(GRID.format(collection=beir, model=tiny_model("bert")))
    done = run(traps, "grid", "grid.toml", "-o", "results")
    assert done.returncode == 0, done.stderr


def test_the_doctor_imports_nothing_from_the_current_folder(traps: Path) -> None:
    assert run(traps, "doctor").returncode in (0, 4)


def starts() -> Iterator[tuple[str, list[str]]]:
    """The command lines in the source that start Python, with the words after the program."""
    for path in sorted(Path(__file__).parents[1].joinpath("lmkcli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
            if words and ast.unparse(words[0]) == "sys.executable":
                yield f"{path.name}:{node.lineno}", [ast.unparse(each) for each in words[1:]]


@pytest.mark.parametrize(("place", "words"), list(starts()))
def test_python_starts_without_the_current_folder_on_its_path(place: str, words: list[str]) -> None:
    assert words[0] == "'-P'", place


def test_the_environment_of_this_process_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from lmkcli.system.programs import run_program

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    shown = run_program(
        [sys.executable, "-c", "import os; print(os.environ['PYTHONSAFEPATH'])"], 30
    )
    assert shown.text == "1"
    assert "PYTHONSAFEPATH" not in os.environ
