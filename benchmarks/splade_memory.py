"""Measure one step of `lmk train --pool splade` against logits under automatic differentiation.

    OMP_NUM_THREADS=1 python benchmarks/splade_memory.py ./splade-model
    OMP_NUM_THREADS=1 python benchmarks/splade_memory.py ./splade-model --passages 64

Each line is a process of its own, in fp32 on the processor: a forward and a backward pass of 32 passages of
128 random tokens. It prints the peak memory in addition to the loaded model, and the processor time. "states"
is the encoder alone; "lmk" adds the sparse vectors; "logits" adds them with the logits of all positions.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolution import resolve
from lmkcli.models.forward import ModelOptions
from lmkcli.pooling.reductions import Marks
from lmkcli.spec.recipe import RecipeOptions

KINDS = ("states", "lmk", "logits")


def measure(model: str, kind: str, passages: int, length: int) -> None:
    """Run one step and print its peak memory and processor time."""
    resolved = resolve(RecipeOptions(model=model, pool="splade"))
    options = ModelOptions("fp32", "cpu", trainable=True)
    forward = open_forward(resolved.recipe.doc, resolved.folder, options)
    rng = np.random.default_rng(0)
    ids = [rng.integers(1000, 20000, length).astype(np.int32) for _ in range(passages)]
    loaded, start = peak(), time.process_time()
    vectors = states = forward.model.states(ids)
    if kind == "lmk":
        texts = torch.arange(passages).repeat_interleave(length)
        counts = np.full(passages, length)
        vectors = forward.pooling(states, Marks(torch.arange(len(states)), texts, counts))
    if kind == "logits":
        logits = forward.pooling.token_head(states).view(passages, length, -1)
        vectors = logits.relu().log1p().amax(1)
    torch.autograd.backward(vectors.square().sum())
    spent = time.process_time() - start
    print(f"{kind:<7} {(peak() - loaded) / 1e9:5.2f} GB {spent:6.1f} s")


def peak() -> int:
    """Return the peak memory of this process in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--passages", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.kind:
        measure(words.model, words.kind, words.passages, words.length)
        return
    for kind in KINDS:
        command = [sys.executable, __file__, *sys.argv[1:], "--kind", kind]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
