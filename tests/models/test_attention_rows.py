"""Attention of some rows: held against transformers' own weights, and never n x n in memory."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from lmkcli.errors import UsageError
from lmkcli.models.attention_rows import attention_to
from lmkcli.models.finding import read_model
from lmkcli.models.forward import ModelOptions
from lmkcli.models.transformer import Transformer, open_model

IDS = np.random.default_rng(0).integers(5, 60, 45).astype(np.int32)


def opened(folder: Path) -> Transformer:
    return open_model(read_model(str(folder)), ModelOptions(dtype="fp32", trainable=True))


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "modernbert", "distilbert", "qwen2", "mistral"]
)
def test_weights_are_those_of_transformers(kind: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    rows = np.array([0, 7, 30, 44], np.int32)
    found = attention_to(opened(folder), IDS, rows)
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        told = eager(torch.from_numpy(IDS).long()[None], output_attentions=True).attentions
    wanted = torch.cat(told)[:, :, rows].mean(2).numpy()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)


def test_many_blocks_are_as_one(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = opened(tiny_model("modernbert")), np.arange(45, dtype=np.int32)
    whole = attention_to(model, IDS, rows)
    monkeypatch.setattr("lmkcli.models.attention_rows._BLOCK", 100)
    np.testing.assert_allclose(attention_to(model, IDS, rows), whole, atol=1e-7)


def test_the_model_is_as_it_was_afterwards(tiny_model: Callable[[str], Path]) -> None:
    model = opened(tiny_model("bert"))
    before = model.states([IDS, IDS[:9]])
    attention_to(model, IDS, np.zeros(1, np.int32))
    torch.testing.assert_close(model.states([IDS, IDS[:9]]), before)


def test_attention_that_does_not_run_packed_is_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match="cannot be watched"):
        attention_to(opened(tiny_model("mpnet")), IDS, np.zeros(1, np.int32))


# VmHWM begins anew with a program; ru_maxrss begins at what the process that started it had.
PEAK = "\nprint(*(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line))\n"
LIBRARIES = """
import sys
import numpy as np
import torch
from lmkcli.models.attention import Window
from lmkcli.models.attention_rows import _mean_weights, attention_to
from lmkcli.models.finding import read_model
from lmkcli.models.forward import ModelOptions
from lmkcli.models.transformer import open_model
"""
ROWS = """
rows = torch.arange(31, 32768, 512)
query, key = torch.rand(12, len(rows), 64), torch.rand(12, 32768, 64)
_mean_weights(query, key, rows, Window(32768, False))
"""
MODEL = """
options = ModelOptions(dtype="fp32", device="cpu", trainable=True)
model = open_model(read_model(sys.argv[1]), options)
ids = np.full(32768, 7, np.int32)
assert attention_to(model, ids, np.arange(31, 32768, 32, dtype=np.int32)).shape[2] == 32768
"""


def growth(code: str, *words: Path) -> int:
    """The kilobytes that a process takes at most, beside what its libraries do, which builds differ in."""
    command = [sys.executable, "-c", LIBRARIES + PEAK + code + PEAK, *map(str, words)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after = map(int, printed.split())
    return after - before


def test_rows_of_32k_tokens_take_less_than_half_a_gigabyte() -> None:
    """64 landmarks of BERT-base's heads; one head n x n would take 4 GB."""
    assert growth(ROWS) < 5e5


@pytest.mark.slow
def test_a_model_over_32k_tokens_takes_less_than_half_a_gigabyte(
    tiny_model: Callable[[str], Path],
) -> None:
    """With 1,024 landmarks."""
    assert growth(MODEL, tiny_model("modernbert")) < 5e5
