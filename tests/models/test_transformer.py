"""Packed states equal those of each sequence alone; limits, dtypes, and unsafe files."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel

from lmkcli.errors import DataError
from lmkcli.models.devices import choose_device, native_dtype
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.models.transformer import Transformer, open_model
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.store.token_blocks import Ints
from tests import tiny

Models = Callable[[str], Path]
LENGTHS = (5, 1, 17, 17, 2, 40, 5, 128)
# These ModernBERT and Mistral reach 8 and 15 positions: lengths near the reach, the window, the blocks.
WINDOWED = (1, 8, 9, 16, 17, 63, 64, 65, 511, 512, 513, 513, 576, 640, 641)

NEAR = {"rtol": 1e-4, "atol": 3e-5}  # random weights are large here, and so is their rounding


def opened(folder: Path, dtype: str = "fp32", trust: bool = False) -> Transformer:
    return open_model(read_model(str(folder)), ModelOptions(dtype, "cpu", trust))


def random_ids(lengths: tuple[int, ...]) -> list[Ints]:
    random = np.random.default_rng(len(lengths))
    return [random.integers(5, tiny.VOCABULARY, n).astype(np.int32) for n in lengths]


def alone(folder: Path, sequences: list[Ints]) -> torch.Tensor:
    """Return the states of transformers, one sequence at a time."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        states = [
            model(torch.from_numpy(ids).long()[None]).last_hidden_state[0] for ids in sequences
        ]
    return torch.cat(states)


@pytest.mark.parametrize("name", tiny.KINDS)
def test_a_pack_equals_each_sequence_alone(tiny_model: Models, name: str) -> None:
    model = opened(tiny_model(name))
    assert model.packed == tiny.KINDS[name].packs
    sequences = random_ids(LENGTHS)
    torch.testing.assert_close(model.states(sequences), alone(tiny_model(name), sequences), **NEAR)


@pytest.mark.parametrize("name", ["modernbert", "mistral"])
def test_sliding_windows_at_every_border(tiny_model: Models, name: str) -> None:
    sequences = random_ids(WINDOWED)
    states = opened(tiny_model(name)).states(sequences)
    torch.testing.assert_close(states, alone(tiny_model(name), sequences), **NEAR)


def test_a_decoder_sees_only_earlier_positions(tiny_model: Models) -> None:
    model = opened(tiny_model("qwen2"))
    long, other = random_ids((30, 7))
    torch.testing.assert_close(model.states([long])[:12], model.states([other, long[:12]])[7:])


def test_a_model_that_cannot_be_packed_is_padded_with_a_reason(tiny_model: Models) -> None:
    model = opened(tiny_model("mpnet"))
    assert not model.packed
    assert "packed and padded states differ" in model.why_padded
    assert opened(tiny_model("bert")).why_padded == ""


@pytest.mark.parametrize(
    ("name", "limit"), [("bert", 128), ("roberta", 128), ("distilbert", 128), ("modernbert", 2**31 - 1)]
)  # fmt: skip
def test_the_position_table_is_the_limit(tiny_model: Models, name: str, limit: int) -> None:
    model = opened(tiny_model(name))
    assert model.limit == limit
    assert len(model.states(random_ids((min(limit, 200),)))) == min(limit, 200)


def test_auto_is_the_native_dtype_of_the_hardware(tiny_model: Models) -> None:
    model = opened(tiny_model("bert"), "auto")
    native = native_dtype(torch.device("cpu"))
    assert model.dtype == native
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16}[native]
    assert model.states(random_ids((3,))).dtype == wanted


@pytest.mark.parametrize(
    ("name", "dtype"), [("modernbert", "bf16"), ("modernbert", "fp16"), ("bert", "bf16")]
)
def test_half_precision_stays_near(tiny_model: Models, name: str, dtype: str) -> None:
    """In bf16, the sequences of BERT have gaps between them: their places are rounded up."""
    sequences = random_ids(LENGTHS)
    model = opened(tiny_model(name), dtype)
    assert model.packed
    states = model.states(sequences).float()
    exact = alone(tiny_model(name), sequences)
    assert torch.nn.functional.cosine_similarity(states, exact).min() > 0.99


def test_missing_devices_are_refused() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(DataError, match=f" {count} CUDA devices.*--device cpu"):
        choose_device(f"cuda:{count}")
    with pytest.raises(DataError, match="write auto, cpu, cuda"):
        choose_device("quantum")


def pickled(source: Path, folder: Path, weights: object) -> Path:
    """A copy of a model with pickled weights."""
    shutil.copytree(source, folder)
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


def test_pickled_weights_are_read_as_data(tiny_model: Models, tmp_path: Path) -> None:
    bert = tiny_model("bert")
    weights = AutoModel.from_pretrained(bert).state_dict()
    folder = pickled(bert, tmp_path / "pickled", weights)
    sequences = random_ids(LENGTHS)
    torch.testing.assert_close(opened(folder).states(sequences), opened(bert).states(sequences))


class Trap:
    """An object that creates a file if it is unpickled without restrictions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_pickled_code_is_never_run(tiny_model: Models, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap works
    sprung.unlink()
    folder = pickled(tiny_model("bert"), tmp_path / "trap", {"x": Trap(sprung)})
    with pytest.raises(DataError, match="cannot be loaded"):
        opened(folder)
    assert not sprung.exists()


def test_truncated_weights_are_a_data_error(tiny_model: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "cut")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be loaded"):
        opened(folder)


MODELLING = """
from pathlib import Path
from transformers import BertConfig, BertModel
Path(__file__).with_name("ran").touch()
class OwnConfig(BertConfig):
    model_type = "own-architecture"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


@pytest.fixture
def own_code(tiny_model: Models, tmp_path: Path) -> Path:
    """A folder with its own architecture in a Python file."""
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own-architecture",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(MODELLING)
    return folder


def test_code_of_a_folder_runs_only_if_trusted(
    own_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hub"))
    with pytest.raises(DataError, match="only with --trust-remote-code"):
        opened(own_code)
    assert not list(tmp_path.rglob("ran"))
    sequences = random_ids(LENGTHS)
    assert opened(own_code, trust=True).states(sequences).shape == (sum(LENGTHS), tiny.WIDTH)
    assert list(tmp_path.rglob("ran"))


def test_the_code_of_a_tokenizer_is_refused_too(own_code: Path) -> None:
    folder = read_model(str(own_code))
    side = EncoderConfig(model=str(own_code), weights="", tokenizer="")
    (own_code / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}})
    )
    with pytest.raises(DataError, match="custom code"):
        open_tokenizer(folder, side)


def test_the_padding_token_in_a_text_has_no_position(tiny_model: Models) -> None:
    """RoBERTa counts positions without it."""
    first, second = random_ids((9, 12))
    first[4], second[[0, 11]] = 1, 1
    states = opened(tiny_model("roberta")).states([first, second])
    torch.testing.assert_close(states, alone(tiny_model("roberta"), [first, second]), **NEAR)


def test_padding_that_changes_states_is_avoided(tmp_path: Path) -> None:
    """FNet mixes all positions and reads no mask, so only inputs of equal lengths run together."""
    torch.manual_seed(2)
    config = transformers.FNetConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=32, num_hidden_layers=2, intermediate_size=64,
        max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    transformers.FNetModel(config).eval().save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    model = opened(tmp_path)
    assert (model.packed, model.together) == (False, "equal")
    assert "padding changes its states" in model.why_padded
    sequences = random_ids(LENGTHS)
    with torch.inference_mode():
        plain = AutoModel.from_pretrained(tmp_path).eval()
        batches = [torch.from_numpy(ids).long()[None] for ids in sequences]
        states = torch.cat([plain(batch).last_hidden_state[0] for batch in batches])
    torch.testing.assert_close(model.states(sequences), states, **NEAR)
