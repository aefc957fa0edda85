"""Seconds a step of `lmk train` beside sentence-transformers' trainer: same model, texts, batch, loss.

    python benchmarks/train.py -m MODEL [--dtype fp32 bf16] [--lengths 16 256] [--batch 32] [--steps 6]

Texts are random words of uniformly drawn lengths, as in a mixed collection; both sides compute InfoNCE
(MultipleNegativesRankingLoss) over the batch with AdamW and truncate at the longest. Rounds alternate;
the first step of each is not counted. Prints the median of steps and the ratio, round by round.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback

from lmkcli.models.devices import TORCH
from lmkcli.models.folder import read_model
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import TrainSettings
from lmkcli.training import job

WORDS = "river stone copper bread autumn keel lantern orchard signal harbour meadow winter".split()


class Clock(TrainerCallback):
    """The time of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def texts(count: int, lengths: tuple[int, int]) -> list[dict[str, str]]:
    chance = np.random.default_rng(0)

    def words(n: int) -> str:
        return " ".join(chance.choice(WORDS, n))

    return [
        {"query": words(8), "positive": words(int(chance.integers(*lengths)))} for _ in range(count)
    ]


def ours(args: argparse.Namespace, dtype: str, pairs: Path, folder: Path) -> list[float]:
    settings = TrainSettings(
        batch_size=args.batch, steps=args.steps + 1, dtype=dtype, device="cpu", temperature=0.05,
        like_length=False, batch_tokens=1 << 20,
    )  # fmt: skip
    options = RecipeOptions(args.model, pool="mean", max_length=args.longest)
    clock = Clock()
    job.run_train(job.plan([str(pairs)], options, settings), folder / "model", Report(), [clock])
    return clock.seconds[1:]


def theirs(
    args: argparse.Namespace, dtype: str, rows: list[dict[str, str]], folder: Path
) -> list[float]:
    path = str(read_model(args.model).path)
    model = SentenceTransformer(path, device="cpu", model_kwargs={"dtype": TORCH[dtype]})
    model.max_seq_length = args.longest
    settings = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "theirs"), max_steps=args.steps + 1, use_cpu=True, report_to=[],
        per_device_train_batch_size=args.batch, save_strategy="no", disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    clock = Clock()
    SentenceTransformerTrainer(
        model, settings, train_dataset=Dataset.from_list(rows),
        loss=MultipleNegativesRankingLoss(model), callbacks=[clock],
    ).train()  # fmt: skip
    return clock.seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-m", "--model", default="minilm")
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument(
        "--lengths", nargs=2, type=int, default=[16, 256], help="words of a passage"
    )
    parser.add_argument("--longest", type=int, default=256, help="positions")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6, help="that count, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = texts(args.batch * (args.steps + 2), tuple(args.lengths))
    for dtype in args.dtype:
        ratios = []
        for number in range(args.rounds):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                pairs = folder / "pairs.jsonl"
                pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
                mine = statistics.median(ours(args, dtype, pairs, folder))
                peer = statistics.median(theirs(args, dtype, rows, folder))
            ratios.append(peer / mine)
            print(
                f"{dtype} round {number + 1}: lmk {mine:.2f} s a step, sentence-transformers "
                f"{peer:.2f} s: {peer / mine:.2f}x"
            )
        print(f"{dtype}: {statistics.median(ratios):.2f}x (median of {args.rounds} rounds)")


if __name__ == "__main__":
    main()
