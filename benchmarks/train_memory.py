"""Peak memory of one step of `lmk train` for growing batches: cached gradients hold the states of one pack.

    python benchmarks/train_memory.py [--sizes 64 256 1024 4096] [--batch-tokens 4096]

The model is a BERT with random weights (4 layers, 128 wide); queries of 4 to 16 and passages of 16 to 64
random words. Every batch is trained in a separate process. `--uncached` also runs each batch as one pack.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = [f"word{number}" for number in range(2000)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def save_model(folder: Path) -> None:
    """Save a small BERT and its tokenizer."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)  # fmt: skip
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=512,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)


def save_pairs(path: Path, count: int) -> None:
    """Save `count` pairs of random words."""
    chance = random.Random(0)

    def text(least: int, most: int) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(least, most)))

    with open(path, "w") as file:
        for _ in range(count):
            file.write(json.dumps({"query": text(4, 16), "pos": [text(16, 64)]}) + "\n")


def peak(model: Path, pairs: Path, size: int, tokens: int) -> float:
    """Return the peak memory of one process in megabytes."""
    with tempfile.TemporaryDirectory() as name:
        words = [
            "train",
            str(pairs),
            "-m",
            str(model),
            "--pool",
            "lmk",
            "--gran",
            "8,16",
            "--steps",
            "1",
        ]
        words += ["--batch-size", str(size), "--batch-tokens", str(tokens), "--dtype", "fp32"]
        words += [
            "--no-like-length",
            "--max-length",
            "128",
            "--log-every",
            "1",
            "-o",
            f"{name}/model",
        ]
        subprocess.run(
            [sys.executable, "-m", "lmkcli.cli.main", "-q", *words], check=True, stdout=2
        )
        line = Path(name, "model", "log.jsonl").read_text().splitlines()[-1]
        return float(json.loads(line)["memory"]) / 1e6


def main() -> None:
    """Print a line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--uncached", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model")
        save_pairs(folder / "pairs.jsonl", max(args.sizes))
        for size in args.sizes:
            cached = peak(folder / "model", folder / "pairs.jsonl", size, args.batch_tokens)
            line = f"{size:6,} queries: {cached:,.0f} MB"
            if args.uncached:
                whole = peak(folder / "model", folder / "pairs.jsonl", size, 1 << 30)
                line += f", as one pack {whole:,.0f} MB"
            print(line, flush=True)


if __name__ == "__main__":
    main()
