"""An old name works and warns, the command line prints a note, and none outlives its announcement."""

import ast
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

import lmkcli
from lmkcli.cli import library_output
from lmkcli.deprecation import Deprecated, deprecated

ROOT = Path(__file__).resolve().parents[1]


def old_name() -> int:
    """A function that a version renamed."""
    deprecated("old_name", "new_name", "2.0")
    return 3


def test_an_old_name_works_and_warns_its_caller() -> None:
    with pytest.warns(Deprecated, match=r"old_name is deprecated, .*lmk 2\.0 .*new_name") as found:
        assert old_name() == 3
    assert found[0].filename == __file__


def test_every_user_sees_the_warning() -> None:
    """Python hides a DeprecationWarning outside of tests and of __main__."""
    code = "import tests.test_deprecation as t; exec(compile('t.old_name()', 'a.py', 'exec'), {'t': t})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "Deprecated: old_name is deprecated" in done.stderr


def test_the_command_line_prints_one_clean_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    library_output.escape_control_characters()
    sys.stderr.write(warnings.formatwarning("--old\x1b is deprecated", Deprecated, "file.py", 3))
    assert capsys.readouterr().err == "--old\\u001b is deprecated\n"


def calls(source: str) -> Iterator[list[str]]:
    """The literals of each call of `deprecated`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("deprecated"):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            yield [ast.literal_eval(each) for each in given]


def overdue(source: str, version: str) -> list[str]:
    """The old names that this version should not have any more."""
    return [old for old, _, removal in calls(source) if Version(removal) <= Version(version)]


def test_no_deprecation_outlives_its_announcement() -> None:
    source = Path(__file__).read_text("utf-8")
    assert overdue(source, "1.9") == []
    assert overdue(source, "2.0") == ["old_name"]
    for path in (ROOT / "lmkcli").rglob("*.py"):
        assert overdue(path.read_text("utf-8"), lmkcli.__version__) == [], path
