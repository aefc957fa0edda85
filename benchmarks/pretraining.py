"""Does pre-training help? Tiny encoders, ten minutes of one core for each objective, then one training.

    export OMP_NUM_THREADS=1
    python benchmarks/pretraining.py -o out                       # all rows: about two hours of one core
    python benchmarks/pretraining.py -o out --only mlm retromae   # some rows, for parallel processes

An encoder of 4 layers with a width of 256 is pre-trained from random weights on the modules of the standard
library, with a vocabulary of these texts. Then it is trained on the docstrings and functions of torch, and
finds numpy's functions by their docstrings. The baseline is the same training from random weights; both have
three seeds. The script prints every command and skips existing results. It prints two tables: the decrease of
each part of the loss (from the mean of the first to the mean of the last twentieth of the steps), and nDCG@10
with the difference from random weights, its 95 % interval over the queries (mean of the seeds), and each
seed's difference. Random weights hardly learn with landmarks, so rows with landmarks are also compared with
mean pooling from random weights.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from landmarks import PerQuery, lmk, mean
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import lmkcli
from lmkcli import catalog
from lmkcli.evaluation.compare import compare
from lmkcli.models.new_model import NewModel, create

TEXTS, PAIRS, DEV = "stdlib/modules", "python/torch/functions", "python/numpy/functions"
WORDS, LENGTH, SEEDS, MEASURE = 4096, 128, (1, 2, 3), "nDCG@10"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SHAPE = {
    "vocab_size": WORDS, "num_hidden_layers": 4, "max_position_embeddings": 256,
    "num_attention_heads": 4,
}  # fmt: skip
KERNELS = [None, 4, 8, 8]  # 256 tokens become 64, then 8, then one
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": {
        "model_type": "bert", "hidden_size": 256, "intermediate_size": 1024,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **SHAPE,
    },
    "tite": {
        "model_type": "tite", "hidden_sizes": 256, "intermediate_sizes": 1024, "dropout_prob": 0.0,
        "kernel_sizes": KERNELS, "strides": KERNELS, **SHAPE,
    },
}  # fmt: skip
MEAN, LANDMARKS = ("--pool", "mean"), ("--pool", "lmk", "--gran", "16,32")


class Row(NamedTuple):
    """An objective: its architecture, its pooling, and the number of steps in ten minutes on one core."""

    architecture: str
    pool: tuple[str, ...]
    steps: int
    lr: str


ROWS = {
    "mlm": Row("bert", MEAN, 1170, "5e-4"),
    "retromae": Row("bert", LANDMARKS, 720, "5e-4"),
    "dupmae": Row("bert", LANDMARKS, 600, "5e-4"),
    "tite-mae": Row("tite", (), 1250, "3e-4"),
    "tite-bow": Row("tite", (), 3600, "3e-4"),
    "tite": Row("tite", (), 1200, "3e-4"),
}


def tokenizer(kind: str, folder: Path) -> Path:
    """Train WordPiece on the texts; TITE's tokenizer adds no special tokens around a text."""
    if not (folder / "tokenizer.json").exists():
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        texts = (doc.content for doc in lmkcli.open_collection(TEXTS).docs())
        learn = trainers.WordPieceTrainer(
            vocab_size=WORDS, special_tokens=SPECIAL, show_progress=False
        )
        made.train_from_iterator(texts, learn)
        if kind == "bert":
            ends = [(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
            made.post_processor = processors.TemplateProcessing(
                single="[CLS] $A [SEP]", special_tokens=ends
            )
        PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
            sep_token="[SEP]", mask_token="[MASK]", model_max_length=256,
        ).save_pretrained(folder)  # fmt: skip
    return folder


class Bench:
    """Models, vectors and scores in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def architecture(self, kind: str) -> Path:
        """Write the configuration file of an architecture."""
        path = self.folder / f"{kind}.json"
        path.write_text(json.dumps(ARCHITECTURES[kind]))
        return path

    def words(self, kind: str) -> Path:
        """Return the folder of its tokenizer."""
        return tokenizer(kind, self.folder / f"{kind}-tokenizer")

    def pretrained(self, objective: str) -> Path:
        """Return the model pre-trained with an objective."""
        row, made = ROWS[objective], self.folder / objective
        lmk(
            "pretrain", TEXTS, "--objective", objective, *row.pool, "--blocks", "--batch-size", "8",
            "--architecture", str(self.architecture(row.architecture)), "--max-length", str(LENGTH),
            "--tokenizer", str(self.words(row.architecture)), "--steps", str(row.steps),
            "--lr", row.lr, "--warmup", "0.1", "--dtype", "fp32", "--log-every", "10", "--seed", "0",
            "-o", str(made),
        )  # fmt: skip
        return made

    def random(self, kind: str, seed: int) -> Path:
        """Return an encoder with random weights."""
        made = self.folder / f"{kind}-random-{seed}"
        if not made.exists():
            new = NewModel(self.architecture(kind), str(self.words(kind)), seed=seed)
            with tempfile.TemporaryDirectory(dir=self.folder) as name:
                create(new, Path(name))
                shutil.copytree(name, made)
        return made

    def from_random_weights(self, row: Row, pool: tuple[str, ...]) -> list[PerQuery]:
        """Return the scores of every seed from random weights."""
        kind = row.architecture
        return [self.scores(self.random(kind, seed), pool, seed) for seed in SEEDS]

    def scores(self, model: Path, pool: tuple[str, ...], seed: int) -> PerQuery:
        """Map each query to the nDCG@10 of the model after its training."""
        name = "-".join([model.name, *pool[1:2], "trained", str(seed)])
        made = self.folder / name
        kept = made.with_suffix(".json")
        if not kept.exists():
            lmk(
                "train", PAIRS, "-m", str(model), *pool, "--normalize", "--max-length", str(LENGTH),
                "--steps", "60", "--batch-size", "32", "--lr", "5e-4", "--temperature", "0.05",
                "--dtype", "fp32", "--seed", str(seed), "-o", str(made),
            )  # fmt: skip
            vectors, run = f"{made}.vectors", f"{made}.trec"
            lmk("encode", DEV, "-m", str(made), "--no-store-text", "-o", vectors)
            lmk("search", vectors, DEV, "-o", run)
            rows = json.loads(lmk("eval", run, "-m", MEASURE, "--per-query", "--json"))
            kept.write_text(json.dumps({row["query"]: row[MEASURE] for row in rows}))
        found: PerQuery = json.loads(kept.read_text())
        return found


def loss_decrease(model: Path) -> list[str]:
    """Return a row for each part of the loss: its first and last twentieth, and the relative decrease."""
    steps = [json.loads(line) for line in (model / "log.jsonl").read_text().splitlines()]
    parts = catalog.PRETEXTS.load(model.name).weights
    end = max(len(steps) // 20, 1)
    rows = []
    for part in ["loss", *parts] if len(parts) > 1 else ["loss"]:
        first, last = (
            sum(step[part] for step in those) / end for those in (steps[:end], steps[-end:])
        )
        rows.append(
            f"| {model.name} | {part} | {first:.2f} | {last:.2f} | {1 - last / first:.0%} |"
        )
    return rows


def over_seeds(scores: list[PerQuery]) -> PerQuery:
    """Return the mean over the seeds for each query."""
    return {query: sum(seed[query] for seed in scores) / len(scores) for query in scores[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    bench = Bench(args.output)
    losses = ["| objective | part | first | last | decrease |", "|---|---|---:|---:|---:|"]
    table = [
        f"| start | {MEASURE} | from random weights | difference, 95 % | of each seed |",
        "|---|---:|---:|---|---|",
    ]
    for objective in args.only:
        row, model = ROWS[objective], bench.pretrained(objective)
        losses += loss_decrease(model)
        found = [bench.scores(model, row.pool, seed) for seed in SEEDS]
        table.append(row_of(objective, bench.from_random_weights(row, row.pool), found))
        if row.pool == LANDMARKS:
            label = f"{objective}, compared with mean pooling"
            table.append(row_of(label, bench.from_random_weights(row, MEAN), found))
    print("\n".join([*losses, "", *table]))


def row_of(objective: str, without: list[PerQuery], found: list[PerQuery]) -> str:
    """Format a line of the second table."""
    low, high = compare(over_seeds(without), over_seeds(found)).interval
    gains = [mean(ours) - mean(base) for base, ours in zip(without, found, strict=True)]
    before, after = mean(over_seeds(without)), mean(over_seeds(found))
    each = ", ".join(f"{gain:+.3f}" for gain in gains)
    difference = f"{after - before:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"| {objective} | {after:.3f} | {before:.3f} | {difference} | {each} |"


if __name__ == "__main__":
    main()
