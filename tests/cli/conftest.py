"""Running `lmk` in this process, as the console script does."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from lmkcli.cli import main


class Done(NamedTuple):
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with --json."""
        return json.loads(self.out)


Lmk = Callable[..., Done]


@pytest.fixture
def lmk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lmk:
    """Runs one command line. `code` is the exit code that is expected."""

    def run(*words: object, code: int = 0) -> Done:
        monkeypatch.setattr("sys.argv", ["lmk", *map(str, words)])
        capsys.readouterr()
        try:
            main.main()
            left: Any = 0
        except SystemExit as exit_:
            left = exit_.code or 0
        done = Done(left, *capsys.readouterr())
        assert done.code == code, done.err
        return done

    return run
