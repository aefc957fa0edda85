"""What libraries log or warn of reaches the terminal without control characters."""

import io
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lmkcli.cli import library_output
from tests.conftest import Lmk

HOSTILE = "evil\x1b]0;title\x07\x1b[31mred\x9b2J\u202ename"
SHOWN = r"evil\u001b]0;title\u0007red\u009b2J\u202ename"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    factory, form = logging.getLogRecordFactory(), warnings.formatwarning
    yield
    logging.setLogRecordFactory(factory)
    warnings.formatwarning = form


def clean(text: str) -> bool:
    return not set(text) & set("\x1b\x07\x9b\u202e")


def test_names_of_tensors_are_escaped(
    lmk: Lmk,
    tiny_model: Callable[[str], Path],
    beir: Path,
    tmp_path: Path,
) -> None:
    """transformers reports tensors without a place in the architecture."""
    model = shutil.copytree(tiny_model("bert"), tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors[HOSTILE] = tensors["embeddings.LayerNorm.bias"].clone()
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    log = io.StringIO()
    library = logging.getLogger("transformers")
    library.addHandler(handler := logging.StreamHandler(log))
    try:
        err = lmk("encode", beir, "-m", model, "-o", tmp_path / "vectors").err
    finally:
        library.removeHandler(handler)
    assert clean(err + log.getvalue())
    assert SHOWN in log.getvalue()


def test_messages_exceptions_and_warnings_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    library_output.escape_control_characters()
    library_output.escape_control_characters()  # once for each command of a process
    log = logging.getLogger("a.library")
    handler = logging.StreamHandler(sys.stderr)
    log.addHandler(handler)
    try:
        log.warning("%s and %d", HOSTILE, 3)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception("why")
    finally:
        log.removeHandler(handler)
    sys.stderr.write(warnings.formatwarning(HOSTILE, UserWarning, "file.py", 3))
    err = capsys.readouterr().err
    assert clean(err)
    assert f"{SHOWN} and 3\n" in err
    assert f"ValueError: {SHOWN}\n" in err
    assert f"UserWarning: {SHOWN}\n" in err


def test_quiet_silences_warnings_of_libraries(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    """Such as those of ir_datasets about each source of a download that failed."""
    log = io.StringIO()
    library = logging.getLogger("ir_datasets")
    library.addHandler(handler := logging.StreamHandler(log))
    try:
        lmk("-q", "index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
        library.warning("Download failed")
        library.error("no space left")
    finally:
        library.removeHandler(handler)
    assert log.getvalue() == "no space left\n"
