"""Rotary frequencies that depend on the length of an input, whatever other inputs the model reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import Transformer, open_model
from lmkcli.pooling.placement import Ints
from tests import tiny

TRAINED = 24
LENGTHS = (5, 60, 24, 25, 100, 5, 60, 1, 40)
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0, 5.0, 7.0, 9.0],
    "rope_theta": 10000.0, "original_max_position_embeddings": TRAINED,
}  # fmt: skip


def shape(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": tiny.VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 64, "initializer_range": 0.3, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, **more,
    }  # fmt: skip


CONFIGS = {
    "dynamic": lambda: transformers.LlamaConfig(
        **shape(max_position_embeddings=TRAINED, rope_scaling=DYNAMIC)
    ),
    "longrope": lambda: transformers.Phi3Config(
        **shape(
            max_position_embeddings=512,
            original_max_position_embeddings=TRAINED,
            rope_scaling=LONG,
        )
    ),
    "layers": lambda: transformers.Gemma3TextConfig(
        **shape(
            head_dim=8,
            max_position_embeddings=TRAINED,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": DYNAMIC,
            },
        )
    ),
}


def saved(folder: Path, name: str) -> Path:
    torch.manual_seed(5)
    transformers.AutoModel.from_config(CONFIGS[name]()).eval().save_pretrained(folder)
    tiny.byte_bpe("$A").save_pretrained(folder)
    return folder


def opened(folder: Path) -> Transformer:
    return open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


def alone(folder: Path, sequences: list[Ints]) -> torch.Tensor:
    """Return the states of transformers, each sequence read by a new model."""
    states = []
    with torch.inference_mode():
        for ids in sequences:
            model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
            states.append(model.eval()(torch.from_numpy(ids).long()[None]).last_hidden_state[0])
    return torch.cat(states)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("packed", [True, False])
def test_states_do_not_depend_on_other_inputs(tmp_path: Path, name: str, packed: bool) -> None:
    folder = saved(tmp_path, name)
    random = np.random.default_rng(1)
    sequences = [random.integers(5, tiny.VOCABULARY, n).astype(np.int32) for n in LENGTHS]
    expected = alone(folder, sequences)
    model = opened(folder)
    assert model.packed
    if not packed:
        model.packed = False
        model.module.set_attn_implementation("sdpa")
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(model.states(sequences), expected, **near)
    parts = expected.split(list(LENGTHS))
    turned = model.states(sequences[::-1])
    torch.testing.assert_close(turned, torch.cat(parts[::-1]), **near)
    for ids, states in zip(sequences, parts, strict=True):
        torch.testing.assert_close(model.states([ids]), states, **near)
