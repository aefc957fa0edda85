"""Make a small sparse model (SPLADE) of all-MiniLM-L6-v2 on a processor: nine minutes of one thread.

    python benchmarks/splade_minilm.py path/to/collections splade-minilm

The collections are squad-passages, techdocs, train-pairs and scifact, each with a file of training pairs. The
steps are: texts of the pairs; a language head, because MiniLM has none; fewer terms; training. After a stop,
the same command continues.
"""

import gzip
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

import lmkcli

# Files of training pairs, and their weights in training. The first four are texts for the language head.
PAIRS = {
    "squad-passages/train.jsonl": 1.0,
    "scifact/train.jsonl": 1.0,
    "techdocs/train.jsonl.gz": 0.5,
    "train-pairs/fever-evidence.jsonl": 0.3,
    "train-pairs/squad-train-sentences.jsonl": 0.3,
}
TERMS = 300  # of a text, before the training
LENGTH = 96


def passages(data: Path) -> Iterator[str]:
    """Yield the passages of the first four files, without repetitions."""
    seen = set()
    for name in [*PAIRS][:4]:
        with (gzip.open if name.endswith(".gz") else open)(data / name, "rt") as lines:
            for line in lines:
                passage = json.loads(line)["positive"]
                if passage not in seen:
                    seen.add(passage)
                    yield passage


def lower_biases(model: Path, texts: list[str], target: Path) -> None:
    """Lower all biases of the language head by one number, so that a text has about TERMS terms.

    A new head gives most terms a positive logit, and the training would shrink all scores to nothing. The
    probabilities of masked tokens do not change, because the softmax ignores a common number.
    """
    masked, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(model),
        AutoTokenizer.from_pretrained(model),
    )
    limits = []
    with torch.inference_mode():
        for text in texts:
            inputs = tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="pt")
            largest = masked.eval()(**inputs).logits[0].amax(0)
            limits.append(largest.topk(TERMS + 1).values[-1])
    growing = shutil.copytree(model, target.with_suffix(".growing"), dirs_exist_ok=True)
    weights = load_file(growing / "model.safetensors")
    weights["cls.predictions.bias"] -= torch.stack(limits).mean()
    save_file(weights, growing / "model.safetensors", {"format": "pt"})
    growing.rename(target)


def main(data: Path, target: Path) -> None:
    work = target.with_name(f"{target.name}-steps")
    work.mkdir(parents=True, exist_ok=True)
    texts = [*passages(data)]
    records = ({"id": f"t{n}", "text": text} for n, text in enumerate(texts))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (work / "texts.jsonl").write_text(lines)
    lmkcli.Pretrain(
        [str(work / "texts.jsonl")], model="minilm", pool="mean", objective="mlm", output=work / "head",
        max_length=64, batch_size=48, steps=200, lr=7e-4, warmup=20, save_every=25, seed=1,
    ).run()  # fmt: skip
    if not (work / "start").exists():
        lower_biases(work / "head", texts[::100], work / "start")
    lmkcli.Train(
        [f"{data / name},weight={weight}" for name, weight in PAIRS.items()],
        model=str(work / "start"), pool="splade", output=target, max_length=LENGTH,
        query_max_length=32, batch_size=32, steps=160, lr=1e-4, warmup=16, doc_flops=3e-3,
        query_flops=5e-3, sparsity_warmup=0.5, save_every=25, log_every=5, seed=1,
    ).run()  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
