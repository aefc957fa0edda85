"""Everything that a GPU is used for, in one run of about four minutes, beside the peers and the hardware.

    python benchmarks/gpu.py                              # needs the extra demo
    python benchmarks/gpu.py --only search encode
    python benchmarks/gpu.py --device cpu --scale 0.001   # does it run?

Models have random weights in the shapes of MiniLM, BERT-base, ModernBERT-base and Qwen3-0.6B, and MiniLM's
tokenizer. Texts are passages of 80 tokens and the modules of the standard library. All computes in bf16.

- passes: one pack in the model, with and without fused layers; the median of five. Lengths of documents
  are drawn from a log-normal distribution (median 2,981) and cut at 8,192.
- encode: `lmk encode` of a tokens folder and of a jsonl file, and sentence-transformers with two batch sizes,
  which gets every eighth text. Times are wall time after the model was loaded, with storing; the best of two
  rounds. "Of the product" is the share of the best matrix product of the device; "busy" the time of all
  kernels over the wall time, under torch's profiler.
- search: exact search of 1,000 queries in a memory-mapped fp16 file, the first time and with vectors that
  are on the device, beside ten lines of torch.
- train: `lmk train` and the trainer of sentence-transformers with its cached loss, the same pairs.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from exact import Stored
from pipeline import TOKENS, make_passages
from sentence_transformers import SentenceTransformer
from torch.profiler import ProfilerActivity, profile
from train import Clock
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    ModernBertConfig,
    PretrainedConfig,
    Qwen3Config,
)

from lmkcli import Encode, Tokenize
from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.data.collection import open_collection
from lmkcli.models import attention
from lmkcli.models.fast_paths import fuse
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import Transformer
from lmkcli.retrieval.engines.exact.exact_search import Exact
from lmkcli.retrieval.engines.exact.gpu_search import GpuExact
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.vectors.dense_codecs import FP16
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import StoredBlock

VOCABULARY = {"vocab_size": 30_522, "pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102}
QWEN = {
    "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip


class Row(NamedTuple):
    """One model with one kind of texts."""

    name: str
    config: PretrainedConfig
    texts: str  # 'passages' or 'documents'
    count: int  # how many of them
    longest: int  # positions
    poolings: tuple[tuple[str, ...], ...]  # words of lmk
    batches: tuple[int, int]  # of sentence-transformers


def rows() -> list[Row]:
    mini = BertConfig(
        hidden_size=384, num_hidden_layers=6, intermediate_size=1536, num_attention_heads=12
    )
    base, modern = BertConfig(), ModernBertConfig(**VOCABULARY, cls_token_id=101, sep_token_id=102)
    mean, landmarks = ("mean",), ("lmk", "64")
    return [
        Row(
            "MiniLM, 80 tokens", mini, "passages", 120_000, 256, (mean, ("lmk", "16")), (512, 2048)
        ),
        Row("BERT-base, 80 tokens", base, "passages", 30_000, 256, (mean,), (128, 512)),
        Row("BERT-base, cut at 512", base, "documents", 3_000, 512, (mean,), (32, 128)),
        Row(
            *("ModernBERT-base, 8,192", modern, "documents", 600, 8192, (mean, landmarks)),
            batches=(4, 16),
        ),
        Row(
            *("Qwen3-0.6B, 8,192", Qwen3Config(**QWEN, **VOCABULARY), "documents", 240, 8192),
            *((("last",),), (2, 8)),
        ),
    ]


def best_product(device: str) -> float:
    """Return the operations a second of the best product of two large matrices in bf16."""
    best = 0.0
    for size in (4096, 8192) if device != "cpu" else (512,):
        a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        for _ in range(3):
            seconds = timed(lambda a=a: [a @ a for _ in range(10)], device)  # type: ignore[misc]
            best = max(best, 20 * size**3 / seconds)
    return best


def timed(work: Callable[[], Any], device: str) -> float:
    """Return the seconds until the work is done, on the device too."""
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def operations(config: Any, lengths: np.ndarray) -> float:
    """Return the floating-point operations of a pass over texts of these lengths.

    Two for each weight of the layers and each position, and four times the width of the heads for each pair
    of positions that attention compares.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    heads = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries = heads * config.num_attention_heads
    keys = heads * (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    matrices = 2 if isinstance(config, BertConfig) else 3  # a gate is a third one
    weights = hidden * (2 * queries + 2 * keys) + matrices * hidden * config.intermediate_size
    pairs = lengths.astype(float) ** 2
    if isinstance(config, Qwen3Config):  # each position reads those before it
        seen = pairs / 2 * layers
    elif isinstance(config, ModernBertConfig):
        every = config.layer_types.count("full_attention")
        near = np.minimum(pairs, lengths.astype(float) * config.local_attention)
        seen = pairs * every + near * (layers - every)
    else:
        seen = pairs * layers
    return float((2 * weights * layers * lengths).sum() + 4 * queries * seen.sum())


def positions(tokenizer: Any, texts: list[str], longest: int) -> np.ndarray:
    """Return the number of positions of each text."""
    fast = tokenizer.backend_tokenizer
    fast.no_truncation()
    fast.no_padding()
    return np.minimum([len(each) for each in fast.encode_batch_fast(texts)], longest)


class Side:
    """The folders of one row, and what is measured with them."""

    def __init__(self, folder: Path, row: Row, texts: list[str], device: str) -> None:
        self.folder, self.row, self.texts, self.device = folder, row, texts, device
        self.number = 0
        folder.mkdir()
        torch.manual_seed(7)
        with torch.device(device):
            made = AutoModel.from_config(row.config, dtype=torch.bfloat16)
        made.save_pretrained(folder / "model")
        self.tokenizer = AutoTokenizer.from_pretrained(read_model("minilm").encoder)
        self.tokenizer.save_pretrained(folder / "model")
        self.file, self.tokens = folder / "texts.jsonl", folder / "tokens"
        lines = [json.dumps({"_id": f"p{n}", "text": text}) for n, text in enumerate(texts)]
        self.file.write_text("\n".join(lines) + "\n")
        Tokenize(str(self.file), output=self.tokens, model=str(folder / "model")).run()

    @cached_property
    def lengths(self) -> np.ndarray:
        """The positions of each text."""
        return positions(self.tokenizer, self.texts, self.row.longest)

    def runs(self) -> Iterator[tuple[str, Callable[[], float]]]:
        """Yield what is measured: functions that return seconds for all texts."""
        for words in self.row.poolings:
            name = "@".join(words)
            yield f"lmk, tokens, {name}", lambda words=words: self.encode(self.tokens, words)  # type: ignore[misc]
        first = self.row.poolings[0]
        yield f"lmk, text, {first[0]}", lambda: self.encode(self.file, first)
        peer = SentenceTransformer(
            str(self.folder / "model"), device=self.device, model_kwargs={"dtype": torch.bfloat16}
        )
        peer.max_seq_length = self.row.longest
        some = self.texts[::8]
        share = sum(self.lengths) / sum(self.lengths[::8])

        def theirs(size: int) -> float:
            work = lambda: peer.encode(some, batch_size=size, show_progress_bar=False)  # noqa: E731
            return timed(work, self.device) * share

        for size in self.row.batches:
            yield f"sentence-transformers, {size}", lambda size=size: theirs(size)  # type: ignore[misc]

    def busy(self) -> float:
        """Return the share of the time in which the GPU computes."""
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            seconds = self.encode(self.tokens, self.row.poolings[0])
        kernels = sum(event.self_device_time_total for event in seen.key_averages())
        return kernels / 1e6 / max(seconds, 1e-9)

    def encode(self, source: Path, words: tuple[str, ...]) -> float:
        """Return the seconds of `lmk encode` after it loaded the model."""
        self.number += 1
        gran = {"gran": words[1]} if len(words) > 1 else {}
        output = self.folder / f"vectors-{self.number}"
        Encode(
            str(source),
            output=output,
            model=str(self.folder / "model"),
            pool=words[0],
            max_length=self.row.longest,
            dtype="bf16",
            device=self.device,
            **gran,
        ).run()
        work = manifest.read(output, VectorsManifest).facts.work
        assert work is not None
        return work.seconds


def passing(args: argparse.Namespace, product: float) -> None:
    """Print the table of single passes of the models."""
    print("| one pack | ms | positions/s | of the product |\n|---|---:|---:|---:|")
    device, random = torch.device(args.device), np.random.default_rng(0)
    all_rows = rows()
    packs = {
        0: [82] * 800,
        2: [512] * 128,
        3: _lengths(random, 65_536),
        4: _lengths(random, 32_768),
    }
    for number, lengths in packs.items():
        row = all_rows[number]
        if args.device == "cpu":
            lengths = [min(64, n) for n in lengths[:2]]
        with torch.device(device):
            module = AutoModel.from_config(row.config, dtype=torch.bfloat16)
        module = module.eval().requires_grad_(False)
        model = Transformer(module, row.config.hidden_size, row.longest, device, "bf16")
        module.set_attn_implementation(attention.NAME)
        model.packed = True
        if isinstance(row.config, Qwen3Config):
            model._kwargs = {"use_cache": False}
        ids = [random.integers(1000, 30_000, n).astype(np.int32) for n in lengths]
        work = operations(row.config, np.array(lengths))
        for name in ("plain", "fused"):
            if name == "fused":
                fuse(module, device)
            with torch.inference_mode():
                model.states(ids)
                times = [timed(partial(model.states, ids), args.device) for _ in range(5)]
            seconds = statistics.median(times)
            print(
                f"| {row.name}: {name} | {seconds * 1e3:.1f} | {sum(lengths) / seconds:,.0f} | "
                f"{work / seconds / product:.0%} |",
                flush=True,
            )
        del module, model
        gc.collect()


def _lengths(random: np.random.Generator, total: int) -> list[int]:
    """Return lengths of documents that have `total` positions together, or a few more."""
    lengths: list[int] = []
    while sum(lengths) < total:
        lengths.append(int(np.clip(random.lognormal(8, 1), 20, 8192)))
    return sorted(lengths, reverse=True)


def encoding(args: argparse.Namespace, folder: Path, product: float) -> None:
    """Print the table of encodings."""
    print("| encode | texts/s | positions/s | of the product |\n|---|---:|---:|---:|")
    modules = [doc.content for doc in open_collection("stdlib/modules").docs()]
    for number, row in enumerate(rows()):
        if args.rows and not any(part in row.name for part in args.rows):
            continue
        if args.device == "cpu":
            row = row._replace(longest=min(row.longest, 128))
        count = max(4, int(row.count * args.scale))
        texts = [modules[n % len(modules)] for n in range(count)]
        if row.texts == "passages":
            texts = make_passages(read_model("minilm").path, count)
        side = Side(folder / str(number), row, texts, args.device)
        lengths = side.lengths
        whole = operations(row.config, lengths)
        runs = dict(side.runs())
        for run in runs.values():  # loads kernels
            run()
        taken = {name: min(run() for _ in range(args.repeats)) for name, run in runs.items()}
        for name, seconds in taken.items():
            seconds = max(seconds, 1e-9)
            print(
                f"| {row.name}: {name} | {count / seconds:,.0f} | {lengths.sum() / seconds:,.0f} | "
                f"{whole / seconds / product:.0%} |",
                flush=True,
            )
        if args.device != "cpu":
            print(f"| {row.name}: GPU busy | | | {side.busy():.0%} |", flush=True)
        gc.collect()


def plain(vectors: Any, queries: torch.Tensor, k: int) -> Any:
    """The search of ten lines: products of blocks, the best of each, and the best of these."""
    scores, numbers = [], []
    for first in range(0, len(vectors), 1 << 17):
        block = queries @ vectors[first : first + (1 << 17)].T
        best = block.topk(min(k, block.shape[1]), dim=1)
        scores.append(best.values)
        numbers.append(best.indices + first)
    values, places = torch.cat(scores, 1).topk(k, dim=1)
    return torch.cat(numbers, 1).gather(1, places).cpu(), values.cpu()


class OnDisk(Stored):
    """The same as an artifact gives it: in the form in which it is stored."""

    codec = FP16

    def stored_blocks(self, most: int) -> Iterator[StoredBlock]:
        for first in range(0, self.rows, most):
            block = self._matrix[first : first + most].numpy()
            yield StoredBlock({"vectors": block}, np.ones(len(block), np.int64))


def searching(args: argparse.Namespace, folder: Path) -> None:
    """Print the table of searches."""
    print("\n| exact search, 1,000 queries | seconds | vectors on the device |\n|---|---:|---:|")
    device = torch.device(args.device)
    for dim, k in ((384, 1000), (768, 100)):
        count = max(1000, 4 * k, int(1_000_000 * args.scale))
        random = torch.Generator(device).manual_seed(0)
        path = folder / f"{dim}.npy"
        made = torch.randn(count, dim, generator=random, device=device)
        centres = made[:1000].repeat(-(-count // 1000), 1)[:count]
        made = torch.nn.functional.normalize(made + centres, dim=1).half()
        np.save(path, made.cpu().numpy())
        queries = torch.nn.functional.normalize(
            torch.randn(1000, dim, generator=random, device=device) + made[:1000].float(), dim=1
        )
        del made, centres
        stored = OnDisk(path)
        vectors = Ragged.single(queries.cpu().numpy())
        mine: dict[str, list[float]] = {"lmk": [], "torch": []}
        kept: dict[str, list[float]] = {"lmk": [], "torch": []}
        for _ in range(args.repeats + 1):
            ours, source = GpuExact(stored, device), torch.from_numpy(np.load(path, mmap_mode="c"))
            there, low = source.to(device), queries.half()
            searches = {
                "lmk": (partial(ours.search, vectors, k),) * 2,
                "torch": (lambda: plain(source.to(device), low, k), partial(plain, there, low, k)),  # noqa: B023
            }
            for name, (first, again) in searches.items():
                mine[name].append(timed(first, args.device))
                kept[name].append(timed(again, args.device))
            del there, searches
        for name in mine:
            first, again = statistics.median(mine[name][1:]), statistics.median(kept[name][1:])
            print(f"| {count:,} x {dim}, k {k}: {name} | {first:.3f} | {again:.3f} |", flush=True)
        some = Ragged.single(vectors.vectors[:20])
        exact = Exact(stored, torch.device("cpu")).search(some, k)
        found = ours.search(some, k)
        same = all(
            set(a.tolist()) == set(b.tolist()) for a, b in zip(found.rows, exact.rows, strict=True)
        )
        print(f"| the same documents as on the CPU | {same} | |", flush=True)


def training(args: argparse.Namespace, folder: Path) -> None:
    """Print the table of trainings: ModernBERT's shape, landmarks, 8,192 and 512 positions."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
    )

    from lmkcli.progress import Report
    from lmkcli.training import training_job
    from lmkcli.training.loop import training_run as execution
    from lmkcli.training.train_settings import TrainSettings

    print("\n| train, ModernBERT-base | positions/s |\n|---|---:|")
    config = rows()[3].config
    if args.device == "cpu":
        config.num_hidden_layers = 1
        config.layer_types = config.layer_types[:1]
    modules = [doc.content for doc in open_collection("stdlib/modules").docs()]
    model = folder / "modern"
    torch.manual_seed(7)
    AutoModel.from_config(config).save_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(read_model("minilm").encoder)
    tokenizer.save_pretrained(model)
    for longest, batch in ((8192, 64), (512, 256)):
        if args.device == "cpu":
            longest //= 64
        batch = max(2, int(batch * args.scale))
        steps = 4
        pairs = [
            {"query": " ".join(text.split()[:12]), "positive": text}
            for text in (modules[n % len(modules)] for n in range(batch * steps))
        ]
        file = folder / f"pairs-{longest}.jsonl"
        file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        counts = [
            positions(tokenizer, [pair[name] for pair in pairs], longest).sum()
            for name in ("query", "positive")
        ]
        read = sum(counts) / steps
        settings = TrainSettings(batch_size=batch, steps=steps, dtype="bf16", device=args.device)
        recipe = RecipeOptions(model=str(model), pool="lmk", gran="64", max_length=longest)
        clock = Clock()
        planned = training_job.plan([str(file)], recipe, settings)
        execution.run(planned, folder / f"trained-{longest}", Report(), [clock])
        seconds = {"lmk train, lmk@64": clock.seconds}
        peer = SentenceTransformer(str(model), device=args.device)
        peer.max_seq_length = longest
        theirs = Clock()
        SentenceTransformerTrainer(
            peer,
            SentenceTransformerTrainingArguments(
                output_dir=str(folder / f"theirs-{longest}"),
                max_steps=steps,
                bf16=args.device != "cpu",
                use_cpu=args.device == "cpu",
                per_device_train_batch_size=batch,
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                report_to=[],
            ),
            train_dataset=Dataset.from_list(pairs),
            loss=CachedMultipleNegativesRankingLoss(
                peer, mini_batch_size=4 if longest > 512 else 64
            ),
            callbacks=[theirs],
        ).train()
        seconds["sentence-transformers, mean, cached loss"] = theirs.seconds
        for name, taken in seconds.items():
            rate = read / statistics.median(taken[1:])
            print(f"| {longest:,} positions, batch {batch}: {name} | {rate:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the texts and vectors")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=["passes", "search", "encode", "train"])
    parser.add_argument("--rows", nargs="+", default=[], help="parts of names of rows: only these")
    args = parser.parse_args()
    gc.set_threshold(20_000, 100, 20)  # as `lmk` does
    machine = manifest.environment()["machine"]
    name = torch.cuda.get_device_name() if args.device != "cpu" else "no GPU"
    product = best_product(args.device)
    print(
        f"{name}, {machine['cpu']}, {machine['cores']} cores; torch {torch.__version__}; bf16; passages of "
        f"{TOKENS} tokens; best product {product / 1e12:.3g} TFLOP/s\n"
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if "passes" in args.only:
            passing(args, product)
        if "search" in args.only:
            searching(args, folder)
        if "encode" in args.only:
            encoding(args, folder, product)
        if "train" in args.only:
            training(args, folder)
    print(f"\n{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
