"""Compare ways to encode with int8 products on a CPU: speed relative to lmk's bf16, and cosines to fp32.

    python benchmarks/int8.py                       # MiniLM (extra demo), functions of Python's library
    python benchmarks/int8.py --source ./scifact --threads 1 2 --lengths 80 256
    python benchmarks/int8.py --ways linear openvino

lmk offers no int8; this benchmark measures why. It is for processors with VNNI but without AMX. With AMX,
set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, which hides AMX from PyTorch. The rows of OpenVINO need the packages
openvino and nncf, and one row needs torchao. Without its packages, a row is left out.

All ways read the same ids and take turns. lmk and PyTorch pack inputs in one row; OpenVINO pads batches of 8
inputs of similar lengths. For a length N below 128, inputs have 3 N / 4 to 5 N / 4 tokens; otherwise N.
Processor time is the time of all threads: other work on the machine changes it less than wall time.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cosine_similarity, layer_norm

from lmkcli.artifact import manifest
from lmkcli.data.collection import open_collection
from lmkcli.encoding.resolution import resolve
from lmkcli.models.attention import Pack, packed_attention
from lmkcli.models.forward import ModelOptions
from lmkcli.models.model_folder import ModelFolder
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.models.transformer import Transformer, open_model
from lmkcli.spec.recipe import RecipeOptions

Sequences = list[NDArray[np.int32]]
Run = Callable[[Sequences], torch.Tensor]  # to the states of all positions
ROWS = 512  # of a block: its activations stay in the cache
PADDED = 8  # inputs in a batch of OpenVINO
ZERO = 16  # the number of zero in GELU's output: 16 of 255 steps are below it
LOWEST = 0.17  # of GELU, negated
SMOOTHING = 0.5  # how much of the range of a channel moves from the activations to the weights


class Ranges(NamedTuple):
    """The least and the largest value of each channel of a layer's input."""

    low: torch.Tensor
    high: torch.Tensor


class Int8Linear:
    """A linear layer with int8 weights, one scale per output, and inputs in uint8.

    With ranges, inputs have one scale for all tokens, and each channel is divided by a factor that its
    weights contain (SmoothQuant). Without, the caller quantises each token and applies its scale.
    """

    def __init__(self, layers: list[nn.Linear], ranges: Ranges | None = None) -> None:
        weight = torch.cat([layer.weight.detach() for layer in layers])
        self.bias = torch.cat([layer.bias.detach() for layer in layers])
        self.scale, self.zero = 1.0, 0
        if ranges is not None:
            widest = torch.maximum(ranges.high, -ranges.low).clamp_min(1e-5)
            of_weights = weight.abs().amax(0).clamp_min(1e-5)
            factor = widest**SMOOTHING / of_weights ** (1 - SMOOTHING)
            low, high = (ranges.low / factor).min(), (ranges.high / factor).max()
            self.scale = float(high - low) / 255
            self.zero = round(float(-low) / self.scale)
            self.to_steps = 1 / (factor * self.scale)
            weight = weight * factor
        self.weight_scale = weight.abs().amax(1) / 127
        steps = (weight / self.weight_scale[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(steps, [ROWS, weight.shape[1]])
        self.weight_zero = torch.zeros(len(weight), dtype=torch.int32)

    def __call__(self, x: torch.Tensor, dtype: torch.dtype, gelu: str = "") -> torch.Tensor:
        """[rows, in] -> [rows, out], of inputs with one scale."""
        return self._product(
            steps_of(x * self.to_steps, self.zero), self.zero, self.bias, dtype, gelu
        )

    def of_tokens(self, x: torch.Tensor, scale: torch.Tensor, zero: int) -> torch.Tensor:
        """[rows, in] and [rows, 1] -> [rows, out] without scale and bias; `x` is overwritten."""
        return self._product(steps_of(x.mul_(1 / scale), zero), zero, None, torch.float32, "")

    def _product(
        self, x: torch.Tensor, zero: int, bias: Any, dtype: Any, gelu: str
    ) -> torch.Tensor:
        return torch.ops.onednn.qlinear_pointwise(  # type: ignore[no-any-return]
            x, self.scale, zero, self.weight, self.weight_scale, self.weight_zero, bias, 1.0, 0,
            dtype, "gelu" if gelu else "none", [], gelu,
        )  # fmt: skip


def steps_of(x: torch.Tensor, zero: int) -> torch.Tensor:
    """Round to uint8, with `zero` for 0. This is the only kernel of PyTorch for it that takes one pass."""
    steps = torch.quantize_per_tensor(x, 1.0, zero, torch.quint8)
    return torch.empty(0, dtype=torch.uint8).set_(
        steps.untyped_storage(), 0, steps.shape, steps.stride()
    )


class Int8Layer(nn.Module):
    """A layer of BERT with int8 products; attention in bf16, the rest in float32."""

    def __init__(self, layer: Any, ranges: dict[str, Ranges]) -> None:
        super().__init__()
        attention = layer.attention
        of = attention.self
        self.qkv = Int8Linear([of.query, of.key, of.value], ranges["qkv"])
        self.attended = Int8Linear([attention.output.dense])
        self.up = Int8Linear([layer.intermediate.dense], ranges["up"])
        self.down = Int8Linear([layer.output.dense])
        self.norms = attention.output.LayerNorm, layer.output.LayerNorm
        self.heads, self.width, self.scaling = (
            of.num_attention_heads, of.attention_head_size, of.scaling,
        )  # fmt: skip

    def forward(self, hidden_states: torch.Tensor, *_: Any, pack: Pack, **__: Any) -> torch.Tensor:
        """[1, tokens, d] -> [1, tokens, d]."""
        x = hidden_states[0]
        qkv = self.qkv(x, torch.bfloat16).view(len(x), 3, self.heads, self.width)
        query, key, value = (part.transpose(0, 1)[None] for part in qkv.unbind(1))
        found, _ = packed_attention(self, query, key, value, None, self.scaling, None, False, pack)
        blocks = zip(x.split(ROWS), found.reshape(len(x), -1).split(ROWS), strict=True)
        return torch.cat([self.after_attention(*block) for block in blocks])[None]

    def after_attention(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """[rows, d] and [rows, d] -> [rows, d]."""
        attended = attended.float()
        largest = torch.maximum(attended.amax(-1, True), -attended.amin(-1, True))
        scale = largest.clamp_min(1e-9) / 127
        product = self.attended.of_tokens(attended, scale, 128)
        x = normed(torch.addcmul(x + self.attended.bias, product, scale), self.norms[0])
        inner = self.up(x, torch.float32, gelu="none")
        scale = (inner.amax(-1, True) / (255 - ZERO)).clamp_min(LOWEST / ZERO)
        product = self.down.of_tokens(inner, scale, ZERO)
        return normed(torch.addcmul(x + self.down.bias, product, scale), self.norms[1])


def normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    return layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def lmk(dtype: str, folder: ModelFolder, _: Path) -> Run:
    model = open_model(folder, ModelOptions(dtype, "cpu"))
    return lambda sequences: model.states(sequences)


def plain(folder: ModelFolder) -> Transformer:
    """The model in fp32 with the layers of transformers, packed."""
    model = open_model(folder, ModelOptions("fp32", "cpu", trainable=True))
    model.module.requires_grad_(False)
    return model


def int8_layers(folder: ModelFolder, _: Path) -> Run:
    """oneDNN's int8 products behind lmk's packed pass. Ranges come from random tokens, without texts."""
    model = plain(folder)
    layers = model.module.encoder.layer
    found: dict[tuple[int, str], Ranges] = {}

    def watch(key: tuple[int, str], _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        x = inputs[0].flatten(0, -2)
        now = Ranges(x.amin(0), x.amax(0))
        then = found.get(key, now)
        found[key] = Ranges(torch.minimum(now.low, then.low), torch.maximum(now.high, then.high))

    hooks = []
    for number, layer in enumerate(layers):
        for name, part in (("qkv", layer.attention.self.query), ("up", layer.intermediate.dense)):
            hooks.append(part.register_forward_pre_hook(partial(watch, (number, name))))
    rng, words = np.random.default_rng(0), model.module.config.vocab_size
    for length in (8, 32, 128, 256):
        model.states([rng.integers(1000, words, length, np.int32) for _ in range(1024 // length)])
    for hook in hooks:
        hook.remove()
    for number, layer in enumerate(layers):
        layers[number] = Int8Layer(layer, {name: found[number, name] for name in ("qkv", "up")})
    model.dtype = "bf16"  # of attention, so that sequences fill whole steps
    return lambda sequences: model.states(sequences)


def torch_dynamic(folder: ModelFolder, _: Path) -> Run:
    """PyTorch's dynamic quantisation: one scale for all activations of a product."""
    model = plain(folder)
    each = {nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
    model.module = torch.ao.quantization.quantize_dynamic(model.module, each)
    return lambda sequences: model.states(sequences)


def torchao_dynamic(folder: ModelFolder, _: Path) -> Run:
    """torchao's int8 for weights and, per token, for activations, without torch.compile."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model = plain(folder)
    quantize_(model.module, Int8DynamicActivationInt8WeightConfig())
    return lambda sequences: model.states(sequences)


def openvino(kind: str, folder: ModelFolder, texts: Path) -> Run:
    """OpenVINO in bf16; in int8 with ranges from texts (NNCF); or with int8 weights alone.

    With int8 weights alone ('weights'), OpenVINO quantises activations while it runs, 32 at a time.
    """
    import nncf
    import openvino as ov
    from transformers import AutoModel

    module = AutoModel.from_pretrained(str(folder.encoder), attn_implementation="eager").eval()

    class States(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            output = self.module(input_ids=input_ids, attention_mask=attention_mask)
            return output.last_hidden_state  # type: ignore[no-any-return]

    ids = torch.arange(1000, 1032).view(2, 16)
    example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    converted = ov.convert_model(States(), example_input=example)
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if kind == "bf16" else "f32",
    }  # fmt: skip
    if kind == "weights":
        mode = nncf.CompressWeightsMode.INT8_SYM
        converted = nncf.compress_weights(converted, mode=mode)
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 32
    if kind == "int8":
        seen = nncf.Dataset(list(np.load(texts)), lambda row: _batch([row]))
        kind_of_model = nncf.ModelType.TRANSFORMER
        converted = nncf.quantize(converted, seen, model_type=kind_of_model, subset_size=100)
    request = ov.Core().compile_model(converted, "CPU", options).create_infer_request()

    def run(sequences: Sequences) -> torch.Tensor:
        states = []
        for first in range(0, len(sequences), PADDED):
            batch = sequences[first : first + PADDED]
            request.infer(_batch(batch))
            padded = request.get_output_tensor(0).data
            states += [padded[row, : len(ids)].copy() for row, ids in enumerate(batch)]
        return torch.from_numpy(np.concatenate(states))

    return run


def _batch(sequences: Sequences) -> dict[str, NDArray[np.int64]]:
    ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    seen = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], seen[row, : len(sequence)] = sequence, 1
    return {"input_ids": ids, "attention_mask": seen}


class Way(NamedTuple):
    name: str
    make: Callable[[ModelFolder, Path], Run]
    needs: tuple[str, ...] = ()


WAYS = {
    "bf16": Way("lmk bf16", partial(lmk, "bf16")),
    "linear": Way("oneDNN int8 in lmk's pass", int8_layers),
    "dynamic": Way("PyTorch quantize_dynamic", torch_dynamic),
    "torchao": Way("torchao int8, per token", torchao_dynamic, ("torchao",)),
    "ov-bf16": Way("OpenVINO bf16", partial(openvino, "bf16"), ("openvino", "nncf")),
    "ov-weights": Way("OpenVINO int8 weights", partial(openvino, "weights"), ("openvino", "nncf")),
    "openvino": Way("OpenVINO int8, from texts", partial(openvino, "int8"), ("openvino", "nncf")),
}


def inputs(model: str, source: str, length: int, positions: int) -> Sequences:
    """Return texts of the source in full inputs of about this length, the longest first."""
    resolved = resolve(RecipeOptions(model=model), offline=True)
    tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    rng = np.random.default_rng(0)
    found: Sequences = []
    for doc in open_collection(source).docs():
        size = length if length >= 128 else int(rng.integers(length * 3 // 4, length * 5 // 4))
        ids = tokenizer([doc.content])[0].ids[: size - 2]
        if len(ids) == size - 2:
            special = tokenizer.special
            found.append(np.array([*special.prefix, *ids, *special.suffix], np.int32))
        if sum(map(len, found)) >= positions:
            break
    return sorted(found, key=len, reverse=True)


def vectors(states: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """The means of the states, [inputs, d]."""
    parts = states.float().split([len(sequence) for sequence in sequences])
    return torch.stack([part.mean(0) for part in parts])


class Seconds(NamedTuple):
    wall: float
    cpu: float


def measure(runs: dict[str, Run], sequences: Sequences, repeats: int) -> dict[str, Seconds]:
    """Return medians; the ways take turns."""
    taken: dict[str, list[Seconds]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run(sequences)
            taken[name].append(Seconds(time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: Seconds(*map(statistics.median, zip(*all_, strict=True)))
        for name, all_ in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="minilm", help="a BERT with mean pooling")
    parser.add_argument("--source", default="stdlib/functions", help="collection of the texts")
    parser.add_argument("--lengths", nargs="+", type=int, default=[80, 256])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--positions", type=int, default=4096, help="of the texts of a pass")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    args = parser.parse_args()
    chosen = {WAYS[key] for key in ("bf16", *args.ways)}
    ways = [way for way in WAYS.values() if way in chosen and all(map(find_spec, way.needs))]
    folder = resolve(RecipeOptions(model=args.model), offline=True).folder
    print("| | " + " | ".join(HEADER) + " |\n|---|" + "---:|" * len(HEADER))
    with torch.inference_mode(), tempfile.TemporaryDirectory() as work:
        texts = Path(work) / "texts.npy"
        np.save(texts, inputs(args.model, args.source, 128, 12_800))
        reference = lmk("fp32", folder, texts)
        for threads in args.threads:
            torch.set_num_threads(threads)
            with redirect_stdout(sys.stderr):  # nncf reports its steps
                runs = {way.name: way.make(folder, texts) for way in ways}
            for length in args.lengths:
                sequences = inputs(args.model, args.source, length, args.positions)
                exact = vectors(reference(sequences), sequences)
                cosines = {
                    name: cosine_similarity(vectors(run(sequences), sequences), exact)
                    for name, run in runs.items()
                }
                seconds = measure(runs, sequences, args.repeats)
                first = seconds[WAYS["bf16"].name]
                for name, each in seconds.items():
                    print(
                        f"| {name} | {threads} | {length} | {1000 * each.wall:.0f} "
                        f"| {first.wall / each.wall:.2f} | {1000 * each.cpu:.0f} "
                        f"| {first.cpu / each.cpu:.2f} | {cosines[name].mean():.4f} "
                        f"| {cosines[name].min():.4f} |",
                        flush=True,
                    )
    machine = manifest.environment()["machine"]
    print(
        f"\n{args.positions} positions in a pass; {machine['cpu']}, {machine['cores']} cores; "
        f"{torch.backends.cpu.get_cpu_capability()}; torch {torch.__version__}; "
        f"medians of {args.repeats}"
    )


HEADER = (
    "threads", "tokens", "ms", "times as fast as lmk bf16", "processor ms", "times as fast",
    "mean cosine", "lowest cosine",
)  # fmt: skip


if __name__ == "__main__":
    main()
