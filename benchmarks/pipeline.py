"""Measure what surrounds the model: reading, tokenizing, placing and storing, with a model that costs little.

    python benchmarks/pipeline.py                          # 20,000 passages of 80 tokens (extra demo)
    python benchmarks/pipeline.py --passages 500 --repeats 1

Makes passages of 80 tokens from the texts of the standard library, and a BERT of one layer, 32 wide, with
MiniLM's tokenizer. Prints passages per second of processor time (user + system, all threads; times include
the first batch but not loading), medians over the repeats:

- the tokenizers library alone: `encode_batch`, including `.ids` and `.offsets` of every passage;
- `lmk tokenize`, from a jsonl file to a tokens folder;
- `lmk encode` of that tokens folder and of the file, with the mean of all states and with landmarks every 16
  tokens. "Outside" counts only the time outside the forward passes;
- sentence-transformers' `encode` of the same texts in memory, with batches of 128.

Run it with one thread, because a thread that waits for work counts as busy:

    OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/pipeline.py
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertConfig, BertModel

from lmkcli.data.collection import open_collection
from lmkcli.encoding import jobs, shard_run
from lmkcli.models import transformer
from lmkcli.models.lookup import read_model
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE

TOKENS = 80


def make_model(folder: Path) -> Path:
    """Write a BERT of one layer, 32 wide, with MiniLM's tokenizer."""
    torch.manual_seed(7)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).eval().save_pretrained(folder)
    AutoTokenizer.from_pretrained(read_model("minilm").encoder).save_pretrained(folder)
    return folder


def make_passages(model: Path, count: int) -> list[str]:
    """Return texts of 80 tokens. If the standard library is too short, its texts are repeated."""
    docs = [doc.content for doc in open_collection("stdlib/functions").docs()]
    fast = AutoTokenizer.from_pretrained(model).backend_tokenizer
    fast.no_truncation()
    passages: list[str] = []
    for start in range(0, len(docs), 100):
        if len(passages) >= count:
            break
        whole = " ".join(docs[start : start + 100])
        offsets = fast.encode(whole, add_special_tokens=False).offsets
        spans = zip(offsets[::TOKENS], offsets[TOKENS - 1 :: TOKENS], strict=False)
        passages += [whole[first[0] : last[1]] for first, last in spans]
    return [passages[i % len(passages)] for i in range(count)]


class Clock:
    """Processor seconds since loading, and those in the forward passes."""

    def __init__(self) -> None:
        self.start = self.passes = 0.0

    @property
    def outside(self) -> float:
        """The seconds outside the forward passes."""
        return self.total - self.passes

    @contextmanager
    def running(self) -> Iterator["Clock"]:
        """Measure a block: the time since the tokenizer or the model was opened in it."""
        forward = transformer.Transformer.states
        opened = {name: getattr(shard_run, name) for name in ("open_encoder", "open_tokenizer")}

        def states(*given):  # type: ignore[no-untyped-def]
            begin = time.thread_time()
            made = forward(*given)
            self.passes += time.thread_time() - begin
            return made

        def timed(open_one):  # type: ignore[no-untyped-def]
            def run(*given):  # type: ignore[no-untyped-def]
                made = open_one(*given)
                self.start, self.passes = time.process_time(), 0.0
                return made

            return run

        transformer.Transformer.states = states  # type: ignore[method-assign]
        for name, open_one in opened.items():
            setattr(shard_run, name, timed(open_one))
        try:
            yield self
            self.total = time.process_time() - self.start
        finally:
            transformer.Transformer.states = forward  # type: ignore[method-assign]
            for name, open_one in opened.items():
                setattr(shard_run, name, open_one)


def seconds(run: Callable[[], object]) -> float:
    """The processor seconds of a call."""
    start = time.process_time()
    run()
    return time.process_time() - start


class Sides:
    """Everything that is measured; each method returns seconds by the name of a row."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.model = make_model(folder / "model")
        self.texts = make_passages(self.model, count)
        self.file = folder / "passages.jsonl"
        with open(self.file, "w", encoding="utf-8") as file:
            for number, text in enumerate(self.texts):
                file.write(json.dumps({"_id": f"p{number}", "text": text}) + "\n")
        self.fast = AutoTokenizer.from_pretrained(self.model).backend_tokenizer
        self.fast.no_truncation()
        self.fast.no_padding()
        self.peer = SentenceTransformer(str(self.model), device="cpu")
        self.number = 0

    def library(self) -> dict[str, float]:
        """The tokenizers library in batches of 1,000."""

        def run() -> None:
            for start in range(0, len(self.texts), 1000):
                texts = self.texts[start : start + 1000]
                for item in self.fast.encode_batch(texts, add_special_tokens=False):
                    _ = item.ids, item.offsets

        return {"tokenizers: encode_batch, ids, offsets": seconds(run)}

    def tokenize(self) -> dict[str, float]:
        """`lmk tokenize`."""
        job = self.job(str(self.file))
        self.tokens = self.new_folder("tokens")
        with Clock().running() as clock:
            shard_run.run_tokenize(job, self.tokens)
        return {"lmk tokenize": clock.total}

    def encode(self) -> dict[str, float]:
        """`lmk encode` from tokens and from text, with mean and landmarks."""
        found = {}
        poolings = {"mean": {"pool": "mean"}, "lmk@16": {"pool": "lmk", "gran": 16}}
        for origin, source in {"tokens": self.tokens, "text": self.file}.items():
            for name, options in poolings.items():
                job = self.job(str(source), **options)
                with Clock().running() as clock:
                    shard_run.run_encode(job, self.new_folder("vectors"))
                found[f"lmk encode, {origin}, {name}"] = clock.total
                found[f"lmk encode, {origin}, {name}: outside"] = clock.outside
        return found

    def sentence_transformers(self) -> dict[str, float]:
        """sentence-transformers' encode with mean pooling."""
        self.peer.encode(self.texts[:128], batch_size=128)
        return {
            "sentence-transformers": seconds(lambda: self.peer.encode(self.texts, batch_size=128))
        }

    def job(self, source: str, **options: object) -> jobs.CollectionJob:
        """A job of lmk with the small model in fp32."""
        recipe = RecipeOptions(model=str(self.model), **options)  # type: ignore[arg-type]
        return jobs.plan(source, recipe, EncodeSettings(dtype="fp32"), WHOLE)

    def new_folder(self, name: str) -> Path:
        """A folder that does not exist."""
        self.number += 1
        return self.folder / f"{name}-{self.number}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--passages", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print all seconds as JSON")
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder), args.passages)
        for _ in range(args.repeats):
            for side in (sides.library, sides.tokenize, sides.encode, sides.sentence_transformers):
                for name, taken in side().items():
                    found.setdefault(name, []).append(taken)
    if args.json:
        print(json.dumps(found))
        return
    library = statistics.median(next(iter(found.values())))
    print(
        f"| {args.passages:,} passages of {TOKENS} tokens | passages/s | us each | of encode_batch |"
    )
    print("|---|---:|---:|---:|")
    for name, taken in found.items():
        each = statistics.median(taken) / args.passages
        share = library / args.passages / each
        print(f"| {name} | {1 / each:,.0f} | {each * 1e6:.1f} | {share:.2f} |")


if __name__ == "__main__":
    main()
