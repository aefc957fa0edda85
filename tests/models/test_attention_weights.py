"""Attention weights of some rows, compared with those of transformers, and their memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from lmkcli.errors import UsageError
from lmkcli.models.attention_weights import mean_attention
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import Transformer, open_model
from tests.forkserver import ForkServer

IDS = np.random.default_rng(0).integers(5, 60, 45).astype(np.int32)


def opened(folder: Path) -> Transformer:
    return open_model(read_model(str(folder)), ModelOptions(dtype="fp32", trainable=True))


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "modernbert", "distilbert", "qwen2", "mistral"]
)
def test_weights_equal_those_of_transformers(kind: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    rows = np.array([0, 7, 30, 44], np.int32)
    found = mean_attention(opened(folder), IDS, rows)
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        weights = eager(torch.from_numpy(IDS).long()[None], output_attentions=True).attentions
    wanted = torch.cat(weights)[:, :, rows].mean(2).numpy()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)


def test_blocks_do_not_change_the_weights(tiny_model: Callable[[str], Path]) -> None:
    model, rows = opened(tiny_model("modernbert")), np.arange(45, dtype=np.int32)
    whole = mean_attention(model, IDS, rows)
    np.testing.assert_allclose(mean_attention(model, IDS, rows, block=100), whole, atol=1e-7)


def test_the_model_is_unchanged_afterwards(tiny_model: Callable[[str], Path]) -> None:
    model = opened(tiny_model("bert"))
    before = model.states([IDS, IDS[:9]])
    mean_attention(model, IDS, np.zeros(1, np.int32))
    torch.testing.assert_close(model.states([IDS, IDS[:9]]), before)


def test_a_model_without_packed_attention_is_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match="are not available"):
        mean_attention(opened(tiny_model("mpnet")), IDS, np.zeros(1, np.int32))


# VmHWM restarts with each program; ru_maxrss starts at the value of the parent process.
PEAK = "\nprint(*(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line))\n"
LIBRARIES = """
import sys
import numpy as np
import torch
from lmkcli.models.attention import SlidingWindow
from lmkcli.models.attention_weights import _mean_weights, mean_attention
from lmkcli.models.lookup import read_model
from lmkcli.models.forward import ModelOptions
from lmkcli.models.transformer import open_model
"""
ROWS = """
rows = torch.arange(31, 32768, 512)
query, key = torch.rand(12, len(rows), 64), torch.rand(12, 32768, 64)
_mean_weights(query, key, rows, SlidingWindow(32768, False))
"""
MODEL = """
options = ModelOptions(dtype="fp32", device="cpu", trainable=True)
model = open_model(read_model(sys.argv[1]), options)
ids = np.full(32768, 7, np.int32)
assert mean_attention(model, ids, np.arange(31, 32768, 32, dtype=np.int32)).shape[2] == 32768
"""


def growth(forkserver: ForkServer, code: str, *words: Path) -> int:
    """Return the peak memory of a process in kilobytes, minus that of its libraries, which vary."""
    printed = forkserver.execute(LIBRARIES + PEAK + code + PEAK, *words)
    before, after = map(int, printed.split())
    return after - before


def test_rows_of_32k_tokens_take_less_than_half_a_gigabyte(forkserver: ForkServer) -> None:
    """64 landmarks of BERT-base's heads; one head n x n would take 4 GB."""
    assert 1e5 < growth(forkserver, ROWS) < 5e5  # the keys alone are 100 MB


@pytest.mark.slow
def test_a_model_over_32k_tokens_takes_less_than_half_a_gigabyte(
    tiny_model: Callable[[str], Path], forkserver: ForkServer
) -> None:
    """With 1,024 landmarks."""
    assert growth(forkserver, MODEL, tiny_model("modernbert")) < 5e5
