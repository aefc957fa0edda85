"""Encode passages of 80 tokens on a GPU: passages per second, and the share of the time in which it computes.

    python benchmarks/gpu.py                                  # 60,000 passages (extra demo)
    python benchmarks/gpu.py --device cpu --passages 200 --repeats 1

The models have random weights in the shapes of MiniLM and BERT-base, and MiniLM's tokenizer. For each of
them, prints `lmk encode` of a tokens folder (the mean of all states, and landmarks every 16 tokens) and of a
jsonl file, and sentence-transformers in three batch sizes, all in bf16. Times are wall time after loading,
with storing: medians of repeats that alternate. "GPU busy" is the time of all kernels over that of a run
under torch's profiler.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pipeline import TOKENS, make_passages
from sentence_transformers import SentenceTransformer
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, BertConfig, BertModel

from lmkcli.artifact import manifest
from lmkcli.encoding import artifacts, jobs
from lmkcli.models.lookup import read_model
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE

SHAPES = {
    "MiniLM": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "BERT-base": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072},
}
POOLINGS = {"mean": {"pool": "mean"}, "lmk@16": {"pool": "lmk", "gran": 16}}


class Side:
    """One model: everything that is measured with it."""

    def __init__(self, folder: Path, shape: dict[str, int], texts: list[str], device: str) -> None:
        self.folder, self.texts, self.device = folder, texts, device
        torch.manual_seed(7)
        BertModel(BertConfig(**shape, num_attention_heads=12)).save_pretrained(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(read_model("minilm").encoder)
        tokenizer.save_pretrained(folder / "model")
        self.file = folder / "passages.jsonl"
        with open(self.file, "w", encoding="utf-8") as file:
            for number, text in enumerate(texts):
                file.write(json.dumps({"_id": f"p{number}", "text": text}) + "\n")
        self.tokens = folder / "tokens"
        artifacts.run_tokenize(self._job(self.file, "mean"), self.tokens)
        self.peer = SentenceTransformer(
            str(folder / "model"), device=device, model_kwargs={"dtype": torch.bfloat16}
        )
        self.number = 0

    def runs(self) -> dict[str, Callable[[], float]]:
        """What is measured: functions that return seconds."""
        ours = {
            f"lmk, {name}, {pool}": lambda source=source, pool=pool: self.encode(source, pool)
            for name, source, pool in (
                ("tokens", self.tokens, "mean"),
                ("tokens", self.tokens, "lmk@16"),
                ("text", self.file, "mean"),
            )
        }
        theirs = {
            f"sentence-transformers, batch {size}": lambda size=size: self.theirs(size)
            for size in (128, 512, 2048)
        }
        return ours | theirs

    def encode(self, source: Path, pool: str) -> float:
        """Return the seconds of `lmk encode` since the model was opened."""
        opened, start = artifacts.open_encoder, 0.0

        def timed(*given):  # type: ignore[no-untyped-def]
            nonlocal start
            made = opened(*given)
            start = time.perf_counter()
            return made

        artifacts.open_encoder = timed
        self.number += 1
        try:
            artifacts.run_encode(self._job(source, pool), self.folder / f"vectors-{self.number}")
        finally:
            artifacts.open_encoder = opened
        return time.perf_counter() - start

    def theirs(self, size: int) -> float:
        """Return the seconds of sentence-transformers."""
        start = time.perf_counter()
        self.peer.encode(self.texts, batch_size=size, show_progress_bar=False)
        return time.perf_counter() - start

    def busy(self) -> float:
        """Return the share of the time in which the GPU computes."""
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            seconds = self.encode(self.tokens, "mean")
            torch.cuda.synchronize()
        return sum(event.self_device_time_total for event in seen.key_averages()) / 1e6 / seconds

    def _job(self, source: Path, pool: str) -> jobs.CollectionJob:
        recipe = RecipeOptions(model=str(self.folder / "model"), **POOLINGS[pool])  # type: ignore[arg-type]
        settings = EncodeSettings(dtype="bf16", device=self.device)
        return jobs.plan(str(source), recipe, settings, WHOLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passages", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    gc.set_threshold(20_000, 100, 20)  # as `lmk` does
    on_gpu = args.device != "cpu"
    machine = manifest.environment()["machine"]
    name = torch.cuda.get_device_name(args.device) if on_gpu else "no GPU"
    print(
        f"{args.passages:,} passages of {TOKENS} tokens, bf16; {name}, {machine['cpu']}, "
        f"{machine['cores']} cores; torch {torch.__version__}; median of {args.repeats}\n\n"
        "| | passages/s | µs each |\n|---|---:|---:|"
    )
    with tempfile.TemporaryDirectory() as folder:
        texts = make_passages(read_model("minilm").path, args.passages)
        for label, shape in SHAPES.items():
            place = Path(folder) / label
            place.mkdir()
            side = Side(place, shape, texts, args.device)
            side.encode(side.tokens, "mean")  # loads kernels
            taken: dict[str, list[float]] = {}
            for _ in range(args.repeats):
                for row, run in side.runs().items():
                    taken.setdefault(row, []).append(run())
            for row, values in taken.items():
                each = statistics.median(values) / args.passages
                print(f"| {label}: {row} | {1 / each:,.0f} | {each * 1e6:.1f} |", flush=True)
            if on_gpu:
                print(f"| {label}: GPU busy | {side.busy():.0%} | |", flush=True)


if __name__ == "__main__":
    main()
