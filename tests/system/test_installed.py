import sys
from pathlib import Path

import pytest

from lmkcli.system import installed

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
    """Another lmk is installed, which asks for what RECORD says."""
    record = tmp_path / "lmkcli-0.1.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(RECORD)
    monkeypatch.syspath_prepend(str(tmp_path))


def asked(extra: str = "") -> dict[str, tuple[bool, bool]]:
    """Library -> whether it is there, and whether its version fits."""
    return {w.requirement.name: (w.version != "", w.fits) for w in installed.wanted(extra)}


@pytest.mark.usefixtures("recorded")
def test_what_is_asked_for_is_held_against_what_is_there() -> None:
    assert installed.extras() == ["one", "both"]
    assert asked() == {"pytest": (True, True), "rich": (True, False)}
    assert asked("one") == {"no-such-library": (False, False)}
    assert asked("both") == {"no-such-library": (False, False), "pytest": (True, True)}


def test_without_a_record_there_are_no_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert (installed.version(installed.LMK), installed.extras()) == ("", [])
