"""The forward pass: gradients, packs of sequences, and the last steps."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call

from lmkcli.errors import DataError
from lmkcli.models import attention
from lmkcli.models.forward import Finish, ForwardPass, ModelOptions, Pooling, packs, vector_numbers
from lmkcli.models.heads import LatentAttention, TokenHead
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import open_model
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.kind import open_model as open_m2bert
from lmkcli.plugins.m2bert.model import M2BertModel
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.kind import open_model as open_tite
from lmkcli.plugins.tite.model import TiteModel
from lmkcli.pooling.placement import Input
from tests import tiny

Models = Callable[[str], Path]
TRAINABLE = ModelOptions("fp32", "cpu", trainable=True)
PACKED = [name for name, kind in tiny.KINDS.items() if kind.packs]
WINDOWED = (1, 9, 17, 640, 641)  # the last two are computed by blocks


@pytest.fixture(autouse=True)
def _float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers rotates and norms in float32, which is too coarse for numerical gradients."""
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm
    from transformers.models.modernbert import modeling_modernbert
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    def rotate(query, key, cos, sin, unsqueeze_dim=1):  # type: ignore[no-untyped-def]
        cos, sin = (table.unsqueeze(unsqueeze_dim) for table in (cos, sin))
        half = modeling_modernbert.rotate_half
        return query * cos + half(query) * sin, key * cos + half(key) * sin

    def norm(self, x):  # type: ignore[no-untyped-def]
        return self.weight * torch.nn.functional.rms_norm(
            x, x.shape[-1:], eps=self.variance_epsilon
        )

    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotate)
    for kind in (Qwen2RMSNorm, MistralRMSNorm):
        monkeypatch.setattr(kind, "forward", norm)


def tite_folder(folder: Path) -> Path:
    config = TiteConfig(
        vocab_size=tiny.VOCABULARY, hidden_sizes=[16, 24, 24], num_hidden_layers=3,
        num_attention_heads=[2, 2, 2], intermediate_sizes=[32, 48, 48], kernel_sizes=[None, 4, 16],
        strides=[None, 4, 16], max_position_embeddings=64, dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(1)
    TiteModel(config).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)
    return folder


def m2bert_folder(folder: Path) -> Path:
    config = M2BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        max_position_embeddings=64, hyena_filter_order=8, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(1)
    M2BertModel(config).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)
    return folder


def forward_of(folder: Path, *heads: torch.nn.Module) -> ForwardPass:
    """Return the trainable pass of a model, in float64; `heads` follow the segment mean."""
    pooling = Pooling(torch.nn.Identity(), torch.nn.Sequential(*heads))
    return ForwardPass(open_model(read_model(str(folder)), TRAINABLE), pooling).double()


def inputs(lengths: tuple[int, ...], every: int = 3) -> list[Input]:
    """Inputs of one vector each, with every third position marked."""
    random = np.random.default_rng(len(lengths))
    made = []
    for number, length in enumerate(lengths):
        ids = random.integers(5, tiny.VOCABULARY, length).astype(np.int32)
        marks = np.arange(0, length, every, dtype=np.int32)
        made.append(Input(ids, marks, np.full(len(marks), number, np.int32), length))
    return made


def weighted(vectors: torch.Tensor) -> torch.Tensor:
    """A scalar that depends on every dimension of every vector."""
    weights = torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view(vectors.shape)
    return (vectors * weights).sum() + (vectors**2).sum()


def check_gradient(forward: ForwardPass, given: list[Input]) -> None:
    names = [name for name, p in forward.named_parameters() if p.requires_grad]
    own = dict(forward.named_parameters())
    values = tuple(own[name].detach().clone().requires_grad_() for name in names)

    def loss(*parameters: torch.Tensor) -> torch.Tensor:
        made = functional_call(forward, dict(zip(names, parameters, strict=True)), (given,))
        return weighted(made)

    torch.manual_seed(0)
    assert torch.autograd.gradcheck(loss, values, fast_mode=True, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", tiny.KINDS)
def test_gradients_equal_numerical_ones(tiny_model: Models, name: str) -> None:
    forward = forward_of(tiny_model(name), torch.nn.Linear(tiny.WIDTH, 8), torch.nn.Tanh())
    check_gradient(forward, inputs((5, 17, 17, 1, 40)))


@pytest.mark.parametrize("name", ["modernbert", "mistral"])
def test_gradients_through_sliding_windows(tiny_model: Models, name: str) -> None:
    check_gradient(forward_of(tiny_model(name)), inputs(WINDOWED))


def test_gradients_of_tite(tmp_path: Path) -> None:
    model = open_tite(read_model(str(tite_folder(tmp_path / "m"))), TRAINABLE)
    pooling = Pooling(torch.nn.Identity(), torch.nn.Sequential())
    given = [
        one._replace(marks=one.marks[:1], groups=one.groups[:1]) for one in inputs((5, 17, 1, 40))
    ]
    check_gradient(ForwardPass(model, pooling).double(), given)


def test_gradients_of_m2bert(tmp_path: Path) -> None:
    model = open_m2bert(read_model(str(m2bert_folder(tmp_path / "m"))), TRAINABLE)
    pooling = Pooling(torch.nn.Identity(), torch.nn.Sequential())
    given = [
        one._replace(marks=one.marks[:1] * 0, groups=one.groups[:1]) for one in inputs((64, 64))
    ]  # as long as the model: padding is seen, and its embedding has no gradient
    check_gradient(ForwardPass(model, pooling).double(), given)


def test_gradients_through_the_latent_head(tiny_model: Models) -> None:
    torch.manual_seed(0)
    model = open_model(read_model(str(tiny_model("bert"))), TRAINABLE)
    pooling = Pooling(TokenHead(LatentAttention(tiny.WIDTH, 4)), torch.nn.Sequential())
    check_gradient(ForwardPass(model, pooling).double(), inputs((5, 17, 40), every=1))


@pytest.mark.parametrize("lengths", [(5, 17, 17, 1, 40), WINDOWED], ids=["short", "windowed"])
@pytest.mark.parametrize("name", PACKED)
def test_a_pack_has_the_gradients_of_each_text_alone(
    tiny_model: Models, name: str, lengths: tuple[int, ...]
) -> None:
    if max(lengths) > tiny.POSITIONS and name not in ("modernbert", "mistral", "qwen2"):
        pytest.skip("a table of fewer positions")
    forward = forward_of(tiny_model(name)).float()
    assert forward.model.packed
    given = inputs(lengths)
    weighted(forward(given)).backward()
    packed = {n: p.grad.clone() for n, p in forward.named_parameters() if p.grad is not None}
    forward.zero_grad()
    weighted(torch.cat([forward([one]) for one in given])).backward()
    alone = {n: p.grad for n, p in forward.named_parameters() if p.grad is not None}
    assert packed.keys() == alone.keys()
    for key, gradient in packed.items():
        scale = alone[key].abs().max().clamp(min=1e-6)
        assert (gradient - alone[key]).abs().max() <= 1e-5 * scale + 1e-6, key


def test_half_precision_gradients_point_the_same_way(tiny_model: Models) -> None:
    """bf16 rounds places up to whole steps; the filling positions have no gradient."""
    gradients = []
    for dtype in ("fp32", "bf16"):
        options = ModelOptions(dtype, "cpu", trainable=True)
        model = open_model(read_model(str(tiny_model("bert"))), options)
        forward = ForwardPass(model, Pooling(torch.nn.Identity(), torch.nn.Sequential()))
        weighted(forward(inputs((40, 41, 5, 70)))).backward()
        gradients.append(
            torch.cat(
                [p.grad.flatten().float() for p in forward.parameters() if p.grad is not None]
            )
        )
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


def test_a_model_for_inference_has_no_gradients(tiny_model: Models) -> None:
    model = open_model(read_model(str(tiny_model("bert"))), ModelOptions("fp32", "cpu"))
    forward = ForwardPass(model, Pooling(torch.nn.Identity(), torch.nn.Sequential()))
    assert not forward(inputs((5, 7))).requires_grad
    assert not any(p.requires_grad for p in forward.parameters())


@pytest.mark.parametrize("unknown", [-1, tiny.VOCABULARY])
def test_unknown_token_ids_do_not_reach_the_model(
    tiny_model: Models, unknown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would end the use of a GPU in this process."""
    forward = forward_of(tiny_model("bert"))
    given = inputs((5, 7))
    monkeypatch.setattr(type(forward.model), "states", lambda *_: pytest.fail("it was called"))
    given[1].ids[3] = unknown
    with pytest.raises(DataError, match="no embedding for a token"):
        forward(given)


def test_vector_numbers_belong_to_the_vectors(tiny_model: Models) -> None:
    given = inputs((5, 7, 9))
    split = given[1]._replace(groups=np.array([1, 2, 2], np.int32))
    last = given[2]._replace(groups=np.full(len(given[2].groups), 4, np.int32))
    assert vector_numbers([given[0], split, last]).tolist() == [0, 1, 2, 4]
    assert len(forward_of(tiny_model("bert"))([given[0], split, last])) == 4


def test_finishing_averages_cuts_and_normalises_in_this_order() -> None:
    vectors = torch.tensor([[1.0, 0, 9], [0.0, 1, 9], [3.0, 4, 9]], requires_grad=True)
    counts = torch.tensor([2, 1])
    made = Finish(True, 2, True)(vectors, counts)
    half = 0.5**0.5
    torch.testing.assert_close(made, torch.tensor([[half, half], [0.6, 0.8]]))
    made.sum().backward()
    assert vectors.grad is not None
    assert not vectors.grad[:, 2].any()
    torch.testing.assert_close(Finish(False, 0, False)(vectors, counts), vectors)


def test_the_batches_of_a_pack_cover_it() -> None:
    pack = attention.Pack.of([40, 40, 33, 5], aligned=True)
    assert sum(batch.taken for batch in pack.batches()) == sum(pack.taken) == 48 + 48 + 48 + 5


LENGTHS = st.lists(st.integers(1, 60), max_size=50)


@given(LENGTHS, st.integers(1, 150), st.integers(1, 8), st.booleans())
def test_packs_contain_every_sequence_once_and_keep_the_budget(
    lengths: list[int], tokens: int, size: int, padded: bool
) -> None:
    made = packs(lengths, tokens, size, padded)
    assert sorted(number for pack in made for number in pack) == list(range(len(lengths)))
    assert all(1 <= len(pack) <= size for pack in made)
    assert all(len(pack) == 1 or cost(lengths, pack, padded) <= tokens for pack in made)


@given(LENGTHS, st.integers(1, 150), st.integers(1, 8), st.booleans())
def test_packs_start_with_the_longest_and_are_filled(
    lengths: list[int], tokens: int, size: int, padded: bool
) -> None:
    made = packs(lengths, tokens, size, padded)
    ordered = [number for pack in made for number in pack]
    assert [lengths[number] for number in ordered] == sorted(lengths, reverse=True)
    assert all(a < b or lengths[a] != lengths[b] for a, b in pairwise(ordered))
    for pack, after in pairwise(made):
        assert len(pack) == size or cost(lengths, [*pack, after[0]], padded) > tokens


def test_padding_counts_only_if_padded() -> None:
    assert packs([10, 2, 2, 2], 20, 9, padded=False) == [[0, 1, 2, 3]]
    assert packs([10, 2, 2, 2], 20, 9, padded=True) == [[0, 1], [2, 3]]
    assert packs([50], 20, 9, padded=True) == [[0]]


def cost(lengths: list[int], pack: list[int], padded: bool) -> int:
    inside = [lengths[number] for number in pack]
    return max(inside) * len(inside) if padded else sum(inside)
