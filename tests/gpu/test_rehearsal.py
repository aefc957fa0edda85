"""Forward passes on CUDA devices, rehearsed without a GPU: right devices, right dtypes, and no waiting."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from lmkcli.encoding.encoder import (
    BatchRunner,
    Encoder,
    encoder_of,
    open_forward,
)
from lmkcli.encoding.resolution import representation_of, resolve
from lmkcli.models import attention, language_head
from lmkcli.models.crossencoder import open_cross_encoder
from lmkcli.models.forward import ForwardPass, ModelOptions
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.plugins.sparse.splade_pooling import SpladePooling
from lmkcli.pooling.placement import Input
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from tests import tiny
from tests.gpu.rehearsal import CUDA, Synchronised, rehearsed, rehearsed_forward
from tests.models.test_forward import m2bert_folder, tite_folder
from tests.models.test_late import pylate as pylate  # a fixture

Models = Callable[[str], Path]
AnyEncoder = Encoder[Any]
pytestmark = pytest.mark.skipif(
    not torch.backends.cuda.is_built(), reason="needs PyTorch's CUDA build; a GPU is not needed"
)
TEXTS = [tiny.sentence(i, n) for i, n in enumerate((3, 20, 20, 70, 200))]


def encoder(folder: Path, dtype: str, side: str = "doc", **options: Any) -> AnyEncoder:
    """The encoder of documents or queries, with the layers that a GPU would run."""
    resolved = resolve(RecipeOptions(model=str(folder), **options))
    config = getattr(resolved.recipe, side)
    how = ModelOptions(dtype, "cpu", trainable=True)
    runner = BatchRunner(
        open_forward(config, resolved.folder, how).requires_grad_(False), EncodeSettings()
    )
    tokenizer = open_tokenizer(resolved.folder, config)
    return encoder_of(config, tokenizer, runner, "m")


def inputs(encoder: AnyEncoder) -> list[Input]:
    placed = encoder.placed(encoder.tokenizer(TEXTS))
    found = [one for placement in placed for one in placement.inputs]
    firsts = [0]
    for placement in placed:
        firsts += [firsts[-1] + placement.vectors]
    numbers = [n for n, placement in enumerate(placed) for _ in placement.inputs]
    return [
        one._replace(groups=one.groups + firsts[n]) for one, n in zip(found, numbers, strict=True)
    ]


def check(
    forward: ForwardPass, inputs: list[Input], width: int, device: torch.device = CUDA
) -> None:
    with rehearsed_forward(forward, device), torch.inference_mode():
        vectors = forward(inputs)
        assert vectors.device == device
        assert vectors.dtype == torch.float32
        assert vectors.shape[1] == width


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet", "modernbert", "qwen2", "mistral"])
@pytest.mark.parametrize(
    "options",
    [
        {"pool": "mean"},
        {"pool": "lmk", "gran": "8"},
        {"pool": "multicls", "gran": "8"},
        {"pool": "mean", "unit": "chunk", "gran": "8"},
        {"pool": "mean", "window": "32"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_a_pass_stays_on_the_device(
    tiny_model: Models, name: str, dtype: str, options: dict[str, str]
) -> None:
    if name in ("qwen2", "mistral") and options["pool"] == "multicls":
        pytest.skip("it has no first special token")
    one = encoder(tiny_model(name), dtype, **options)
    check(one.runner.forward, inputs(one), one.dim)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
@pytest.mark.parametrize("trained", [False, True], ids=["encoding", "training"])
@pytest.mark.parametrize(
    "options",
    [
        {"pool": "splade"},
        {"pool": "splade-sum"},
        {"pool": "splade-log"},
        {"pool": "splade", "window": "32"},
        {"pool": "splade", "unit": "chunk", "gran": "8"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_sparse_vectors(
    masked_model: Models,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: str,
    trained: bool,
    options: dict[str, str],
) -> None:
    """The vectors stay on the device as a matrix. Some texts share a block of logits, some need several."""
    monkeypatch.setitem(language_head.LOGITS, "cpu", 64 * tiny.VOCABULARY)
    one = encoder(masked_model(name), dtype, **options)
    forward = one.runner.forward
    if not trained:
        how = representation_of(options["pool"])
        forward.pooling = SpladePooling(forward.pooling.token_head, how.of_marks, how.logarithms)
    check(forward, inputs(one), one.dim)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")  # the key of a cache
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("make", [tite_folder, m2bert_folder])
def test_models_of_other_kinds(tmp_path: Path, make: Any, dtype: str) -> None:
    one = encoder(make(tmp_path / "m"), dtype)
    check(one.runner.forward, inputs(one), one.dim)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("side", ["query", "doc"])
def test_late_interaction(pylate: Callable[..., Path], side: str, dtype: str) -> None:
    one = encoder(pylate(), dtype, side=side)
    check(one.runner.forward, inputs(one), one.dim)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="this machine has a GPU, but only one")
def test_a_second_device(tiny_model: Models) -> None:
    one = encoder(tiny_model("bert"), "bf16", pool="lmk", gran="8")
    check(one.runner.forward, inputs(one), one.dim, torch.device("cuda", 1))


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen2"])
def test_an_older_kernel_without_these_arguments(
    tiny_model: Models, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel of torch 2.10 for packed sequences has neither a scale, nor windows, nor grouped heads."""

    def older(q: Any, k: Any, v: Any, starts: Any, others: Any, longest: int, other: int) -> Any:
        raise AssertionError("called")

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", older)
    attention.kernel_arguments.cache_clear()
    one = encoder(tiny_model(name), "bf16", pool="mean")
    try:
        check(one.runner.forward, inputs(one), one.dim)
    finally:
        attention.kernel_arguments.cache_clear()


def test_heads_whose_width_is_no_multiple_of_8(tmp_path: Path) -> None:
    shape = {"hidden_size": 20, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=tiny.VOCABULARY, num_hidden_layers=1, **shape)
    transformers.BertModel(config).save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    one = encoder(tmp_path, "bf16", pool="mean")
    check(one.runner.forward, inputs(one), one.dim)


@pytest.mark.parametrize("labels", [1, 2])
def test_cross_encoders(tmp_path: Path, labels: int) -> None:
    config = transformers.BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=labels,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    model = open_cross_encoder(str(tmp_path), "cpu", offline=True).model
    with rehearsed(model), torch.inference_mode():
        ids = torch.ones(3, 7, dtype=torch.long).to(CUDA)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        assert logits.device == CUDA
        assert logits.shape == (3, labels)


def test_the_rehearsal_finds_faults() -> None:
    class Wrong(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))
            self.forgotten = torch.ones(4)

    module = Wrong()
    with rehearsed(module):
        with pytest.raises(RuntimeError, match="device"):
            module.weight + module.forgotten
        with pytest.raises(Synchronised):
            module.weight.cpu()
        with pytest.raises(DataDependentOutputException):
            module.weight[0].item()
        with pytest.raises(DynamicOutputShapeException):
            module.weight[module.weight > 0]
    assert module.weight.device.type == "cpu"
