"""Models with code of their own: buffers that no file contains have the values of the constructor."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lmkcli.errors import DataError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import Transformer, open_model
from tests import tiny

CODE = """
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class OwnConfig(PreTrainedConfig):
    model_type = "own-rotary"

    def __init__(self, vocab_size=512, hidden_size=32, chance=False, **more):
        self.vocab_size, self.hidden_size, self.chance = vocab_size, hidden_size, chance
        self.pad_token_id = 0
        super().__init__(**more)


class Rotary(nn.Module):
    def __init__(self, width, chance):
        super().__init__()
        powers = torch.rand(width // 2) if chance else torch.arange(0, width, 2) / width
        self.register_buffer("frequencies", 1 / 50 ** powers, persistent=False)
        self.scale = torch.full((1,), 2.0)  # neither a parameter nor a buffer

    def forward(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * self.frequencies
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        a, b = x.chunk(2, -1)
        return self.scale * (x * cos + torch.cat([-b, a], -1) * sin)


class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.states = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.rotary = Rotary(config.hidden_size, config.chance)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids=None, attention_mask=None, **more):
        words = self.words(input_ids)
        q, k, v = self.states(words).chunk(3, -1)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen = nn.functional.scaled_dot_product_attention(
            self.rotary(q), self.rotary(k), v, mask[:, None].bool()
        )
        return BaseModelOutput(last_hidden_state=words + seen)
"""


def own_model(folder: Path, chance: bool = False) -> torch.nn.Module:
    """Write a model with its code, and return it with the buffers of its constructor."""
    folder.mkdir()
    names: dict[str, type] = {"__name__": f"own_{folder.name}"}
    exec(CODE, names)
    torch.manual_seed(3)
    model: torch.nn.Module = names["OwnModel"](names["OwnConfig"](chance=chance)).eval()
    model.save_pretrained(folder)  # type: ignore[operator]
    tiny.wordpiece().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(CODE)
    return model


def opened(folder: Path) -> Transformer:
    return open_model(read_model(str(folder)), ModelOptions("fp32", "cpu", True))


def test_the_frequencies_are_those_of_the_constructor(tmp_path: Path) -> None:
    model = own_model(tmp_path / "right")
    ids = np.arange(5, 25, dtype=np.int32)
    with torch.inference_mode():
        states = model(torch.from_numpy(ids).long()[None]).last_hidden_state[0]
        torch.testing.assert_close(opened(tmp_path / "right").states([ids]), states)


def test_a_buffer_that_is_drawn_at_random_is_refused(tmp_path: Path) -> None:
    own_model(tmp_path / "chance", chance=True)
    with pytest.raises(DataError, match=r"rotary\.frequencies at random"):
        opened(tmp_path / "chance")
