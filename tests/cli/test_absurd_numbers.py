"""Absurd numbers in the settings of trainings: an error that names the flag, or a training; never a crash."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.training.train_settings import DevSettings, TrainSettings
from tests import levels, tiny
from tests.conftest import Lmk

Models = Callable[[str], Path]
ABSURD = ("nan", "inf", "-inf", "-1", "999999999999", "1e300", "9" * 5000, "1e-320", "\u0663")
LENGTHS = ("max-length", "query-max-length", "gran", "window", "dims")


def cases() -> Iterator[tuple[str, str]]:
    """Each numeric setting with each number."""
    for verb, kinds in (("train", (TrainSettings, DevSettings)), ("pretrain", (PretrainSettings,))):
        numeric = {
            field.name.replace("_", "-")
            for kind in kinds
            for field in fields(kind)
            if any(name in str(field.type) for name in ("int", "float"))
        }
        lengths = LENGTHS if verb == "train" else LENGTHS[:1]
        yield from (
            (verb, f"--{name}={value}") for name in sorted({*numeric, *lengths}) for value in ABSURD
        )
    for name in ("train", "freeze"):
        yield from (("train", f"--{name}=layers.{value}") for value in (*ABSURD, f"1-{'9' * 5000}"))


@pytest.mark.parametrize(("verb", "flag"), levels.sample("absurd numbers", cases(), 12))
def test_absurd_numbers(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path, verb: str, flag: str
) -> None:
    pairs = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 9)} for i in range(12)]
    tiny.write_jsonl(tmp_path / "pairs.jsonl", pairs)
    source = tmp_path / "pairs.jsonl" if verb == "train" else beir
    words = [verb, source, "-m", tiny_model("bert"), "--steps", 1, "--batch-size", 8]
    words += ["--dtype", "fp32", "--device", "cpu", "-o", tmp_path / "model"]
    if flag.startswith(("--patience", "--dev-every")):
        words += ["--dev", f"{beir}:test"]
    done = lmk(*words, flag, code=None)
    assert done.code in (0, 2, 3)
    assert "Traceback" not in done.err
    if done.code:
        assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--lora=999999999999", r"--lora 999999999999: .*\b32\b"),
        (f"--train=layers.{'9' * 500}", r"'layers\.9{500}' .*: embeddings, "),
        (f"--train=layers.{'9' * 5000}", r"'layers\.9{1000,} … 9*' .*: embeddings, "),
        ("--train=layers.\u0661", r"'layers\.\u0661' .*: embeddings, "),
        ("--warmup=inf", r"--warmup inf .*2\.14748e\+09"),
    ],
)
def test_the_message_names_the_flag(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path, flag: str, words: str
) -> None:
    line = ["train", f"{beir}:test", "-m", tiny_model("bert"), "--steps", 1, "--batch-size", 4]
    assert re.search(words, lmk(*line, flag, "-o", tmp_path / "model", code=2).err)
    assert not (tmp_path / "model").exists()
