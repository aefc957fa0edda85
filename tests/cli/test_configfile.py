"""--config: flags from a file, priorities, and invalid files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from lmkcli.artifact import manifest
from lmkcli.cli.main import app
from lmkcli.spec.operation import operation_kind

Lmk = Callable[..., Any]
GROUP: Any = typer.main.get_command(app)
VERBS = sorted(set(GROUP.commands) - {"demo"})  # the demo has no flags


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "experiment.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def parsed(*words: object) -> dict[str, Any]:
    """The parameters that a command line passes to its command."""
    verb, *rest = map(str, words)
    top = GROUP.make_context("lmk", [verb, *rest])
    params: dict[str, Any] = GROUP.commands[verb].make_context(verb, rest, parent=top).params
    return params


def test_a_file_sets_flags_of_every_type(config: Callable[[str], Path]) -> None:
    path = config(
        """
        [encode]
        model = "minilm"
        gran = 64
        max-length = 512
        store-text = false
        offline = true
        dtype = "fp32"

        [eval]
        measure = ["nDCG@10", "R@100"]
        per-query = true

        [index]
        kind = "bm25"
        k1 = 1.5
        """
    )
    found = parsed("encode", "x", "--config", path)
    assert (found["model"], found["gran"], found["max_length"]) == ("minilm", "64", 512)
    assert (found["store_text"], found["offline"], found["dtype"]) == (False, True, "fp32")
    assert found["pool"] == "auto"  # flags that are not in the file keep their defaults
    assert parsed("eval", "r", "--config", path)["measure"] == ["nDCG@10", "R@100"]
    assert parsed("index", "x", "--config", path)["k1"] == 1.5


def test_the_command_line_wins_over_a_variable_and_that_over_the_file(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config('[encode]\npool = "cls"\ngran = "16"\nunit = "chunk"\nmodel = "m"\n')
    monkeypatch.setenv("LMK_ENCODE_POOL", "mean")
    monkeypatch.setenv("LMK_ENCODE_GRAN", "32")
    found = parsed("encode", "x", "--pool", "lmk", "--config", path)
    assert (found["pool"], found["gran"], found["unit"]) == ("lmk", "32", "chunk")
    monkeypatch.setenv("LMK_ENCODE_CONFIG", str(path))
    assert parsed("encode", "x")["unit"] == "chunk"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[encode]\npol = "lmk"\n', "lmk encode .*--pol .*--pool"),
        ("[encode]\nmax_length = 3\n", "--max_length .*--max-length"),
        ("[encode]\npol = 1\ngrann = 2\n", r"--pol .*--grann .*--gran\b"),
        ('[encode]\nconfig = "x.toml"\n', "--config .*lmk encode --help-all"),
        ("[encode]\nno-store-text = true\n", "--no-store-text .*--store-text"),
        ('[encode]\nstore-text = "no"\n', "store-text .*true or false"),
        ("[encode]\npool = true\n", "pool .*one value.* True"),
        ('[encode]\npool = ["cls"]\n', r"pool .*one value.* \['cls'\]"),
        ('[encode]\nmax-length = "long"\n', "--max-length 'long'"),
        ("[encode]\nmax-length = 0\n", "--max-length '0'"),
        ('[encode]\ndtype = "fp8"\n', "--dtype 'fp8': .*auto, fp32, bf16 or fp16"),
        ("[search]\nhits = 3\n", r"experiment\.toml .*no table \[encode\]"),
        ('[encod]\npool = "cls"\n', r"command 'encod': .*encode\? .*experiment\.toml"),
        ('encode = "cls"\n', r"encode .*not a table.* \[encode\]"),
        ('model = "m"\n', "unknown command 'model'"),
    ],
)
def test_invalid_config_files(
    lmk: Lmk, config: Callable[[str], Path], text: str, message: str
) -> None:
    done = lmk("encode", "x", "-m", "m", "-o", "v", "--config", config(text), code=2)
    assert re.search(message, done.err)
    assert done.out == ""


def test_a_file_that_is_missing_or_not_toml(
    lmk: Lmk, config: Callable[[str], Path], tmp_path: Path
) -> None:
    words = ("encode", "x", "-m", "m", "-o", "v", "--config")
    assert "is not TOML" in lmk(*words, config("[encode\n"), code=3).err
    assert "no.toml: No such file" in lmk(*words, tmp_path / "no.toml", code=3).err


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_takes_a_config_file(verb: str) -> None:
    assert "--config" in [flag for param in GROUP.commands[verb].params for flag in param.opts]


def test_settings_of_a_file_are_recorded_without_the_file(
    lmk: Lmk, beir: Path, config: Callable[[str], Path], tmp_path: Path
) -> None:
    path = config('[index]\nkind = "bm25"\nk1 = 1.5\n')
    lmk("index", beir, "-o", tmp_path / "bm25", "--b", "0.3", "--config", path)
    facts = manifest.read(tmp_path / "bm25").facts
    record = facts.operation
    assert (record["kind"], record["k1"], record["b"]) == ("bm25", 1.5, 0.3)
    assert {"bm25", "1.5", "0.3"} < {*facts.command}
    assert "--config" not in facts.command
    operation = operation_kind(facts.operation).from_json(facts.operation)
    assert "--k1 1.5" in operation.command_line()
    assert "config" not in operation.command_line()
