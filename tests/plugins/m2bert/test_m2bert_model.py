"""M2-BERT's classes against the official numbers, an O(n^2) re-derivation, and the loader's rules."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel

from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.m2bert import mixer as m2bert_mixer
from lmkcli.plugins.m2bert import weights as m2bert_weights
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.mixer import LongConv, SequenceMixer
from lmkcli.plugins.m2bert.model import BlockDiagonal, M2BertMlp, M2BertModel

Parity = Callable[[str], Path]
LENGTH, WIDTH = 24, 16
CASES = ("tiny", "tiny_dense", "tiny_poolall")
VARIANTS: dict[str, dict[str, Any]] = {
    "released": {},
    "causal": {"bidirectional": False},
    "no-residual": {"residual_long_conv": False},
    "dense": {"use_monarch_mlp": False},
    "plain-mlp": {"use_glu_mlp": False},
    "plain-dense-mlp": {"use_glu_mlp": False, "use_monarch_mlp": False},
    "plain-uneven-blocks": {"use_glu_mlp": False, "monarch_mlp_nblocks": 3},
    "uneven-blocks": {"monarch_mlp_nblocks": 3},
    "more-blocks": {"monarch_mlp_nblocks": 8},
    "layernorm": {"hyena_training_additions": True},
    "no-positions": {"use_positional_encodings": False},
    "pool-all": {"pool_all": True},
    "cls-token": {"use_cls_token": True},
    "normalized": {"use_normalized_embeddings": True},
    "w-mod": {"hyena_w_mod": 2, "hyena_w": 3, "hyena_emb_dim": 7},
    "shorter-filters": {"long_conv_l_max": 20},
    "longer-filters": {"long_conv_l_max": 40},
}


def config(**more: Any) -> M2BertConfig:
    shape = {
        "vocab_size": 90, "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2,
        "max_position_embeddings": LENGTH, "hyena_filter_order": 8, "initializer_range": 0.3,
    }  # fmt: skip
    return M2BertConfig(**(shape | more))


def model(**more: Any) -> M2BertModel:
    torch.manual_seed(3)
    return M2BertModel(config(**more)).eval()


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(5, 90, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> M2BertModel:
    return model(**VARIANTS[request.param])


# Against the official implementation.


class Official(NamedTuple):
    model: M2BertModel
    numbers: dict[str, Tensor]


@pytest.fixture(params=CASES)
def official(request: pytest.FixtureRequest, parity: Parity) -> Official:
    case = request.param
    made = M2BertModel(M2BertConfig(**json.loads(parity(f"m2/{case}.json").read_text()))).eval()
    weights = parity(f"m2/{case.removesuffix('_poolall')}.safetensors")
    made.load_state_dict(m2bert_weights.fitted(load_file(weights), made.state_dict(), weights))
    arrays = {**np.load(parity("m2/tiny.npz")), **np.load(parity(f"m2/{case}.npz"))}
    return Official(made, {name: torch.from_numpy(value) for name, value in arrays.items()})


def near(made: Tensor, wanted: Tensor) -> bool:
    return bool((made - wanted).abs().max() <= 2e-5)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_official_states_layer_by_layer(official: Official, grad: bool) -> None:
    numbers = official.numbers
    with torch.set_grad_enabled(grad):
        made = official.model(
            numbers["input_ids"], numbers["attention_mask"], output_hidden_states=True
        )
        mixer = official.model.bert.encoder.layer[0].attention
        assert near(mixer(made.hidden_states[0], None), numbers["mixer0"])
        filters = [numbers["filter_fwd0"][0], numbers["filter_rev0"][0]]
        assert all(map(near, mixer.filter_fn.kernels(32), filters))
    wanted = [numbers[name] for name in ("emb", "layer0", "layer1", "layer2")]
    assert all(map(near, made.hidden_states, wanted))
    assert near(made.last_hidden_state, numbers["last_hidden"])
    assert near(made.pooler_output, numbers["sentence_embedding"])


@torch.inference_mode()
def test_official_vectors_of_inputs_shorter_than_the_model(official: Official) -> None:
    numbers = official.numbers
    made = official.model(numbers["input_ids"][:, :17], numbers["attention_mask"][:, :17])
    assert near(made.last_hidden_state, numbers["short_hidden"])
    assert near(made.pooler_output, numbers["short_pooled"])


@torch.inference_mode()
def test_official_vectors_alone_and_in_batches(official: Official) -> None:
    inputs, mask = official.numbers["input_ids"], official.numbers["attention_mask"]
    wanted = official.numbers["pooled"]
    for i in range(3):
        assert near(
            official.model(inputs[i : i + 1], mask[i : i + 1]).pooler_output, wanted[i : i + 1]
        )
    mixed = torch.cat([ids(2, 32), inputs, ids(4, 32, seed=1)])
    made = official.model(mixed, torch.cat([mask[:1], mask[:1], mask, *[mask[:1]] * 4]))
    assert near(made.pooler_output[2:5], wanted)


def test_names_and_shapes_of_the_released_2k_model(parity: Parity) -> None:
    listing = parity("m2/state_dict_m2-bert-80M-2k.txt")
    rows = [line.split("\t") for line in listing.read_text().splitlines()[1:]]
    wanted = {name: shape for name, shape, *_ in rows if not name.startswith("classifier.")}
    with torch.device("meta"):
        made = M2BertModel(M2BertConfig()).state_dict()
    assert {name: str(tuple(value.shape)) for name, value in made.items()} == wanted
    assert {name for name, _, _, dtype in rows if dtype == "torch.int64"} == {
        name for name, value in made.items() if value.dtype == torch.int64
    }


@pytest.mark.parametrize("length", [2048, 8192, 32768])
def test_longer_models_differ_only_in_their_tables(length: int) -> None:
    with torch.device("meta"):
        short = M2BertModel(M2BertConfig()).state_dict()
        made = M2BertModel(M2BertConfig(max_position_embeddings=length)).state_dict()
    other = {name.split(".", 2)[-1] for name in made if made[name].shape != short[name].shape}
    tables = ("position_ids", "position_embeddings.weight", "pos_emb.z", "pos_emb.t")
    assert bool(other) == (length != 2048)
    assert all(name.endswith(tables) for name in other)
    assert made["bert.embeddings.position_embeddings.weight"].shape == (length, 768)


# Against direct sums.


def direct_conv(conv: LongConv, x: Tensor) -> Tensor:
    """Return the sum over all pairs of positions, [batch, channels, n], in float64."""
    n = x.shape[-1]
    forward, *reverse = (kernel.double().T for kernel in conv.kernels(n))
    y = conv.bias.double()[:, None] * x
    for i in range(n):
        for j in range(i + 1):
            y[..., i] += forward[:, i - j] * x[..., j]
        for taps in reverse:
            for j in range(i + 1, n):
                y[..., i] += taps[:, j - i - 1] * x[..., j]
    return y


@settings(max_examples=12, deadline=None)
@given(st.integers(1, LENGTH), st.booleans())
@torch.no_grad()
def test_fft_equals_the_direct_sum(n: int, bidirectional: bool) -> None:
    torch.manual_seed(n)
    conv = LongConv(config(bidirectional=bidirectional))
    x = torch.randn(2, WIDTH, n)
    y = conv.filter(n).convolve(x)
    torch.testing.assert_close(y.double(), direct_conv(conv, x.double()), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_mixer_equals_its_equation(variant: M2BertModel) -> None:
    mixer = variant.bert.encoder.layer[0].attention
    x = torch.randn(2, 11, WIDTH)
    own = x if mixer.layernorm is None else mixer.layernorm(x)
    u = mixer.in_linear(own)
    earlier = [functional.pad(u, (0, 0, back, 0))[:, :11] for back in range(3)]
    taps = mixer.short_filter.weight[:, 0]
    u = sum(taps[:, 2 - back] * earlier[back] for back in range(3)) + mixer.short_filter.bias
    x1, x2, v = u.transpose(1, 2).double().chunk(3, dim=1)
    y = x2 * direct_conv(mixer.filter_fn, v * x1)
    if mixer.filter_fn2 is not None:
        y = y + direct_conv(mixer.filter_fn2, own.transpose(1, 2).double())
    wanted = mixer.out_linear(y.float().transpose(1, 2))
    torch.testing.assert_close(mixer(x, None), wanted, atol=1e-4, rtol=1e-4)


@given(st.integers(1, 13), st.integers(1, 13), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
@torch.no_grad()
def test_blocks_equal_a_matrix_with_zeros_elsewhere(inputs: int, outputs: int, blocks: int) -> None:
    layer = BlockDiagonal(inputs, outputs, blocks, bias=True)
    nn.init.normal_(layer.bias)
    matrix = torch.block_diag(*layer.weight)[:outputs, :inputs]
    x = torch.randn(3, inputs)
    made = torch.cat(layer([x]), dim=-1)
    torch.testing.assert_close(made, functional.linear(x, matrix, layer.bias))


@torch.no_grad()
def test_mlp_equals_its_equation(variant: M2BertModel) -> None:
    mlp: M2BertMlp = variant.bert.encoder.layer[0].mlp
    gate, back = (
        layer.weight if layer.weight.ndim == 2 else torch.block_diag(*layer.weight)[:rows, :columns]
        for layer, rows, columns in (
            (mlp.gated_layers, 64 if mlp.gated else 32, WIDTH),
            (mlp.wo, WIDTH, 32),
        )
    )
    x = torch.randn(2, 5, WIDTH)
    a, c = (x @ gate.T).chunk(2, dim=-1) if mlp.gated else (x @ gate.T, 1)
    h = a * 0.5 * (1 + torch.erf(a / 2**0.5)) * c
    wanted = mlp.layernorm(h @ back.T + mlp.wo.bias + x)
    torch.testing.assert_close(mlp(x), wanted, atol=1e-5, rtol=1e-5)


def test_initial_tables_are_those_of_the_paper() -> None:
    made = LongConv(config())
    t = np.linspace(0, 1, LENGTH)
    angle = 2 * np.pi * np.arange(LENGTH) / LENGTH
    waves = [np.exp(-1j * f * angle) for f in (1e-4, 1.0)]
    z = np.stack([t, *(w.real for w in waves), *(w.imag for w in waves)], axis=1)
    np.testing.assert_allclose(made.pos_emb.z[0].detach(), z, atol=1e-6)
    np.testing.assert_allclose(made.pos_emb.t[0, :, 0], t, atol=1e-7)
    deltas = np.linspace(np.log(0.01) / 1.5, np.log(0.01) / 0.3, WIDTH)
    np.testing.assert_allclose(made.modulation.deltas[0, 0], deltas, rtol=1e-6)
    assert (made.implicit_filter[1].freq == 10).all()


@torch.no_grad()
def test_a_shorter_input_reads_the_first_rows_of_the_tables() -> None:
    conv = LongConv(config())
    for short, whole in zip(conv.kernels(9), conv.kernels(LENGTH), strict=True):
        torch.testing.assert_close(short, whole[:9])


@torch.no_grad()
def test_the_vector_of_each_pooling_option() -> None:
    inputs, mask = ids(2, 9), (torch.arange(9) < torch.tensor([[9], [4]])).long()
    plain = model(use_cls_token=True)(inputs, mask)
    torch.testing.assert_close(plain.pooler_output, plain.last_hidden_state[:, 0])
    for more, first in (({}, True), ({"pool_all": True}, False)):
        made = model(**more)
        output = made(inputs, mask)
        states = output.last_hidden_state
        pooled = states[:, 0] if first else torch.stack([states[0].mean(0), states[1, :4].mean(0)])
        wanted = torch.tanh(made.bert.pooler.dense(pooled))
        torch.testing.assert_close(output.pooler_output, wanted)
        unit = model(**more, use_normalized_embeddings=True)(inputs, mask).pooler_output
        torch.testing.assert_close(unit, functional.normalize(wanted, dim=-1))


# Visibility of positions.


@torch.no_grad()
def test_only_a_bidirectional_model_sees_later_positions(variant: M2BertModel) -> None:
    one, other = ids(1, 12), ids(1, 12)
    other[0, 7:] = ids(5, seed=1)
    states = [variant(x).last_hidden_state[0, :7] for x in (one, other)]
    assert torch.allclose(*states, atol=1e-5) != variant.config.bidirectional


@torch.no_grad()
def test_padding_is_seen_unless_it_is_masked(variant: M2BertModel) -> None:
    variant = variant.double()  # so that nothing is left to rounding
    lengths, inputs = (18, 5, 11), torch.zeros(3, 20, dtype=torch.long)
    for row, n in enumerate(lengths):
        inputs[row, :n] = ids(n, seed=row)
    mask = (torch.arange(20) < torch.tensor(lengths)[:, None]).long()
    hidden = variant(inputs, mask, mask_padding=True)
    seen = variant(inputs, mask)
    for row, n in enumerate(lengths):
        alone = variant(inputs[row : row + 1, :n])
        torch.testing.assert_close(hidden.last_hidden_state[row, :n], alone.last_hidden_state[0])
        torch.testing.assert_close(hidden.pooler_output[row], alone.pooler_output[0])
        apart = (seen.last_hidden_state[row, :n] - alone.last_hidden_state[0]).abs().max()
        assert (apart > 1e-3) == variant.config.bidirectional


@torch.no_grad()
def test_token_types_are_of_the_first_kind_unless_given() -> None:
    made, inputs = model(), ids(1, 6)
    zeros = made(inputs, token_type_ids=torch.zeros_like(inputs)).pooler_output
    ones = made(inputs, token_type_ids=torch.ones_like(inputs)).pooler_output
    assert torch.equal(made(inputs).pooler_output, zeros)
    assert not torch.allclose(zeros, ones, atol=1e-3)


@pytest.mark.parametrize(
    ("more", "limit"),
    [({}, LENGTH), ({"long_conv_l_max": 20}, 20), ({"long_conv_l_max": 40}, LENGTH),
     ({"long_conv_l_max": 40, "use_positional_encodings": False}, 40)],
)  # fmt: skip
@torch.no_grad()
def test_the_tables_are_the_limit(more: dict[str, Any], limit: int) -> None:
    made = model(**more)
    assert made(ids(1, limit)).last_hidden_state.shape == (1, limit, WIDTH)
    with pytest.raises(UsageError, match=f"{limit + 1} tokens.* {limit} positions"):
        made(ids(1, limit + 1))


# Training, and the fast path of inference.


def test_small_blocks_and_training_give_the_same(
    variant: M2BertModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = ids(3, 19)
    mask = (torch.arange(19) < torch.tensor([[19], [3], [10]])).long()
    wanted = variant(inputs, mask, mask_padding=True).pooler_output.detach()
    monkeypatch.setattr(m2bert_mixer, "LEAST", 6)
    monkeypatch.setattr(m2bert_mixer, "BLOCK", 1)
    monkeypatch.setattr(m2bert_mixer, "FFT_BLOCK", 4 * 3 * 19)
    monkeypatch.setattr(m2bert_mixer, "ROWS", 4)
    with torch.inference_mode():
        made = variant(inputs, mask, mask_padding=True).pooler_output
    torch.testing.assert_close(made, wanted, atol=2e-5, rtol=1e-4)


def test_gradients_equal_numerical_ones() -> None:
    torch.manual_seed(0)
    mixer = SequenceMixer(config(hidden_size=4, hyena_filter_order=3)).double()
    mask = (torch.arange(5) < torch.tensor([[5], [2]]))[:, None].double()
    x = torch.randn(2, 5, 4, dtype=torch.double, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]
    values = tuple(mixer.parameters())

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(names, weights, strict=True))
        made: Tensor = torch.func.functional_call(mixer, named, (x, mask))
        return made

    assert torch.autograd.gradcheck(run, (x, *values), atol=1e-5, rtol=1e-3)


def test_every_parameter_learns(variant: M2BertModel) -> None:
    variant.train()(ids(2, LENGTH if variant.config.limit >= LENGTH else 20)).pooler_output.pow(
        2
    ).sum().backward()
    idle = {name for name, p in variant.named_parameters() if p.grad is None or not p.grad.any()}
    allowed = set() if not variant.config.use_normalized_embeddings else idle  # |v| is 1 there
    assert idle == allowed


def test_kept_filters_follow_their_weights() -> None:
    made, inputs = model(), ids(1, LENGTH)
    with torch.inference_mode():
        before = made(inputs).pooler_output
        one, again = (made.long_convs[0].filter(LENGTH).spectrum for _ in range(2))
        assert one is again
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    made(inputs).pooler_output.sum().backward()
    optimizer.step()
    with torch.inference_mode():
        after = made(inputs).pooler_output
    fresh = model()
    fresh.load_state_dict(made.state_dict())
    for conv in fresh.long_convs:
        conv.keep = False
    with torch.inference_mode():
        assert torch.equal(after, fresh(inputs).pooler_output)
    assert not torch.allclose(before, after, atol=1e-3)
    made.load_state_dict(model().state_dict())
    with torch.inference_mode():
        assert torch.equal(made(inputs).pooler_output, before)


# The class as a transformers model.


def test_saved_and_loaded(variant: M2BertModel, tmp_path: Path) -> None:
    variant.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == set(variant.state_dict())
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is M2BertModel
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == variant.config.to_diff_dict()
    # Weights in a mapped file start at any multiple of 8 bytes, and a CPU may sum in another order
    # there, which the sines of the filters amplify. Copies are aligned as new weights are.
    copied = deepcopy(loaded)
    with torch.inference_mode():
        assert torch.equal(copied(ids(2, 9)).pooler_output, variant(ids(2, 9)).pooler_output)
    sines = {id(p) for name, p in loaded.named_parameters(remove_duplicate=False) if "freq" in name}
    assert len(sines) == len(loaded.long_convs)


def test_filters_stay_float32_in_half_precision(tmp_path: Path) -> None:
    wanted = model()
    wanted.save_pretrained(tmp_path)
    made = M2BertModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    filters = {p.dtype for name, p in made.named_parameters() if ".filter_fn" in name}
    others = {p.dtype for name, p in made.named_parameters() if ".filter_fn" not in name}
    assert (filters, others) == ({torch.float32}, {torch.bfloat16})
    with torch.inference_mode():
        half, whole = made(ids(4, LENGTH)).pooler_output, wanted(ids(4, LENGTH)).pooler_output
    assert half.dtype == torch.bfloat16
    assert functional.cosine_similarity(half.float(), whole).min() > 0.999


# The rules of the loader.

Change = Callable[[dict[str, Tensor]], Any]


def folder_with(path: Path, change: Change, file: str = "model.safetensors") -> Path:
    """Write `model()` with changed weights into one of the file names of the releases."""
    path.mkdir(exist_ok=True)
    made = model()
    made.config.save_pretrained(path)
    weights = {name: value.clone() for name, value in made.state_dict().items()}
    changed = change(weights)
    changed = weights if changed is None else changed
    if file.endswith(".safetensors"):
        save_file(changed, path / file)
    else:
        torch.save(changed, path / file)
    return path


def without(*endings: str) -> Change:
    return lambda weights: {n: v for n, v in weights.items() if not n.endswith(endings)}


def renamed(prefix: str) -> Change:
    return lambda weights: {prefix + name: value for name, value in weights.items()}


def with_strangers(weights: dict[str, Tensor]) -> None:
    weights["classifier.weight"] = torch.zeros(10, WIDTH)
    weights["cls.predictions.bias"] = torch.zeros(3)
    weights["bert.encoder.flashfft.twiddle"] = torch.zeros(3)
    weights["bert.encoder.layer.0.attention.filter_fn.flashfft.f_16_fft"] = torch.zeros(3)


GOOD: dict[str, tuple[Change, str]] = {
    "as-they-are": (lambda weights: None, "model.safetensors"),
    "pytorch_model": (lambda weights: None, "pytorch_model.bin"),
    "model.bin": (lambda weights: None, "model.bin"),
    "module": (renamed("module."), "model.bin"),
    "model": (renamed("model."), "model.safetensors"),
    "module.model": (renamed("module.model."), "model.safetensors"),
    "no-bert": (lambda w: {n.removeprefix("bert."): v for n, v in w.items()}, "model.safetensors"),
    "checkpoint": (lambda w: {"state": {"model": renamed("model.")(w)}}, "pytorch_model.bin"),
    "strangers": (with_strangers, "model.safetensors"),
    "no-constants": (without("position_ids", "pos_emb.t", "deltas"), "model.safetensors"),
    "one-name-of-six": (
        without("rev.1.freq", "rev.3.freq", "rev.5.freq", "filter.3.freq", "filter.1.freq"),
        "model.safetensors",
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_released_files_are_read_completely(case: str, tmp_path: Path) -> None:
    change, file = GOOD[case]
    made = M2BertModel.from_pretrained(folder_with(tmp_path / "m", change, file))
    wanted = model()
    assert made.state_dict().keys() == wanted.state_dict().keys()
    for name, value in wanted.state_dict().items():
        assert torch.equal(made.state_dict()[name], value), name


def set_to(name: str, value: Tensor) -> Change:
    return lambda weights: weights.update({name: value})


BAD: dict[str, tuple[Change, str]] = {
    "missing": (without("wo.bias"), r"lacks 2 tensors .*layer\.0\.mlp\.wo\.bias"),
    "no-pooler": (without("dense.weight", "dense.bias"), r"lacks 2 .*pooler\.dense\.weight"),
    "no-z": (without("filter_fn.pos_emb.z"), r"lacks 2 .*filter_fn\.pos_emb\.z"),
    "no-freq": (without(".freq"), r"lacks 24 .*freq"),
    "unknown": (
        set_to("bert.encoder.extra", torch.zeros(1)),
        r"unknown .* 1 .*bert\.encoder\.extra",
    ),
    "shape": (
        set_to("bert.embeddings.position_embeddings.weight", torch.zeros(9, WIDTH)),
        r"another shape 1 .*position_embeddings\.weight \(9, 16\), not \(24, 16\)",
    ),
    "unshared": (
        set_to(
            "bert.encoder.layer.1.attention.filter_fn2.implicit_filter.3.freq", torch.ones(1, 8)
        ),
        r"freq differs from the other frequencies",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_no_weight_is_random(case: str, tmp_path: Path) -> None:
    change, message = BAD[case]
    with pytest.raises(DataError, match=message):
        AutoModel.from_pretrained(folder_with(tmp_path / "m", change))


def test_a_folder_without_weights_or_with_broken_ones(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m", lambda weights: None)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read"):
        M2BertModel.from_pretrained(folder)
    file.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors, pytorch_model\.bin"):
        M2BertModel.from_pretrained(folder)
    (folder / "model.bin").write_bytes(b"not a pickle")
    with pytest.raises(DataError, match=r"model\.bin cannot be read"):
        M2BertModel.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match=r"no config\.json"):
        M2BertModel.from_pretrained(folder)


def test_files_without_a_pooler_suffice_if_it_is_unused(tmp_path: Path) -> None:
    for drop in ((), ("dense.weight", "dense.bias")):
        folder = folder_with(tmp_path / "m", without(*drop))
        config(use_cls_token=True).save_pretrained(folder)
        assert M2BertModel.from_pretrained(folder).bert.pooler is None


def test_the_word_table_has_a_multiple_of_eight_rows() -> None:
    assert model(vocab_size=90).get_input_embeddings().weight.shape == (96, WIDTH)
    assert model(vocab_size=96).get_input_embeddings().weight.shape == (96, WIDTH)


def test_a_released_configuration_is_read_field_by_field(tmp_path: Path) -> None:
    given = {
        "model_type": "bert", "architectures": ["BertForSequenceClassification"],
        "max_position_embeddings": 8192, "long_conv_l_max": 8192, "hidden_size": 960,
        "hyena_wd": 0.1, "use_flash_fft": True, "auto_map": {"AutoConfig": "somewhere.BertConfig"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(given))
    made = m2bert_weights.read_config(tmp_path)
    assert (made.limit, made.hidden_size, made.model_type) == (8192, 960, "m2-bert")
    assert (made.hyena_wd, made.use_flash_fft) == (0.1, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [({"monarch_mixer_sequence_mixing": False}, "monarch_mixer_sequence_mixing is False, .*_mixing True"),
     ({"attention_pooling": True}, "attention_pooling is True, .*attention_pooling False"),
     ({"hyena_emb_dim": 4}, r"hyena_emb_dim is 4; .*odd.*\b3\b")],
)  # fmt: skip
def test_unsupported_configurations_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        model(**more)
