"""Texts per second of TITE, BERT, DistilBERT and Funnel: the rows of Table 4 of the TITE paper.

    python benchmarks/tite.py                          # bf16, CPU
    python benchmarks/tite.py --dtype fp32 --texts 128
    python benchmarks/tite.py --only BERT "TITE 2 late" --repeats 9
    python benchmarks/tite.py --device cuda --texts 50000 --collection msmarco-passage/train

The models have the published shapes with random weights. By default, the tokens are random, with the lengths
of MS MARCO's queries (mean 8) and passages (mean 70): only the speed has a meaning, not the vectors. With
--collection, they are those of a sample of real queries and passages, cut at 32 and 512 tokens as in the
paper. The rows with eager or sdpa compute with padding, the others without. lmk itself runs TITE only without
padding, so its two padded rows use an attention of this file. TITE without pooling is the paper's BERT with
FlashAttention. All models take turns. Ratios compare medians of this run with BERT with lmk's packed
attention. Tokenizing is not included.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from random import Random
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModel, AutoTokenizer

from lmkcli.artifact import manifest
from lmkcli.data.collection import open_collection
from lmkcli.errors import DataError
from lmkcli.models.devices import TORCH_DTYPES, choose_device
from lmkcli.models.forward import packs
from lmkcli.models.transformer import Transformer
from lmkcli.plugins.tite import model as tite_model
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.kind import Tite, fuse
from lmkcli.plugins.tite.model import TiteModel

Sequences = list[NDArray[np.int32]]
Run = Callable[[Sequences], object]
WORDS = 30522
POSITIONS = {"cpu": 2048, "cuda": 65_536}  # per pass, the values of lmk for this width
LATE_2, STAGGERED_2 = [None] * 3 + [2] * 9, [None, 2, 2, 2] * 3
LATE_3, STAGGERED_3 = [None] * 6 + [3] * 6, [None, 3] * 6
UPSCALED = {
    "hidden_sizes": [768] * 3 + [1024] * 3 + [1280] * 3 + [1536] * 3,
    "num_attention_heads": [12] * 3 + [16] * 3 + [20] * 3 + [24] * 3,
    "intermediate_sizes": [3072] * 3 + [4096] * 3 + [5120] * 3 + [6144] * 3,
}
TITES: dict[str, dict[str, Any]] = {
    "TITE without pooling": {"kernel_sizes": None},
    "TITE 2 late": {"kernel_sizes": LATE_2},
    "TITE 2 staggered": {"kernel_sizes": STAGGERED_2},
    "TITE 3 late": {"kernel_sizes": LATE_3},
    "TITE 3 staggered": {"kernel_sizes": STAGGERED_3},
    "TITE 2 late, pre": {"kernel_sizes": LATE_2, "pooling_location": "pre"},
    "TITE 2 late, post": {"kernel_sizes": LATE_2, "pooling_location": "post"},
    "TITE 2 late, upscaled": {"kernel_sizes": LATE_2, **UPSCALED},
}
BERT, DISTILBERT, FUNNEL, MODERNBERT = (
    transformers.BertConfig(vocab_size=WORDS),
    transformers.DistilBertConfig(vocab_size=WORDS),
    transformers.FunnelConfig(vocab_size=WORDS),
    transformers.ModernBertConfig(
        vocab_size=WORDS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
)


class Bench:
    """Makes the models; each is a function that reads all sequences."""

    def __init__(self, dtype: str, device: str) -> None:
        self.dtype, self.device = dtype, choose_device(device)
        self.positions = POSITIONS[self.device.type]

    def packed(self, config: Any) -> Run:
        """Return an encoder of transformers, run by lmk."""
        own = deepcopy(config)  # lmk stores the choice of attention in it
        model = AutoModel.from_config(own).to(self.device, TORCH_DTYPES[self.dtype]).eval()
        made = Transformer(model, 768, 512, self.device, self.dtype)
        made.use(made.check(fusing=self.device.type == "cpu"))
        assert made.packed, made.why_padded
        return self._run(made)

    def padded_tite(self, more: dict[str, Any], eager: bool) -> Run:
        """Return a TITE in padded batches of similar lengths: padding is computed like tokens."""
        run = self.padded(_tite_config(more), TiteModel, hidden=False)

        def with_padding(sequences: Sequences) -> None:
            with padded_attention(eager):
                run(sequences)

        return with_padding

    def tite(self, more: dict[str, Any]) -> Run:
        """Return a TITE run by lmk: layer norms after the sums, learned and rotary positions."""
        config = _tite_config(more)
        model = TiteModel(config).to(self.device, TORCH_DTYPES[self.dtype]).eval()
        if self.device.type == "cpu":
            fuse(model.encoder)
        return self._run(
            Tite(model, config.hidden_size, 512, self.device, self.dtype, 0, config.pools)
        )

    def _run(self, made: Any) -> Run:
        @torch.inference_mode()
        def run(sequences: Sequences) -> None:
            for pack in self._packs(sequences, padded=False):
                made.states([sequences[i] for i in pack])

        return run

    def padded(
        self, config: Any, base: Any = AutoModel.from_config, hidden: bool = True, **more: str
    ) -> Run:
        """Return an encoder with its own code, in padded batches of similar lengths.

        Without `hidden`, the model reads the padding as tokens.
        """
        model = base(deepcopy(config), **more).to(self.device, TORCH_DTYPES[self.dtype]).eval()

        def run(sequences: Sequences) -> None:
            for pack in self._packs(sequences, padded=True):
                lengths = torch.tensor([len(sequences[i]) for i in pack])
                width = (
                    -(-int(lengths.max()) // 8) * 8
                )  # as tokenizers pad; Funnel needs at least 5
                mask = torch.arange(width) < lengths[:, None]
                ids = torch.zeros(mask.shape, dtype=torch.long)
                ids[mask] = torch.from_numpy(np.concatenate([sequences[i] for i in pack])).long()
                with torch.inference_mode():
                    seen = mask if hidden else torch.ones_like(mask)
                    model(ids.to(self.device), attention_mask=seen.long().to(self.device))

        return run

    def _packs(self, sequences: Sequences, padded: bool) -> list[list[int]]:
        return packs([len(s) for s in sequences], self.positions, 512, padded)

    def models(self) -> dict[str, Callable[[], Run]]:
        """Map each row of the table to a function that makes its model."""
        rows: dict[str, Callable[[], Run]] = {
            "BERT": lambda: self.packed(BERT),
            "BERT, transformers (sdpa)": lambda: self.padded(BERT),
            "BERT, transformers (eager)": lambda: self.padded(BERT, attn_implementation="eager"),
            "DistilBERT": lambda: self.packed(DISTILBERT),
            "DistilBERT, transformers (sdpa)": lambda: self.padded(DISTILBERT),
            "DistilBERT, transformers (eager)": lambda: self.padded(
                DISTILBERT, attn_implementation="eager"
            ),
            "ModernBERT": lambda: self.packed(MODERNBERT),
            "Funnel, transformers (eager)": lambda: self.padded(
                FUNNEL, transformers.FunnelBaseModel
            ),
        }
        late = TITES["TITE 2 late"]
        rows["TITE 2 late (sdpa)"] = lambda: self.padded_tite(late, eager=False)
        rows["TITE 2 late (eager)"] = lambda: self.padded_tite(late, eager=True)
        return rows | {name: lambda more=more: self.tite(more) for name, more in TITES.items()}


def _tite_config(more: dict[str, Any]) -> TiteConfig:
    return TiteConfig(
        strides=more["kernel_sizes"], norm_location="post", norm_type="layer",
        absolute_positional_embedding_type="learned", **more,
    )  # fmt: skip


@contextmanager
def padded_attention(eager: bool) -> Iterator[None]:
    """Let TITE compute the attention of a batch of sequences of one length, with a mask for padding.

    The mask hides nothing. Its cost is the same, and the vectors of this benchmark have no meaning.
    """

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Any, _alibi: Any
    ) -> torch.Tensor:
        count = len(lengths.keys)
        q, k, v = (
            part.view(count, -1, *part.shape[1:]).transpose(1, 2) for part in (query, key, value)
        )
        mask = torch.ones(count, 1, 1, k.shape[2], dtype=torch.bool, device=q.device)
        if eager:
            weights = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
            weights = weights.masked_fill(~mask, -torch.inf).softmax(-1, dtype=torch.float32)
            attended = weights.to(v.dtype) @ v
        else:
            attended = scaled_dot_product_attention(q, k, v, mask)
        return attended.transpose(1, 2).flatten(0, 1)

    own = tite_model.attend
    tite_model.attend = attend
    try:
        yield
    finally:
        tite_model.attend = own


def texts(count: int) -> dict[str, Sequences]:
    """Return random tokens of queries and of passages, with lengths as in MS MARCO."""
    random = np.random.default_rng(0)
    lengths = {
        "queries": 1 + random.poisson(7, 4 * count),
        "passages": np.clip(random.normal(70, 25, count), 10, 256).astype(int),
    }
    return {
        name: [random.integers(1000, WORDS, n).astype(np.int32) for n in ns]
        for name, ns in lengths.items()
    }


def real_texts(collection: str, tokenizer: str, count: int) -> dict[str, Sequences]:
    """Return the tokens of some queries and passages of a collection, cut as in the paper (§4.1).

    They are drawn from all, in one pass. DataError if the collection has fewer than `count` of either.
    """
    tokenize = AutoTokenizer.from_pretrained(tokenizer)
    opened = open_collection(collection)

    def read(texts: Iterable[str], longest: int) -> Sequences:
        some = sample(texts, count)
        if len(some) < count:
            raise DataError(
                f"{collection} has only {len(some)} of these texts; give fewer with --texts"
            )
        found = tokenize(some, truncation=True, max_length=longest)["input_ids"]
        return [np.array(ids, np.int32) for ids in found]

    return {
        "queries": read((query.text for query in opened.queries()), 32),
        "passages": read((doc.content for doc in opened.docs()), 512),
    }


def sample(texts: Iterable[str], count: int) -> list[str]:
    """Return `count` texts, each with the same probability; all if there are fewer (reservoir sampling)."""
    draws, some = Random(0), []
    for number, text in enumerate(texts):
        if number < count:
            some.append(text)
        elif (place := draws.randrange(number + 1)) < count:
            some[place] = text
    return some


def medians(runs: dict[str, Run], sequences: Sequences, repeats: int) -> dict[str, float]:
    """Return median seconds after a warm-up; the models take turns, so drift affects all equally."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run(sequences)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name] += [time.perf_counter() - start] * bool(turn)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--texts", type=int, default=256, help="passages; queries are 4 times as many"
    )
    parser.add_argument("--dtype", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--collection", help="a sample of its passages and queries instead of random tokens"
    )
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased")
    parser.add_argument("--only", nargs="+", help="only these rows (and BERT, the reference)")
    args = parser.parse_args()
    bench = Bench(args.dtype, args.device)
    wanted = {"BERT", *args.only} if args.only else set(bench.models())
    runs = {name: make() for name, make in bench.models().items() if name in wanted}
    read = texts(args.texts)
    if args.collection:
        read = real_texts(args.collection, args.tokenizer, args.texts)
    took = {kind: medians(runs, read[kind], args.repeats) for kind in read}
    show(args, read, took)


def show(
    args: argparse.Namespace, read: dict[str, Sequences], took: dict[str, dict[str, float]]
) -> None:
    """Print the table, with the hardware and the lengths."""
    machine = manifest.environment()["machine"]
    where = torch.cuda.get_device_name() if args.device.startswith("cuda") else machine["cpu"]
    sizes = ", ".join(
        f"{len(all_)} {kind} of {np.mean([len(s) for s in all_]):.1f} tokens on average"
        for kind, all_ in read.items()
    )
    print(
        f"{sizes}; {args.dtype}, {where}, {machine['cores']} cores; torch {torch.__version__}; "
        f"median of {args.repeats}\n"
    )
    print("| | queries/s | | passages/s | |\n|---|---:|---:|---:|---:|")
    for name in took["queries"]:
        cells = [
            f"{len(read[kind]) / took[kind][name]:,.1f} | {took[kind]['BERT'] / took[kind][name]:.2f}"
            for kind in ("queries", "passages")
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
