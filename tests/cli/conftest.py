"""Run `lmk` in this process, like the console script."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from lmkcli.cli import main


class Done(NamedTuple):
    """The exit code and the output of a command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The parsed output of --json."""
        return json.loads(self.out)


Lmk = Callable[..., Done]


@pytest.fixture
def lmk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lmk:
    """Run one command line. `code` is the expected exit code, or None for any."""

    def run(*words: object, code: int | None = 0) -> Done:
        monkeypatch.setattr("sys.argv", ["lmk", *map(str, words)])
        capsys.readouterr()
        try:
            main.main()
            left: Any = 0
        except SystemExit as exit_:
            left = exit_.code or 0
        done = Done(left, *capsys.readouterr())
        assert code is None or done.code == code, done.err
        return done

    return run
