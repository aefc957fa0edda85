"""Compare the encoding speed of lmk and sentence-transformers, alternating in one run, with medians.

    python benchmarks/encode.py                    # MiniLM (extra demo), mixed short texts, CPU
    python benchmarks/encode.py --model FOLDER --tokens 2048 --texts 8
    python benchmarks/encode.py --device cuda --repeats 5

Prints a markdown table with hardware, lengths and dtypes. Both sides read the same texts with the same
maximum length; the times include tokenizing but not loading. Ratios compare medians of this run. "Share of
the best matrix product" is the rate of linear layers and attention divided by the best rate of a square
product in the same dtype, measured in the same run.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel

from lmkcli.artifact import manifest
from lmkcli.data.collection import Doc, open_collection
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.token_stream import tokenized
from lmkcli.models.lookup import read_model
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}


def texts_of(count: int, tokens: int | None) -> list[str]:
    """Return mixed texts of the standard library; with `tokens`, long texts of about that many tokens."""
    docs = [doc.content for doc in open_collection("stdlib/functions").docs()]
    random.Random(0).shuffle(docs)
    if tokens is None:
        return docs[:count]
    whole = " ".join(docs)
    size = tokens * 3  # characters: more than needed, because both sides cut at the maximum length
    return [whole[i * size : (i + 1) * size] for i in range(count)]


def ours(
    model: str, dtype: str, device: str, length: int | None
) -> Callable[[list[str]], np.ndarray]:
    """Return a function from texts to vectors: `lmk encode` without the disk."""
    resolved = resolve(RecipeOptions(model=model, max_length=length), offline=True)
    settings = EncodeSettings(dtype=dtype, device=device)
    encoder = open_encoder(resolved.recipe.doc, resolved.folder, settings)

    def run(texts: list[str]) -> np.ndarray:
        docs = [Doc(str(i), text) for i, text in enumerate(texts)]
        rows = [row for batch in tokenized(docs, encoder.tokenizer) for row in batch]
        return encoder(rows, Report()).vectors.vectors

    return run


def theirs(
    model: str, dtype: str, device: str, length: int | None, batch: int
) -> Callable[[list[str]], np.ndarray]:
    """sentence-transformers' encode."""
    path = str(read_model(model).path)
    peer = SentenceTransformer(path, device=device, model_kwargs={"dtype": TORCH[dtype]})
    if length:
        peer.max_seq_length = length
    return lambda texts: peer.encode(
        texts, batch_size=batch, show_progress_bar=False, normalize_embeddings=True
    )


def work(model: str, lengths: list[int]) -> float:
    """Return the floating-point operations of linear layers and attention for inputs of these lengths."""
    config = AutoConfig.from_pretrained(str(read_model(model).encoder))
    with torch.device("meta"):
        layers = AutoModel.from_config(config)
    weights = sum(m.weight.numel() for m in layers.modules() if isinstance(m, torch.nn.Linear))
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = 2 * (getattr(config, "sliding_window", None) or 0) + 1
    seen = [min(n, window) if kind == "sliding_attention" else n for kind in kinds for n in lengths]
    attention = sum(n * s for n, s in zip(lengths * len(kinds), seen, strict=True))
    return 2.0 * weights * sum(lengths) + 4.0 * config.hidden_size * attention


def best_rate(dtype: str, device: str) -> float:
    """Return the best rate of a square matrix product, in operations per second."""
    rates = []
    for size in (512, 1024, 2048) if device == "cpu" else (4096, 8192):
        one = torch.randn(size, size, device=device, dtype=TORCH[dtype])
        layer = torch.nn.Linear(size, size, bias=False).to(one)
        for _ in range(10):
            start = time.perf_counter()
            with torch.inference_mode():
                layer(one)
            if device != "cpu":
                torch.cuda.synchronize()
            rates.append(2 * size**3 / (time.perf_counter() - start))
    return max(rates)


def medians(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return median seconds after a warm-up; the sides take turns, so drift affects all equally."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--tokens", type=int, help="long texts of this many tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32, 128])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    texts = texts_of(args.texts, args.tokens)
    runs: dict[str, Callable[[], object]] = {}
    for dtype in args.dtypes:
        mine = ours(args.model, dtype, args.device, args.tokens)
        runs[f"lmk {dtype}"] = lambda mine=mine: mine(texts)
        for batch in args.batches:
            peer = theirs(args.model, dtype, args.device, args.tokens, batch)
            runs[f"sentence-transformers {dtype}, batch {batch}"] = lambda peer=peer: peer(texts)
    show(args, texts, medians(runs, args.repeats))


def show(args: argparse.Namespace, texts: list[str], seconds: dict[str, float]) -> None:
    """Print the table, with hardware, lengths and dtypes."""
    resolved = resolve(RecipeOptions(model=args.model, max_length=args.tokens), offline=True)
    tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    limit = resolved.recipe.doc.max_length
    lengths = [min(len(made.ids) + 2, limit) for made in tokenizer(texts)]
    machine = manifest.environment()["machine"]
    where = torch.cuda.get_device_name() if args.device.startswith("cuda") else machine["cpu"]
    print(
        f"{len(texts)} texts, {sum(lengths):,} positions (mean {np.mean(lengths):.0f}, at most {limit}); "
        f"{where}, {machine['cores']} cores; torch {torch.__version__}; median of {args.repeats}\n"
    )
    best = {
        d: min(v for k, v in seconds.items() if k.startswith(f"sentence-transformers {d}"))
        for d in args.dtypes
    }
    print(
        "| | seconds | tokens/s | times the speed of sentence-transformers' best in the same dtype "
        "| share of the best matrix product |"
    )
    print("|---|---:|---:|---:|---:|")
    todo = work(args.model, lengths)
    rates = {dtype: best_rate(dtype, args.device) for dtype in args.dtypes}
    for name, value in seconds.items():
        dtype = next(d for d in args.dtypes if d in name)
        share = todo / value / rates[dtype]
        print(
            f"| {name} | {value:.2f} | {sum(lengths) / value:,.0f} | {best[dtype] / value:.2f} "
            f"| {share:.0%} |"
        )
    print(", ".join(f"\nbest {d} product: {r / 1e12:.2f} TFLOP/s" for d, r in rates.items()))
    if "lmk bf16" in seconds and "sentence-transformers fp32, batch 32" in seconds:
        ratio = seconds["sentence-transformers fp32, batch 32"] / seconds["lmk bf16"]
        print(f"\nlmk bf16 against sentence-transformers' default (fp32, batch 32): {ratio:.1f}x")


if __name__ == "__main__":
    main()
