"""Output in streams that lack characters, and errors of the system in the values of flags."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.cli import console
from lmkcli.spec.result import Format


def ascii_stream(monkeypatch: pytest.MonkeyPatch) -> io.TextIOWrapper:
    """Standard output as with PYTHONIOENCODING=ascii."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    console.accept_all_characters()
    return stream


def written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", list(Format))
def test_tables_are_printed_in_ascii(monkeypatch: pytest.MonkeyPatch, form: Format) -> None:
    stream = ascii_stream(monkeypatch)
    console.table(["name"], [["caf\u00e9 \u6771 \U0001f44b"]], form)
    assert "caf" in written(stream)


def test_json_in_ascii_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ascii_stream(monkeypatch)
    value = {"text": "caf\u00e9 \U0001f44b"}
    console.plain_json(value)
    assert json.loads(written(stream)) == value


def test_unicode_streams_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", stream)
    console.accept_all_characters()
    console.plain_json("\u00e9")
    stream.flush()
    assert stream.errors == "strict"
    assert stream.buffer.getvalue() == '"\u00e9"\n'.encode()  # type: ignore[attr-defined]


def test_signs_of_tex_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["a^b"], [["x~y_z"]], Format.latex)
    out = capsys.readouterr().out
    assert r"a\textasciicircum{}b" in out
    assert r"x\textasciitilde{}y\_z" in out


def test_a_folder_without_permission_is_no_wrong_flag(
    lmk: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests run as root, which may read everything, so that the system's answer is simulated."""
    stat = Path.stat

    def refused(self: Path, **words: Any) -> Any:
        if self.name == "secret.jsonl":
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, **words)

    monkeypatch.setattr(Path, "stat", refused)
    failed = lmk("encode", tmp_path / "secret.jsonl", "-m", "minilm", "-o", tmp_path / "v", code=3)
    assert "secret.jsonl: Permission denied" in failed.err
