"""The wheel alone, outside of the repository: what a user installs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Libraries come from the environment of the tests; `just installed` also installs them, from an index.
START = "import sys; sys.path.insert(0, {wheel!r}); from lmkcli.cli.main import main; main()"
COMMANDS = (
    "demo",
    "search notes -q certificate",
    "encode stdlib/functions,package=json -m mean-minilm -o vectors",
    "encode stdlib/functions,package=json -m lmk-minilm --pool lmk --gran 64 -o landmarks",
    "index stdlib/functions,package=json --kind bm25 -o bm25",
    "search vectors stdlib/functions,package=json -o dense.trec",
    "eval dense.trec",
    "verify vectors",
)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The contents of the wheel in a folder, as pip installs them."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(built).extractall(tmp_path / "installed")
    return tmp_path / "installed"


@pytest.mark.slow
def test_the_wheel_runs_the_commands_of_the_readme(
    wheel: Path, tmp_path: Path, minilm: Path
) -> None:
    home = tmp_path / "home"
    (home / "notes").mkdir(parents=True)
    (home / "notes" / "gateway.md").write_text("# Gateway\n\nThe certificate ends in May.\n")
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    for command in COMMANDS:
        line = [sys.executable, "-c", START.format(wheel=str(wheel)), *command.split()]
        done = subprocess.run(
            line, cwd=home, env=os.environ | places, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    place = "import sys; sys.path.insert(0, {!r}); import lmkcli; print(lmkcli.__file__)"
    line = [sys.executable, "-c", place.format(str(wheel))]
    found = subprocess.check_output(line, cwd=home, text=True)
    assert Path(found.strip()) == wheel / "lmkcli" / "__init__.py"


@pytest.mark.slow
def test_the_wheel_has_everything_that_the_package_has(wheel: Path) -> None:
    listed = subprocess.check_output(["git", "ls-files", "lmkcli"], cwd=ROOT, text=True).split()
    missing = [name for name in listed if not (wheel / name).is_file()]
    assert not missing
    extra = {path.suffix for path in wheel.rglob("*") if path.is_file()} & {".pyc", ".npy", ".trec"}
    assert not extra
