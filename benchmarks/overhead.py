"""Measure the time of `lmk encode` outside the forward passes (reading, tokenizing, pooling, writing …).

    python benchmarks/overhead.py                        # stdlib/functions with MiniLM (extra demo)
    python benchmarks/overhead.py --source data/scifact --dtype fp32

Runs the whole job of the command in this process, with a clock around the model's forward passes, without
the time to load the model. Prints the seconds of both and the overhead as a share of the passes.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from lmkcli.encoding import jobs, shard_run
from lmkcli.models import transformer
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE


class Clock:
    """Seconds in the forward passes, and the time of the first one."""

    def __init__(self) -> None:
        self.passes = self.tokens = 0.0
        self._states = transformer.Transformer.states
        self._open = shard_run.open_encoder
        self.opened = 0.0

    def __enter__(self) -> "Clock":
        clock = self

        def states(model, sequences, *more):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            made = clock._states(model, sequences, *more)
            clock.passes += time.perf_counter() - start
            clock.tokens += sum(map(len, sequences))
            return made

        def opened(*how):  # type: ignore[no-untyped-def]
            made = clock._open(*how)
            clock.opened = time.perf_counter()
            clock.passes = clock.tokens = 0.0
            return made

        transformer.Transformer.states, shard_run.open_encoder = states, opened  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        transformer.Transformer.states, shard_run.open_encoder = self._states, self._open  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", default="stdlib/functions")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    shares = []
    for _ in range(args.repeats):
        job = jobs.plan(
            args.source, RecipeOptions(model=args.model), EncodeSettings(dtype=args.dtype), WHOLE
        )
        with tempfile.TemporaryDirectory() as folder, Clock() as clock:
            shard_run.run_encode(job, Path(folder) / "vectors")
            whole = time.perf_counter() - clock.opened
        shares.append(whole / clock.passes - 1)
        print(
            f"{clock.tokens:,.0f} positions: {whole:.2f} s, of these {clock.passes:.2f} s in forward passes"
        )
    print(f"overhead over the passes: {statistics.median(shares):.1%} (median of {args.repeats})")


if __name__ == "__main__":
    main()
