"""Compare seconds per step of `lmk train` and sentence-transformers' trainer: same model, texts, batch, loss.

    python benchmarks/train.py -m MODEL [--dtype fp32 bf16] [--lengths 16 256] [--batch 32] [--steps 6]
    python benchmarks/train.py --mlm -m MODEL …

With --mlm, compare `lmk pretrain --objective mlm` with transformers' own Trainer and collator, on the
passages alone, with 30% of the tokens masked.

Texts are random words of uniformly drawn lengths, as in a mixed collection. Both sides compute InfoNCE
(MultipleNegativesRankingLoss) over the batch with AdamW and truncate at the longest text. Rounds alternate,
without the first step of each. Prints the median of the steps and the ratio for each round.
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
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from lmkcli.models.devices import TORCH_DTYPES
from lmkcli.models.lookup import read_model
from lmkcli.plugins.pretrain import pretraining_job
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.plugins.pretrain.pretraining_request import BaseModelSpec
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings

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
    options = RecipeOptions(model=args.model, pool="mean", max_length=args.longest)
    clock = Clock()
    execution.run(
        training_job.plan([str(pairs)], options, settings), folder / "model", Report(), [clock]
    )
    return clock.seconds[1:]


def theirs(
    args: argparse.Namespace, dtype: str, rows: list[dict[str, str]], folder: Path
) -> list[float]:
    path = str(read_model(args.model).path)
    model = SentenceTransformer(path, device="cpu", model_kwargs={"dtype": TORCH_DTYPES[dtype]})
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


def our_mlm(args: argparse.Namespace, dtype: str, passages: Path, folder: Path) -> list[float]:
    settings = PretrainSettings(
        batch_size=args.batch, steps=args.steps + 1, dtype=dtype, device="cpu", whole_words=False,
        like_length=False, batch_tokens=1 << 20,
    )  # fmt: skip
    base_model = BaseModelSpec(
        RecipeOptions(model=args.model, pool="mean", max_length=args.longest)
    )
    clock = Clock()
    made = pretraining_job.plan([str(passages)], base_model, settings)
    execution.run(made, folder / "model", Report(), [clock])
    return clock.seconds[1:]


def their_mlm(
    args: argparse.Namespace, dtype: str, rows: list[dict[str, str]], folder: Path
) -> list[float]:
    path = str(read_model(args.model).path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForMaskedLM.from_pretrained(path, dtype=TORCH_DTYPES[dtype])
    tokens = [tokenizer(row["positive"], truncation=True, max_length=args.longest) for row in rows]
    settings = TrainingArguments(
        output_dir=str(folder / "theirs"), max_steps=args.steps + 1, use_cpu=True, report_to=[],
        per_device_train_batch_size=args.batch, save_strategy="no", disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    clock = Clock()
    Trainer(
        model, settings, train_dataset=Dataset.from_list([dict(each) for each in tokens]),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3),
        callbacks=[clock],
    ).train()  # fmt: skip
    return clock.seconds[1:]


def written(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measured(
    args: argparse.Namespace, dtype: str, rows: list[dict[str, str]]
) -> tuple[float, float]:
    """Return the medians of one round: lmk's, then the other library's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.mlm:
            passages = [{"id": str(i), "text": row["positive"]} for i, row in enumerate(rows)]
            mine = our_mlm(args, dtype, written(folder / "texts.jsonl", passages), folder)
            peer = their_mlm(args, dtype, rows, folder)
        else:
            mine = ours(args, dtype, written(folder / "pairs.jsonl", rows), folder)
            peer = theirs(args, dtype, rows, folder)
    return statistics.median(mine), statistics.median(peer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-m", "--model", default="minilm")
    parser.add_argument("--mlm", action="store_true", help="masked language modelling, no InfoNCE")
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument(
        "--lengths", nargs=2, type=int, default=[16, 256], help="words per passage, least and most"
    )
    parser.add_argument("--longest", type=int, default=256, help="positions")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6, help="measured steps in each round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = texts(args.batch * (args.steps + 2), tuple(args.lengths))
    library = "transformers" if args.mlm else "sentence-transformers"
    for dtype in args.dtype:
        ratios = []
        for number in range(args.rounds):
            mine, peer = measured(args, dtype, rows)
            ratios.append(peer / mine)
            print(
                f"{dtype} round {number + 1}: lmk {mine:.2f} s a step, {library} {peer:.2f} s: "
                f"{peer / mine:.2f}x"
            )
        print(f"{dtype}: {statistics.median(ratios):.2f}x (median of {args.rounds} rounds)")


if __name__ == "__main__":
    main()
