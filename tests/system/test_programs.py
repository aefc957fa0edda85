import sys
import time
from pathlib import Path

import pytest

from lmkcli.system import programs

RECORD = """Metadata-Version: 2.4
Name: lmkcli
Version: 0.1
Requires-Dist: pytest>=1
Requires-Dist: rich>=999
Requires-Dist: no-such-library; python_version < "3"
Provides-Extra: one
Requires-Dist: no-such-library>=2; extra == "one"
Provides-Extra: both
Requires-Dist: lmkcli[one]; extra == "both"
Requires-Dist: pytest; extra == "both"
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a fake lmk with the metadata RECORD."""
    record = tmp_path / "lmkcli-0.1.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(RECORD)
    monkeypatch.syspath_prepend(str(tmp_path))


def found(extra: str = "") -> dict[str, tuple[bool, bool]]:
    """Library -> whether it is installed, and whether its version is accepted."""
    return {
        w.requirement.name: (w.version != "", w.satisfied) for w in programs.dependencies(extra)
    }


@pytest.mark.usefixtures("recorded")
def test_requirements_are_compared_with_installed_versions() -> None:
    assert programs.extras() == ["one", "both"]
    assert found() == {"pytest": (True, True), "rich": (True, False)}
    assert found("one") == {"no-such-library": (False, False)}
    assert found("both") == {"no-such-library": (False, False), "pytest": (True, True)}


def test_without_a_record_there_are_no_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert (programs.installed_version(programs.LMK), programs.extras()) == ("", [])


def test_the_output_of_a_program_or_its_error() -> None:
    assert programs.run_program([sys.executable, "-c", "print('3.1')"], 60) == ("3.1", "")
    assert programs.run_program(
        [sys.executable, "-c", "import sys; print(4, file=sys.stderr)"], 60
    ) == ("4", "")
    assert programs.run_program([sys.executable, "-c", "import nosuch"], 60).error.endswith(
        "'nosuch'"
    )
    assert (
        programs.run_program([sys.executable, "-c", "raise SystemExit(9)"], 60).error
        == "it ended with exit code 9"
    )
    assert "Not a directory" in programs.run_program(["/dev/null/none"], 60).error


def test_a_program_that_takes_too_long_is_ended() -> None:
    started = time.monotonic()
    assert programs.run_program(["sleep", "900"], 0.2).error == "no answer within 0.2 s"
    assert time.monotonic() - started < 300  # far from both, for a busy machine
