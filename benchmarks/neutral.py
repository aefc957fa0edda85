"""Train a base without a habit, and nine retrieval models from it: three poolers, three seeds, one GPU.

    python benchmarks/neutral.py run neutral.tar.xz -o out --seconds 235 [--work folder]
    python benchmarks/neutral.py restore out models      # afterwards, on any machine
    python benchmarks/neutral.py table out               # scores, differences with intervals, curves

All within the given seconds; one process makes the base, and nine side by side the models:

1. Masked language modelling (lmk pretrain --objective mlm) from random weights, in the shape of ModernBERT.
2. RetroMAE from it. The pooler of each text is drawn at random, so that the base prefers none of the three.
   Its weights are then rounded to bf16, so that what is stored is what the models start from.
3. The same contrastive training (lmk train, LoRA) with cls, mean and landmarks: for a seed, the same pairs in
   the same order, and the same learning rate. All make the same number of steps; it is chosen once, from the
   pace of the slowest.
4. Each model encodes the evaluation collections at several lengths, and writes the nDCG@10 of each query.

The schedules of 1 and 2 run over time instead of steps: the learning rate falls to nearly zero at the end of
their seconds. `out` gets the base and the adapters in parts of at most 16.5 MB, report.json.gz with the
scores and the loss curves, and logs.txt.
"""

import argparse
import gc
import gzip
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from landmarks import MEASURE, Table, differences, markdown, mean, slug
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from lmkcli import catalog
from lmkcli.data.collection import Doc, Qrel, Query, open_collection
from lmkcli.data.run import Run, ranked
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.sentence_folder import resolve_whole
from lmkcli.encoding.token_stream import token_stream, tokenized
from lmkcli.evaluation.measures import evaluate
from lmkcli.models import prediction_head
from lmkcli.models.lookup import read_model
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.plugins.pretrain import corpus as corpora
from lmkcli.plugins.pretrain.corpus import Text
from lmkcli.plugins.pretrain.masked_batches import TextLayout
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.plugins.pretrain.pretraining_job import PretrainJob, plan
from lmkcli.plugins.pretrain.pretraining_request import BaseModelSpec
from lmkcli.pooling.placement import Input
from lmkcli.progress import Report
from lmkcli.spec.recipe import EncoderConfig, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import Granularities
from lmkcli.store.token_blocks import DocBlock
from lmkcli.training.data.inputs import TrainingSide
from lmkcli.training.loop.training_run import run
from lmkcli.training.request import grans_of, resolve_training, with_first_gran
from lmkcli.training.train_settings import TrainSettings
from lmkcli.training.training_job import planned

LENGTH = 4_096  # positions of the base
POOLERS = {"cls": "", "mean": "", "lmk": "64,32,128,256"}  # name -> granularities
UNLIMITED = 1_000_000  # steps; the clock ends a training earlier
PART = 16_500_000  # bytes of a file of the result
# As ModernBERT: local attention except in every third layer, the first and the last among them.
SHAPE: dict[str, Any] = {
    "model_type": "modernbert", "vocab_size": 30_522, "hidden_size": 384, "intermediate_size": 1_024,
    "num_hidden_layers": 7, "num_attention_heads": 6, "max_position_embeddings": LENGTH,
    "global_attn_every_n_layers": 3, "local_attention": 128, "pad_token_id": 0, "bos_token_id": 101,
    "cls_token_id": 101, "eos_token_id": 102, "sep_token_id": 102,
}  # fmt: skip
SHORT, LONG = "max-length=512", f"max-length={LENGTH}"
PAIRS = {  # file -> (positions of a passage, share of the batches)
    "techdocs-openings": (SHORT, 0.15),
    "squad-passages": (SHORT, 0.10),
    "squad-sentences": (SHORT, 0.05),
    "fever": (SHORT, 0.07),
    "python-docstrings": (SHORT, 0.10),
    "python-functions": (SHORT, 0.10),
    "qmsum-slices": (SHORT, 0.05),
    "techdocs": (LONG, 0.09),
    "techdocs-parts": (LONG, 0.09),
    "python-inside": (LONG, 0.05),
    "qmsum-among": (LONG, 0.05),
    "haystack-fever": (LONG, 0.05),
    "haystack-squad": (LONG, 0.05),
}
LENGTHS = (4_096, 512, 1_024, 2_048)  # evaluated positions; the most important ones first
EVALUATED = {
    "peps": LENGTHS,
    "stdlib-modules": LENGTHS,
    "squad-articles": LENGTHS,
    "qmsum:official-test": LENGTHS,
    "cranfield": (512,),
    "xquad-en": (512,),
}
CHARACTERS = 24_000  # of an evaluated document: more than 4,096 tokens


class Size(NamedTuple):
    """The sizes of a run; `TINY` rehearses it on a CPU."""

    shape: dict[str, Any]
    texts: int = 64  # texts of a step of pre-training, about 60,000 tokens
    pairs: int = 40  # pairs of a step of contrastive training
    length: int = LENGTH
    retro_length: int = 1_024
    pretrain_tokens: int = 131_072  # positions in one pass
    train_tokens: int = 32_768
    rank: int = 32
    seeds: tuple[int, ...] = (1, 2, 3)
    tokenizing: int = 12  # processes that tokenize the corpus
    logits: int = 1 << 28  # in memory at a time; the default is for CPUs


TINY = Size(
    SHAPE | {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1},
    texts=4, pairs=4, length=256, retro_length=128, pretrain_tokens=1_024, train_tokens=1_024, rank=4,
    seeds=(1,), tokenizing=2, logits=1 << 24,
)  # fmt: skip


class Budget(NamedTuple):
    """Seconds since the start of the run at which a phase ends; pre-training begins as soon as possible."""

    mlm: float
    retromae: float
    train: float  # the models are written and evaluated after it

    @classmethod
    def of(cls, seconds: float, args: argparse.Namespace) -> "Budget":
        """Share the seconds: pre-training gets what the other phases leave."""
        train = seconds - args.reserve - args.evaluate_seconds
        retromae = train - args.train_seconds
        return cls(retromae - args.retromae_seconds, retromae, train)


START = Path(f"/proc/{os.getpid()}").stat().st_ctime  # of this process, before the imports


def note(message: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.time() - START:7.1f} s  {message}", flush=True)


# -- pre-training ------------------------------------------------------------------------------------------


class Clock(TrainerCallback):
    """Ends a training at a time, and derives the learning rate from the elapsed share of the time."""

    def __init__(self, end: float, warmup: float = 0.06) -> None:
        self.end, self.warmup, self.begin, self.steps = end, warmup, 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Start the clock, and replace the schedule over steps."""
        self.begin = time.time()
        scheduler = others["lr_scheduler"]
        scheduler.lr_lambdas = [self.rate] * len(scheduler.lr_lambdas)

    def rate(self, _: int) -> float:
        """Return the factor on the learning rate: linear warm-up, then a cosine to a fiftieth."""
        part = (time.time() - self.begin) / max(1e-9, self.end - self.begin)
        if part < self.warmup:
            return max(0.01, part / self.warmup)
        return 0.02 + 0.49 * (
            1 + math.cos(math.pi * min(1, (part - self.warmup) / (1 - self.warmup)))
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the training after the last step that starts in time."""
        self.steps = state.global_step
        if time.time() >= self.end:
            state.max_steps = state.global_step  # the loop takes the training as complete
            control.should_log = control.should_training_stop = True


@dataclass(frozen=True)
class DrawnLayout(TextLayout):
    """Places each text for one of several poolers, drawn at random."""

    others: tuple[TextLayout, ...] = ()

    def __call__(self, text: Text, rng: Any) -> Input:
        """Return the input of a text."""
        return self.others[int(rng.integers(len(self.others)))](text, rng)


def corrected(folder: Path, steps: int) -> None:
    """Write the number of steps that the clock allowed into training.json."""
    path = folder / "training.json"
    record = json.loads(path.read_text())
    record["steps"] = record["settings"]["steps"] = steps
    path.write_text(json.dumps(record, indent=1))


def pretrained(job: PretrainJob, folder: Path, end: float) -> dict[str, Any]:
    """Pre-train until the time `end`; return facts for the report."""
    clock, begin = Clock(end), time.time()
    folder.mkdir(parents=True, exist_ok=True)
    run(job, folder, Report(note=note), [clock])
    corrected(folder, clock.steps)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    last = lines[-1]
    note(f"{folder.name}: {clock.steps} steps, {last}")
    return {
        "steps": clock.steps, "setup": clock.begin - begin, "seconds": time.time() - clock.begin,
        "log": lines,
    }  # fmt: skip


def corpus_job(work: Path, size: Size) -> PretrainJob:
    """Create the model and tokenize the texts."""
    (work / "shape.json").write_text(json.dumps(size.shape))
    vars(corpora)["token_stream"] = partial(token_stream, workers=size.tokenizing)
    settings = PretrainSettings(
        objective="mlm", batch_size=size.texts, steps=UNLIMITED, lr=1e-3, adam_betas="0.9,0.98",
        weight_decay=0.01, like_length=False, batch_tokens=size.pretrain_tokens, log_every=10, seed=1,
    )  # fmt: skip
    options = RecipeOptions(pool="cls", max_length=size.length)
    spec = BaseModelSpec(options, work / "shape.json", str(work / "tokenizer"))
    return plan([str(work / "corpus.jsonl")], spec, settings, offline=True)


def drawn_job(mlm: PretrainJob, model: Path, size: Size) -> PretrainJob:
    """Return RetroMAE from a model, over the same texts, with the pooler of each text drawn."""
    layouts = []
    for pool, gran in POOLERS.items():
        options = RecipeOptions(
            model=str(model), pool=pool, gran=Granularities(gran), max_length=size.retro_length
        )
        resolved = resolve_whole(with_first_gran(options), True)
        tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
        grans = grans_of(options)
        layouts.append(
            (resolved, TextLayout(TrainingSide.of(resolved.recipe.doc, tokenizer, grans), grans))
        )
    resolved, first = layouts[0]
    settings = replace(mlm.settings, objective="retromae", lr=4e-4, mask_pool=48, seed=2)
    layout = DrawnLayout(first.side, (), False, tuple(layout for _, layout in layouts))
    return replace(mlm, resolved=resolved, layout=layout, settings=settings, created=None)


def rounded(model: Path, base: Path) -> None:
    """Write the encoder as a plain model folder with weights in bf16."""
    growing = base.with_name("growing")
    growing.mkdir()
    for file in model.iterdir():
        kept = file.suffix in (".json", ".txt") and not file.name.startswith(
            ("training", "manifest")
        )
        if kept and not file.name.startswith(("modules", "sentence_", "config_sentence")):
            shutil.copy(file, growing / file.name)
    weights = load_file(model / "model.safetensors")
    save_file(
        {name: value.to(torch.bfloat16) for name, value in weights.items()},
        growing / "model.safetensors",
        metadata={"format": "pt"},
    )
    growing.rename(base)


# -- the nine trainings ------------------------------------------------------------------------------------


class Paced(TrainerCallback):
    """Reports the progress of a training, and ends it at the step that the run chose for all of them.

    The learning rate is constant after warm-up until the step `decay`, then falls linearly to zero.
    """

    def __init__(self, work: Path, name: str, end: float, warmup: int = 20) -> None:
        self.work, self.name, self.end, self.warmup = work, name, end, warmup
        self.decay = self.last = UNLIMITED
        self.history: list[list[float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Replace the schedule."""
        scheduler = others["lr_scheduler"]
        scheduler.lr_lambdas = [self.rate] * len(scheduler.lr_lambdas)

    def rate(self, step: int) -> float:
        """Return the factor on the learning rate."""
        left = (self.last - step) / max(1, self.last - self.decay)
        return min(1.0, (step + 1) / self.warmup) * max(0.01, min(1.0, left))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the progress, read the decision, and end the training in time."""
        write(self.work / f"{self.name}.progress", [state.global_step, time.time()])
        decision = self.work / "steps.json"
        if decision.exists():
            self.decay, self.last = json.loads(decision.read_text())
        if state.global_step >= self.last or time.time() > self.end:
            state.max_steps = state.global_step
            control.should_log = control.should_training_stop = True


def write(path: Path, value: Any) -> None:
    """Write JSON so that readers see all of it or nothing."""
    growing = path.with_suffix(".growing")
    growing.write_text(json.dumps(value))
    growing.rename(path)


def one(args: argparse.Namespace) -> None:
    """Train one model, as a process of its own: wait for the base, train, and record."""
    size, work, name = TINY if args.tiny else Size(SHAPE), args.work, f"{args.pool}-{args.seed}"
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    collections = judged_collections(work, size)
    note("waits for the base")
    while not (work / "base").exists():
        time.sleep(0.05)
        if os.getppid() == 1:
            raise SystemExit("the run has ended")
    settings = TrainSettings(
        batch_size=size.pairs, sampling_temperature=math.inf, steps=UNLIMITED, lr=args.lr, weight_decay=0.01,
        temperature=0.03, lora=size.rank, batch_tokens=size.train_tokens, log_every=5, seed=args.seed,
    )  # fmt: skip
    options = RecipeOptions(
        model=str(work / "base"), pool=args.pool, gran=Granularities(POOLERS[args.pool]),
        max_length=size.length, query_max_length=min(128, size.length),
    )  # fmt: skip
    sources = [
        f"{work / name}.jsonl,{length},weight={weight}" for name, (length, weight) in PAIRS.items()
    ]
    if args.tiny:
        sources = [
            source.replace(LONG, SHORT).replace(SHORT, "max-length=128") for source in sources
        ]
    job = planned(resolve_training(sources, options, settings, True), settings)
    paced, folder = Paced(work, name, args.end), work / name
    folder.mkdir()
    run(job, folder, Report(note=note), [paced])
    steps = json.loads((work / f"{name}.progress").read_text())[0]
    corrected(folder, steps)
    note(f"{name}: {steps} steps")
    (work / f"{name}.done").touch()
    del job
    others = list(
        work.glob("*-[0-9].log")
    )  # an evaluation would slow down the trainings of the others
    while time.time() < args.end and not all(each.with_suffix(".done").exists() for each in others):
        time.sleep(0.1)
    evaluated(args, name, collections)


class Nine:
    """The nine processes."""

    def __init__(
        self, work: Path, args: argparse.Namespace, seeds: tuple[int, ...], end: float
    ) -> None:
        self.work, self.names, self.end = (
            work,
            [f"{pool}-{seed}" for pool in POOLERS for seed in seeds],
            end,
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        for name in self.names:
            pool, seed = name.split("-")
            words = [
                sys.executable,
                __file__,
                "one",
                "--work",
                str(work),
                "--pool",
                pool,
                "--seed",
                seed,
            ]
            words += ["--end", str(end + 3), "--lr", str(args.lr)]
            words += [
                "--evaluate-seconds",
                str(args.evaluate_seconds),
                *(["--tiny"] if args.tiny else []),
            ]
            with (work / f"{name}.log").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    words, stdout=log, stderr=subprocess.STDOUT, env=environment
                )

    def alive(self) -> list[str]:
        """Return the names of the trainings that run."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def progress(self) -> dict[str, tuple[int, float]]:
        """Map each training that runs to its step and the time of it."""
        found = {}
        for name in self.alive():
            path = self.work / f"{name}.progress"
            step, at = json.loads(path.read_text()) if path.exists() else (0, time.time())
            found[name] = (int(step), float(at))
        return found

    def choose(self, times: list[float], first: int = 5) -> list[int] | None:
        """Choose the number of steps at the first time: as many as the slowest training can do.

        The pace of each training counts from the first observation of at least `first` steps. Batches
        differ in length, so the number is checked at the other times, and lowered if it does not fit.
        Return [start of the decay, steps].
        """
        begin: dict[str, tuple[int, float]] = {}
        chosen: list[int] | None = None
        while times and time.time() < self.end and self.alive():
            now = self.progress()
            begin |= {name: at for name, at in now.items() if at[0] >= first and name not in begin}
            measured = {n: at for n, at in now.items() if n in begin and at[0] >= begin[n][0] + 5}
            if time.time() >= times[0] and measured.keys() == now.keys():
                times = times[1:]
                paces = {n: (s - begin[n][0]) / (t - begin[n][1]) for n, (s, t) in measured.items()}
                note("steps per second: " + ", ".join(f"{n} {p:.2f}" for n, p in paces.items()))
                left, top = self.end - time.time(), max(step for step, _ in measured.values()) + 5
                last = max(
                    top + 1, int(min(s + 0.88 * left * paces[n] for n, (s, _) in measured.items()))
                )
                if chosen is None or last < chosen[1]:
                    chosen = [chosen[0] if chosen else top, last]
                    write(self.work / "steps.json", chosen)
                    note(f"all make {last} steps; the learning rate falls from step {chosen[0]} on")
            time.sleep(0.2)
        return chosen

    def wait(self, until: float) -> None:
        """Wait for all processes; end those that are late."""
        while self.alive() and time.time() < until:
            time.sleep(0.1)
        for name in self.alive():
            note(f"{name} is late and was ended")
            self.processes[name].kill()
            self.processes[name].wait()


# -- the evaluation ----------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """A collection in memory; its documents are tokenized."""

    name: str
    blocks: list[DocBlock]
    queries: list[Query]
    qrels: list[Qrel]


def judged_collections(work: Path, size: Size) -> list[Judged]:
    """Read and tokenize the evaluation collections; a process does this while it waits for the base."""
    words = read_model(str(work / "tokenizer"), None, True)
    doc = EncoderConfig(weights=words.weights_digest, tokenizer=words.tokenizer_digest)
    tokenizer = replace(open_tokenizer(words, doc), spans=False)
    found = []
    for name in EVALUATED:
        if (work / "evaluation" / name.partition(":")[0]).is_dir():
            collection = open_collection(str(work / "evaluation" / name))
            docs = (replaced(doc) for doc in collection.docs())
            blocks = list(tokenized(docs, tokenizer))
            found.append(
                Judged(name, blocks, list(collection.judged_queries()), list(collection.qrels()))
            )
    return found


def replaced(doc: Doc) -> Doc:
    """Cut the text of a document, which nobody reads to the end."""
    return doc._replace(text=doc.text[:CHARACTERS])


def scores(
    model: Path, collections: list[Judged], end: float
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Yield (collection, positions, nDCG@10 of each query) until the time `end`."""
    loaded: list[Any] = []
    for length in LENGTHS:
        resolved = resolve(RecipeOptions(model=str(model), max_length=length), True)
        documents = open_encoder(resolved.recipe.doc, resolved.folder, EncodeSettings(), loaded)
        queries = open_encoder(
            resolved.recipe.query, resolved.folder, EncodeSettings(), [documents]
        )
        loaded = [documents]
        for each in collections:
            if length in EVALUATED[each.name] and time.time() < end:
                rows = [documents(block, Report()).vectors.matrix() for block in each.blocks]
                vectors = torch.from_numpy(np.concatenate(rows)).float()
                asked = torch.from_numpy(queries.queries(each.queries).matrix()).float()
                ids = [doc.id for block in each.blocks for doc in block.docs]
                top = (asked @ vectors.T).topk(min(20, len(ids)))
                run = Run(
                    {
                        query.id: ranked([ids[row] for row in rows], values).cut(10)
                        for query, rows, values in zip(
                            each.queries, top.indices.tolist(), top.values.numpy(), strict=True
                        )
                    }
                )
                found = evaluate(run, each.qrels, [MEASURE]).per_query[MEASURE]
                yield each.name, length, {query: round(score, 5) for query, score in found.items()}


def evaluated(args: argparse.Namespace, name: str, collections: list[Judged]) -> None:
    """Write the scores of a trained model; after each collection, so that those before the end count."""
    made: dict[str, dict[int, dict[str, float]]] = {}
    for collection, length, found in scores(
        args.work / name, collections, args.end + args.evaluate_seconds
    ):
        made.setdefault(collection, {})[length] = found
        note(f"{name} {collection} {length}: {sum(found.values()) / len(found):.4f}")
        write(args.work / f"{name}.scores", made)


# -- the result --------------------------------------------------------------------------------------------


def packed(output: Path, name: str, folders: dict[str, Path], compress: bool) -> None:
    """Write folders as a tar file in parts of at most PART bytes: NAME.00, NAME.01 and so on."""
    buffer = io.BytesIO()
    # Each weight has two bytes: the literal coder gets the parity of the position (lp, pb) as a context
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for arcname, folder in folders.items():
            archive.add(folder, arcname)
    data = buffer.getvalue()
    if compress:
        import lzma

        filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "lc": 0, "lp": 1, "pb": 1}]
        data = lzma.compress(data, filters=filters)
    for number, at in enumerate(range(0, len(data), PART)):
        (output / f"{name}.{number:02}").write_bytes(data[at : at + PART])
    note(f"{name}: {len(data) / 1e6:.1f} MB")


def whole_run(args: argparse.Namespace) -> None:
    """Do everything; write what there is into the output folder, also after an error."""
    size, work, output = TINY if args.tiny else Size(SHAPE), args.work, args.output
    budget = Budget(*(START + at for at in Budget.of(args.seconds, args)))
    prediction_head.LOGITS_BLOCK = size.logits
    work.mkdir(parents=True)
    output.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "size": size._asdict(),
    }
    if torch.cuda.is_available():
        report["device"] = torch.cuda.get_device_name()
    nine: Nine | None = None
    try:
        with tarfile.open(args.archive) as archive:
            archive.extractall(work, filter="data")
        (work / "tokenizer" / "config.json").write_text(json.dumps(size.shape))
        note("unpacked")
        mlm = corpus_job(work, size)
        report["corpus"] = {"texts": len(mlm.corpus), "tokens": mlm.corpus.tokens}
        note(f"tokenized: {report['corpus']}")
        nine = Nine(work, args, size.seeds, budget.train)
        report["mlm"] = pretrained(mlm, work / "mlm", budget.mlm)
        start = work / "mlm"
        if args.retromae_seconds:
            report["retromae"] = pretrained(
                drawn_job(mlm, start, size), work / "retro", budget.retromae
            )
            start = work / "retro"
        rounded(start, work / "base")
        note("the base is written")
        del mlm
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        packing = threading.Thread(
            target=packed, args=(output, "base.tar.xz", {"base": work / "base"}, True)
        )
        packing.start()
        left = budget.train - time.time()
        report["steps"] = nine.choose([time.time() + part * left for part in (0.35, 0.65, 0.85)])
        nine.wait(budget.train + args.evaluate_seconds + 0.7 * args.reserve)
        packing.join()
    finally:
        if nine:
            nine.wait(0)
            finish(report, nine, output)


def finish(report: dict[str, Any], nine: Nine, output: Path) -> None:
    """Write the adapters and the report."""
    done = {name: nine.work / name for name in nine.names if (nine.work / f"{name}.done").exists()}
    report["trainings"] = {
        name: [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        for name, folder in done.items()
    }
    report["scores"] = {
        name: json.loads((nine.work / f"{name}.scores").read_text())
        for name in done
        if (nine.work / f"{name}.scores").exists()
    }
    with gzip.open(output / "report.json.gz", "wt") as file:
        json.dump(report, file)
    if done:
        packed(
            output, "models.tar", {name: folder / "adapter" for name, folder in done.items()}, False
        )
    logs = [f"== {name}\n{(nine.work / f'{name}.log').read_text()[-4000:]}" for name in nine.names]
    (output / "logs.txt").write_text("\n".join(logs))
    note(f"{len(done)} of {len(nine.names)} models")


def table(args: argparse.Namespace) -> None:
    """Print the scores and the differences between poolers, and draw the curves, from the report."""
    with gzip.open(args.output / "report.json.gz", "rt") as file:
        found = json.load(file)["scores"]
    made = Table()
    for name, collections in sorted(found.items()):
        for collection, lengths in collections.items():
            for length, per_query in lengths.items():
                if all(length in other.get(collection, {}) for other in found.values()):
                    made.add(f"{name.partition('-')[0]}, {length}", collection, per_query)
    long = [name for name, lengths in EVALUATED.items() if len(lengths) > 1]
    short = [name for name in EVALUATED if name not in long]
    rows = sorted(made.rows(), key=lambda row: (row.split(",")[0], int(row.split(",")[1])))
    parts = [markdown(made, each, rows) for each in (long, short)]
    parts += [
        differences(made, list(EVALUATED), pair) for pair in ("lmk:mean", "lmk:cls", "mean:cls")
    ]
    text = "\n\n".join("\n".join(part) for part in parts) + "\n"
    (args.output / "table.md").write_text(text)
    print(text, end="")
    draw = catalog.PLOTS.load("curve")
    for collection in long:
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            label, length = row.split(", ")
            if per_query := made.scores(row, collection):
                curves.setdefault(label, []).append((int(length), mean(per_query)))
        if curves:
            draw(
                curves,
                "evaluated length (positions)",
                MEASURE,
                args.output / f"neutral-{slug(collection)}.svg",
            )


def restore(args: argparse.Namespace) -> None:
    """Unpack the base, and the models as adapters of it."""
    for name in ("base.tar.xz", "models.tar"):
        parts = sorted(args.output.glob(f"{name}.[0-9][0-9]"))
        data = io.BytesIO(b"".join(part.read_bytes() for part in parts))
        with tarfile.open(fileobj=data) as archive:
            archive.extractall(args.models, filter="data")
    for path in args.models.glob("*/adapter_config.json"):
        facts = json.loads(path.read_text()) | {
            "base_model_name_or_path": str((args.models / "base").resolve())
        }
        path.write_text(json.dumps(facts, indent=2))
        print(path.parent)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="pre-train, train, and pack the result")
    command.add_argument("archive", type=Path)
    command.add_argument("-o", "--output", type=Path, required=True)
    command.add_argument("--work", type=Path, default=Path("/tmp/neutral"))
    command.add_argument("--seconds", type=float, default=235)
    command.add_argument("--retromae-seconds", type=float, default=16, help="0: none")
    command.add_argument(
        "--train-seconds", type=float, default=72, help="of the nine trainings, with their start"
    )
    command.add_argument("--reserve", type=float, default=14, help="seconds for writing at the end")
    command.set_defaults(call=whole_run)
    single = commands.add_parser("one", help="one of the nine trainings (started by run)")
    single.add_argument("--work", type=Path, required=True)
    single.add_argument("--pool", required=True)
    single.add_argument("--seed", type=int, required=True)
    single.add_argument("--end", type=float, required=True)
    single.set_defaults(call=one)
    for each in (command, single):
        each.add_argument("--lr", type=float, default=1e-3, help="of the contrastive training")
        each.add_argument(
            "--evaluate-seconds", type=float, default=32, help="seconds of the evaluation"
        )
        each.add_argument("--tiny", action="store_true", help="rehearse on a CPU")
    restored = commands.add_parser("restore", help="unpack the result")
    restored.add_argument("output", type=Path)
    restored.add_argument("models", type=Path)
    restored.set_defaults(call=restore)
    printed = commands.add_parser("table", help="print the scores of the report")
    printed.add_argument("output", type=Path)
    printed.set_defaults(call=table)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
