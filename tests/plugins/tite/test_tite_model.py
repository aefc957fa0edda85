"""TITE: official numbers, the formulas for every configuration, padding, gradients, files."""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

from lmkcli.errors import DataError, UsageError
from lmkcli.models.attention import QueryKeyLengths
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.plugins.tite import sequences as tite_sequences
from lmkcli.plugins.tite.config import TiteConfig, pooled_length
from lmkcli.plugins.tite.kind import Tite, fuse, open_model
from lmkcli.plugins.tite.model import TiteModel
from lmkcli.plugins.tite.sequences import windows_over
from tests.plugins.tite import tite_reference

CASES = (
    "late2_intra_upscale", "late2_intra", "late2_intra_prenorm_rms", "late2_post", "late2_pre",
    "stag3_intra", "legacy_stag3_intra_rope",
)  # fmt: skip
LEGACY = {"rotary_query_positions": "index"}
CPU = torch.device("cpu")
Parity = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


# --- official numbers ---------------------------------------------------------------------------


class Case:
    """One official case: a folder with its configuration and weights, inputs and outputs."""

    def __init__(self, parity: Parity, name: str) -> None:
        self.weights = parity(f"tite/{name}.safetensors")
        self.config = json.loads(parity(f"tite/{name}.json").read_text())
        if name.startswith("legacy"):
            self.config |= LEGACY
        self.arrays = dict(np.load(parity(f"tite/{name}.npz")))
        self.ids, self.mask = (
            torch.from_numpy(self.arrays[key]) for key in ("input_ids", "attention_mask")
        )
        self.sequences = [
            row[: int(mask.sum())].numpy().astype(np.int32)
            for row, mask in zip(self.ids, self.mask, strict=True)
        ]

    def folder(self, path: Path) -> Path:
        return saved(path, self.config, load_file(self.weights))


def saved(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "tite", **config}))
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture
def case(request: pytest.FixtureRequest, parity: Parity) -> Case:
    return Case(parity, request.param)


def opened(path: Path, dtype: str = "fp32") -> Tite:
    return open_model(read_model(str(path)), ModelOptions(dtype, "cpu"))


def near(one: Any, other: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_official_states_layer_by_layer(case: Case, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(case.folder(tmp_path / "m")).eval()
    with torch.inference_mode():
        made = model(case.ids, case.mask, output_hidden_states=True)
    near(made.last_hidden_state, case.arrays["last_hidden_state"])
    assert len(made.hidden_states) == model.config.num_hidden_layers + 2
    for number, states in enumerate(made.hidden_states):
        near(states, case.arrays[f"hs{number}"])


@pytest.mark.parametrize("case", CASES, indirect=True)
@pytest.mark.parametrize("fused", [True, False])
def test_official_vectors_alone_and_in_packs(case: Case, tmp_path: Path, fused: bool) -> None:
    model = opened(case.folder(tmp_path / "m"))
    if not fused:
        model.module = AutoModel.from_pretrained(tmp_path / "m").eval().requires_grad_(False)
    wanted = case.arrays["last_hidden_state"][:, 0]
    near(model.states(case.sequences), wanted)
    for sequence, vector in zip(case.sequences, wanted, strict=True):
        near(model.states([sequence])[0], vector)
    order = random.Random(0).sample(range(len(wanted)), len(wanted)) * 2
    near(model.states([case.sequences[i] for i in order]), wanted[order])


@pytest.mark.parametrize("case", CASES[:1], indirect=True)
def test_the_query_positions_of_a_checkpoint_matter(case: Case, tmp_path: Path) -> None:
    case.config |= LEGACY
    model = opened(case.folder(tmp_path / "m"))
    apart = model.states(case.sequences).numpy() - case.arrays["last_hidden_state"][:, 0]
    assert np.abs(apart).max() > 1e-3


RELEASED = {
    "norm_location": "post", "norm_type": "layer", "absolute_positional_embedding_type": "learned",
    "kernel_sizes": [None] * 3 + [2] * 9, "strides": [None] * 3 + [2] * 9,
}  # fmt: skip
UPSCALED = {
    "hidden_sizes": [768] * 3 + [1024] * 3 + [1280] * 3 + [1536] * 3,
    "num_attention_heads": [12] * 3 + [16] * 3 + [20] * 3 + [24] * 3,
    "intermediate_sizes": [3072] * 3 + [4096] * 3 + [5120] * 3 + [6144] * 3,
}
TINY = {
    "vocab_size": 97, "hidden_sizes": 48, "num_attention_heads": 4, "intermediate_sizes": 96,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("listing", "more"),
    [
        ("state_dict_tite-2-late", {}),
        ("state_dict_tite-2-late-upscale", UPSCALED),
        ("pretrain_late2_intra_state_dict", TINY),
    ],
)
def test_parameters_by_name_and_shape(parity: Parity, listing: str, more: dict[str, Any]) -> None:
    text = parity(f"tite/{listing}.txt").read_text()
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    wanted = {
        name.removeprefix("tite."): tuple(int(n) for n in shape.strip("()").split(",") if n.strip())
        for name, shape in rows
        if not name.startswith(("heads.", "lm_decoder."))
    }
    with torch.device("meta"):
        model = TiteModel(TiteConfig(**(RELEASED | more)))
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == wanted
    if text.startswith("# total"):
        assert f"# total {model.num_parameters()}\n" in text


# --- every configuration ------------------------------------------------------------------------

WINDOWS = [
    [(2, 2)] * 5, [None, (3, 3), None, (3, 3), (4, 4)], [(3, 2), (3, 2), (4, 3), (4, 4), (2, 2)],
    [(5, 1), (6, 3), None, (5, 5), (2, 2)], [None] * 5, [(1, 1), (16, 16), None, (2, 2), None],
]  # fmt: skip
WIDTHS = [([8] * 5, 2), ([8, 8, 12, 16, 24], [2, 2, 2, 4, 4])]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    windows = draw(st.sampled_from(WINDOWS))
    widths, heads = draw(st.sampled_from(WIDTHS))
    of = {
        "pooling_location": ("pre", "intra", "post"),
        "norm_location": ("pre", "qkv", "post"),
        "norm_type": ("rms", "layer"),
        "hidden_act": ("gelu_pytorch_tanh", "swiglu"),
        "absolute_positional_embedding_type": (None, "learned"),
        "relative_positional_embedding_type": (None, "rotary", "alibi"),
        "rotary_interleaved": (True, False),
        "rotary_query_positions": ("centre", "index"),
    }
    return {
        "vocab_size": 40, "num_hidden_layers": 5, "hidden_sizes": widths,
        "num_attention_heads": heads, "intermediate_sizes": 12, "max_position_embeddings": 24,
        "initializer_range": 0.5, "dropout_prob": 0.0,
        "kernel_sizes": [pair and pair[0] for pair in windows],
        "strides": [pair and pair[1] for pair in windows],
        **{name: draw(st.sampled_from(values)) for name, values in of.items()},
    }  # fmt: skip


def random_model(config: dict[str, Any]) -> TiteModel:
    torch.manual_seed(3)
    model = TiteModel(TiteConfig(**config)).eval()
    for name, parameter in model.named_parameters():  # biases and norms that do something
        if parameter.dim() == 1:
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            torch.nn.init.normal_(parameter, mean, 0.2)
    return model


LENGTHS = st.lists(st.integers(0, 24), min_size=1, max_size=6).filter(any)


@settings(max_examples=100, deadline=None)
@given(configs(), LENGTHS)
def test_a_pack_equals_the_formulas_for_each_sequence(
    config: dict[str, Any], lengths: list[int]
) -> None:
    model = random_model(config).double()
    sequences = [torch.randint(0, 40, (n,)) for n in lengths]
    with torch.inference_mode():
        made = model.packed(torch.cat(sequences), np.array(lengths))
        wanted = torch.cat([tite_reference.vector(model, ids) for ids in sequences if len(ids)])
    # The rotary tables of the model are float32; random layers amplify their errors.
    torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(configs(), LENGTHS)
def test_padding_does_not_change_a_batch(config: dict[str, Any], lengths: list[int]) -> None:
    model = random_model(config)
    ids = torch.randint(0, 40, (len(lengths), 24))
    left = torch.arange(24)[None] >= 24 - torch.tensor(lengths)[:, None]
    with torch.inference_mode():
        made = model(ids, left.long()).last_hidden_state
        again = model(ids.masked_fill(~left, 0), left).last_hidden_state
        alone = [model.packed(ids[i, left[i]], np.array([n])) for i, n in enumerate(lengths)]
    assert torch.equal(made, again)
    filled = left.any(1, keepdim=True) if model.config.pools else left
    torch.testing.assert_close(made[filled], torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert not made[~filled].any()


@settings(max_examples=30, deadline=None)
@given(configs(), st.sampled_from(["fp32", "bf16"]))
def test_fused_layers_change_nothing(config: dict[str, Any], dtype: str) -> None:
    model = random_model(config)
    lengths = np.arange(1, 25)
    ids = torch.randint(0, 40, (int(lengths.sum()),))
    with torch.inference_mode():
        exact = copy.deepcopy(model).double().packed(ids, lengths)
        model.to({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
        plain = model.packed(ids, lengths)
        replaced = fuse(model.encoder)
        fused = model.packed(ids, lengths)
        replaced.restore()
        assert torch.equal(model.packed(ids, lengths), plain)

    def off(vectors: torch.Tensor) -> torch.Tensor:
        return 1 - torch.cosine_similarity(exact, vectors.double())

    if dtype == "fp32":  # random layers can amplify rounding, with fused layers and without
        assert off(fused).max() < 10 * off(plain).max() + 1e-9
    else:  # a vector that nearly cancels is anybody's in bf16, with fused layers and without
        assert off(fused).median() < 2 * off(plain).median() + 1e-3


def test_the_gpu_kernel_receives_equivalent_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel needs a GPU, so a function with its documented behaviour replaces it."""
    pytest.importorskip("torch.nn.attention.varlen")  # since torch 2.10

    def by_definition(q, k, v, ends_q, ends_k, max_q, max_k):
        assert ends_q.dtype == ends_k.dtype == torch.int32
        assert (max_q, max_k) == (int(ends_q.diff().max()), int(ends_k.diff().max()))
        made = []
        for (a, b), (c, d) in zip(ends_q.unfold(0, 2, 1), ends_k.unfold(0, 2, 1), strict=True):
            scores = torch.einsum("qhw,khw->hqk", q[a:b], k[c:d]) / q.shape[2] ** 0.5
            made.append(torch.einsum("hqk,khw->qhw", scores.softmax(-1), v[c:d]))
        return torch.cat(made)

    lined = QueryKeyLengths(np.array([3, 0, 3, 1, 5]), np.array([6, 0, 5, 1, 9]))
    q = torch.randn(int(lined.queries.sum()), 2, 8)
    k, v = (torch.randn(int(lined.keys.sum()), 2, 8) for _ in range(2))
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", by_definition)
    torch.testing.assert_close(
        tite_sequences._varlen(q, k, v, lined), tite_sequences.attend(q, k, v, lined, None)
    )


@pytest.mark.parametrize("biased", [False, True])
def test_filling_keys_are_hidden(biased: bool) -> None:
    torch.manual_seed(0)
    lined = QueryKeyLengths(np.array([33, 24, 20, 32]), np.array([33, 47, 40, 32]))
    q = torch.randn(int(lined.queries.sum()), 2, 16)
    k, v = (torch.randn(int(lined.keys.sum()), 2, 16) - 1 for _ in range(2))
    distances = tite_sequences.Alibi.of(2, CPU) if biased else None
    exact = tite_sequences.attend(q, k, v, lined, distances)
    parts = (part.bfloat16() for part in (q, k, v))
    rounded = tite_sequences.attend(*parts, lined, distances)
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.03)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 6), st.integers(1, 6))
def test_windows_equal_plain_means(lengths: list[int], kernel: int, stride: int) -> None:
    stride = min(stride, kernel)
    windows = windows_over(np.array(lengths), kernel, stride, CPU)
    assert windows.lengths.tolist() == [pooled_length(n, kernel, stride) for n in lengths]
    states = torch.randn(sum(lengths), 3, dtype=torch.float64)
    parts = [part for part in states.split(lengths) if len(part)]
    wanted = [tite_reference.means(part, kernel, stride) for part in parts]
    torch.testing.assert_close(windows(states), torch.cat([states[:0], *wanted]))


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"pooling_location": "intra"},
        {"pooling_location": "pre", "norm_location": "pre", "hidden_act": "swiglu"},
        {"pooling_location": "post", "norm_location": "qkv", "rotary_interleaved": False},
        {"relative_positional_embedding_type": "alibi", "kernel_sizes": [3, 8], "strides": [1, 8]},
    ],
)
def test_gradients(more: dict[str, Any]) -> None:
    config = {
        "vocab_size": 11, "num_hidden_layers": 2, "hidden_sizes": [4, 8], "intermediate_sizes": 4,
        "num_attention_heads": 2, "max_position_embeddings": 8, "kernel_sizes": [2, 4],
        "strides": [2, 4], "dropout_prob": 0.0, "absolute_positional_embedding_type": "learned",
    }  # fmt: skip
    model = random_model(config | more).double()
    names = [name for name, _ in model.named_parameters()]
    ids, lengths = torch.arange(1, 11), np.array([7, 1, 2])

    def run(*parameters: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(_Packed(model), {f"m.{k}": v for k, v in given.items()},
                                          (ids, lengths))  # fmt: skip

    assert torch.autograd.gradcheck(run, tuple(model.parameters()), fast_mode=True)


class _Packed(torch.nn.Module):
    def __init__(self, model: TiteModel) -> None:
        super().__init__()
        self.m = model

    def forward(self, ids: torch.Tensor, lengths: np.ndarray) -> torch.Tensor:
        return self.m.packed(ids, lengths)


def test_a_few_steps_of_training_fit_a_few_texts() -> None:
    torch.manual_seed(0)
    model = TiteModel(TiteConfig(**(RELEASED | TINY))).train()
    ids, mask = torch.randint(1, 97, (4, 30)), torch.ones(4, 30)
    mask[1, 5:] = 0
    wanted = torch.nn.functional.normalize(torch.randn(4, 48), dim=-1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(30):
        made = model(ids, mask).last_hidden_state[:, 0]
        loss = 1 - torch.cosine_similarity(made, wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    unused = [name for name, value in model.named_parameters() if value.grad is None]
    assert all(".query." in name or ".key." in name for name in unused)  # one token has one answer
    model.eval()
    with torch.inference_mode():
        assert torch.equal(model(ids, mask).last_hidden_state, model(ids, mask).last_hidden_state)


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def tiny() -> TiteModel:
    return random_model(RELEASED | TINY | {"initializer_range": 0.2})


def test_save_and_load(tiny: TiteModel, tmp_path: Path) -> None:
    ids = torch.randint(1, 97, (2, 20))
    tiny.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = AutoModel.from_pretrained(tmp_path).eval()
    assert type(again) is TiteModel
    assert torch.equal(again(ids).last_hidden_state, tiny(ids).last_hidden_state)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == again.config.to_dict()


@settings(max_examples=40, deadline=None)
@given(configs())
def test_a_saved_configuration_is_read_unchanged(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("config")
    TiteConfig(**config).save_pretrained(folder)
    again = AutoConfig.from_pretrained(folder)
    for name, value in config.items():
        kept = getattr(again, name)
        assert kept == (
            value if isinstance(value, list) or not isinstance(kept, list) else [value] * 5
        )


@pytest.mark.parametrize(
    ("old", "absolute", "relative"),
    [("absolute", "learned", None), ("rotary", None, "rotary"), ("alibi", None, "alibi")],
)
def test_the_old_key_of_positions_wins(
    old: str, absolute: str | None, relative: str | None
) -> None:
    given = {
        "absolute_positional_embedding_type": "learned",
        "relative_positional_embedding_type": "rotary",
    }
    config = TiteConfig(positional_embedding_type=old, **given)
    assert config.absolute_positional_embedding_type == absolute
    assert config.relative_positional_embedding_type == relative
    assert "positional_embedding_type" not in config.to_dict()


def weights_of(model: TiteModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_pretraining_checkpoint_is_read_without_its_heads(
    tiny: TiteModel, tmp_path: Path
) -> None:
    weights = {f"tite.{name}": value for name, value in weights_of(tiny).items()}
    weights["heads.bow_auto_encoding.lm_head.bias"] = weights["lm_decoder.bias"] = torch.zeros(97)
    folder = saved(
        tmp_path / "m", tiny.config.to_dict(), {k: v.clone() for k, v in weights.items()}
    )
    sequences = [np.arange(1, 20, dtype=np.int32)]
    near(
        opened(folder).states(sequences)[0],
        tiny(torch.arange(1, 20)[None]).last_hidden_state[0, 0].detach(),
    )


def test_an_official_pretraining_checkpoint(parity: Parity, tmp_path: Path) -> None:
    case = Case(parity, "late2_intra")
    case.weights = parity("tite/pretrain_late2_intra.safetensors")
    arrays = np.load(parity("tite/pretrain_late2_intra.npz"))
    model = opened(case.folder(tmp_path / "m"))
    sequences = [
        row[: int(mask.sum())].astype(np.int32)
        for row, mask in zip(arrays["input_ids"], arrays["attention_mask"], strict=True)
    ]
    near(model.states(sequences), arrays["last_hidden_state"][:, 0])


@pytest.mark.parametrize("prefix", ["", "tite."])
def test_a_lightning_ir_checkpoint_with_marker_tokens(
    tiny: TiteModel, tmp_path: Path, prefix: str
) -> None:
    config = tiny.config.to_dict() | {"model_type": "lir-dpr", "backbone_model_type": "tite"}
    tiny.resize_token_embeddings(99)
    weights = {prefix + name: value for name, value in weights_of(tiny).items()}
    folder = saved(tmp_path / "m", config, weights)
    declared = read_model(str(folder))
    assert (declared.kind, declared.pool, declared.similarity) == ("tite", "model", "dot")
    assert opened(folder).states([np.array([98, 97, 5], np.int32)]).shape == (1, 48)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.pop("encoder.layers.3.mlp.norm.bias"),
            r"lack 1 tensors .*encoder\.layers\.3\.mlp\.norm\.bias",
        ),
        (
            lambda w: w.update({"projection.weight": torch.ones(2)}),
            r"unknown 1 tensors .*projection\.weight",
        ),
        (lambda w: w.update({"embeddings.norm.bias": torch.ones(2)}), "cannot be loaded"),
    ],
)
def test_weights_of_another_model_are_refused(
    tiny: TiteModel, tmp_path: Path, change: Any, message: str
) -> None:
    weights = weights_of(tiny)
    change(weights)
    with pytest.raises(DataError, match=message):
        opened(saved(tmp_path / "m", tiny.config.to_dict(), weights))


def test_truncated_weights_are_refused(tiny: TiteModel, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", tiny.config.to_dict(), weights_of(tiny))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be loaded"):
        opened(folder)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden_sizes": [8, 8]}, r"hidden_sizes .*\b2 entries .*\b12 layers"),
        ({"hidden_sizes": [16] * 6 + [8] * 6}, r"hidden_sizes \[16, .*decrease"),
        ({"num_attention_heads": 7}, r"\b7 heads .*\b768"),
        ({"hidden_sizes": 12, "num_attention_heads": 4}, "odd width 3"),
        ({"kernel_sizes": 2, "strides": 3}, "kernel 2 and stride 3"),
        ({"kernel_sizes": 2}, "kernel 2 and stride None"),
        ({"kernel_sizes": [2] * 8 + [None] * 4, "strides": [2] * 8 + [None] * 4}, "to 2 vectors"),
        ({"norm_location": "past"}, "norm_location 'past' .*'pre', 'qkv', 'post'"),
        ({"hidden_act": "gelu_tanh"}, "hidden_act 'gelu_tanh' .*'gelu', "),
    ],
)
def test_impossible_configurations_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TiteConfig(**wrong)


# --- the model kind -----------------------------------------------------------------------------


def test_an_empty_sequence_is_a_zero_vector(tiny: TiteModel, tmp_path: Path) -> None:
    model = opened(saved(tmp_path / "m", tiny.config.to_dict(), weights_of(tiny)))
    none, some = np.zeros(0, np.int32), np.arange(1, 8, dtype=np.int32)
    made = model.states([none, some, none])
    assert not made[0].any()
    assert not made[2].any()
    near(made[1], model.states([some])[0])
    near(model.states([some, some], [3, 7])[0], model.states([some[:3]])[0])
    assert model.states([none, none]).tolist() == [[0.0] * 48] * 2


def test_tite_has_the_interface_of_a_model(tiny: TiteModel, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", tiny.config.to_dict(), weights_of(tiny))
    model = opened(folder, "bf16")
    assert (model.dim, model.limit, model.dtype) == (48, 64, "bf16")
    assert (model.packed, model.one_vector, model.pad_to) == (True, True, 0)
    assert model.weight_bytes == 2 * tiny.num_parameters()
    sequences = [np.arange(1, n, dtype=np.int32) for n in (3, 60, 20)]
    exact = opened(folder).states(sequences)
    assert torch.cosine_similarity(model.states(sequences).float(), exact).min() > 0.99


def test_a_sequence_beyond_the_positions_is_refused(tiny: TiteModel, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", tiny.config.to_dict(), weights_of(tiny))
    with pytest.raises(DataError, match=r"65 tokens .*64 positions"):
        opened(folder).states([np.ones(65, np.int32)])
    with pytest.raises(UsageError, match="--extend"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu", extend="ntk:128"))


def test_a_model_without_pooling_returns_a_state_per_token(tmp_path: Path) -> None:
    model = random_model(TINY)
    found = opened(saved(tmp_path / "m", model.config.to_dict(), weights_of(model)))
    assert not found.one_vector
    assert not read_model(str(tmp_path / "m")).makes_vector
    sequences = [np.arange(1, 8, dtype=np.int32), np.zeros(0, np.int32), np.ones(3, np.int32)]
    with torch.inference_mode():
        states = found.states(sequences)
        alone = [model(torch.from_numpy(each)[None].long()) for each in sequences[::2]]
    wanted = torch.cat([each.last_hidden_state[0] for each in alone])
    torch.testing.assert_close(states, wanted, rtol=0, atol=1e-5)
