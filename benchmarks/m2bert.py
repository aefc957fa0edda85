"""Measure seconds and memory for one long document: M2-BERT, and BERT and ModernBERT in windows.

    python benchmarks/m2bert.py                              # bf16, CPU; minutes
    python benchmarks/m2bert.py --dtype fp32 --lengths 128 2048 8192
    python benchmarks/m2bert.py --device cuda --rounds 5

The setting of Table 5 of the M2-BERT retrieval paper: documents of 128 to 32,768 tokens, cut into windows
if they are longer than the model. The models have the published shapes with random weights, and the tokens
are random: only the speed has a meaning, not the vectors. M2-BERT is not padded (`--no-pad-to-max`); with
padding, each input would take as long as a full one. Every model runs in a separate process, and they take
turns. Seconds are medians over the rounds, without loading and tokenizing; memory is the peak above the
loaded model.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModel

from lmkcli.artifact import manifest
from lmkcli.models.devices import TORCH_DTYPES, choose_device
from lmkcli.models.forward import packs
from lmkcli.models.transformer import Transformer
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.kind import M2Bert
from lmkcli.plugins.m2bert.model import M2BertModel

Document = NDArray[np.int32]
POSITIONS = {"cpu": 2048, "cuda": 65_536}  # per pass, the values of lmk for this width
WORDS, WIDTH = 30522, 768
WINDOWS = {
    "BERT-base": 512,
    "BERT-large": 512,  # the shape of BGE-Large
    "ModernBERT-base": 8192,
    "M2-BERT 128": 128,
    "M2-BERT 2k": 2048,
    "M2-BERT 8k": 8192,
    "M2-BERT 32k": 32768,
}
INNER = 3  # readings of a short document per process, after a warm-up


def transformer(config: Any, window: int, device: torch.device, dtype: str) -> Transformer:
    """Return a packed encoder of transformers, run by lmk."""
    model = AutoModel.from_config(config).to(device, TORCH_DTYPES[dtype]).eval()
    made = Transformer(model, config.hidden_size, window, device, dtype)
    made.use(made.check(fusing=device.type == "cpu"))
    assert made.packed, made.why_padded
    return made


def m2bert(length: int, device: torch.device, dtype: str) -> M2Bert:
    """Return an M2-BERT run by lmk, with fp32 filters as after loading from a folder."""
    model = M2BertModel(M2BertConfig(max_position_embeddings=length)).to(
        device, TORCH_DTYPES[dtype]
    )
    for conv in model.long_convs:
        conv.float()
    return M2Bert(model.eval(), WIDTH, length, device, dtype, pad_to=0)


def opened(name: str, device: torch.device, dtype: str) -> Callable[[Document], object]:
    """Return a function that reads one document, in windows of the model's length."""
    window = WINDOWS[name]
    model: Any
    if name.startswith("M2"):
        model = m2bert(window, device, dtype)
    elif name.startswith("Modern"):
        ends = {"cls_token_id": 101, "bos_token_id": 101, "sep_token_id": 102, "eos_token_id": 102}
        config = transformers.ModernBertConfig(vocab_size=WORDS, pad_token_id=0, **ends)
        model = transformer(config, window, device, dtype)
    else:
        large = transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        )
        bert = large if name == "BERT-large" else transformers.BertConfig(vocab_size=WORDS)
        model = transformer(bert, window, device, dtype)

    @torch.inference_mode()
    def run(document: Document) -> None:
        pieces = [document[i : i + window] for i in range(0, len(document), window)]
        lengths = [len(piece) for piece in pieces]
        for pack in packs(lengths, POSITIONS[device.type], 512, not model.packed):
            model.states([pieces[i] for i in pack])
        if device.type == "cuda":
            torch.cuda.synchronize()

    return run


def memory(device: torch.device, what: str) -> float:
    """Return MB of the process or the GPU: now (VmRSS), or the peak since `forget` (VmHWM)."""
    if device.type == "cuda":
        now = what == "VmRSS"
        return (torch.cuda.memory_allocated() if now else torch.cuda.max_memory_allocated()) / 1e6
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1e3


def forget(device: torch.device) -> None:
    """Reset the peak memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def measure(name: str, args: argparse.Namespace) -> dict[int, tuple[float, float]]:
    """Return seconds and MB for each length."""
    torch.manual_seed(0)
    device = choose_device(args.device)
    run = opened(name, device, args.dtype)
    run(np.full(8, 7, np.int32))
    loaded, found = memory(device, "VmRSS"), {}
    for length in sorted(args.lengths):
        document = np.random.default_rng(length).integers(1000, WORDS, length).astype(np.int32)
        forget(device)
        run(document)
        seconds = []
        for _ in range(INNER if length < 4096 else 1):
            start = time.perf_counter()
            run(document)
            seconds.append(time.perf_counter() - start)
        found[length] = (statistics.median(seconds), memory(device, "VmHWM") - loaded)
    return found


def turns(args: argparse.Namespace) -> dict[str, dict[int, tuple[float, float]]]:
    """Return medians over the rounds, with a fresh process for each model and round."""
    found: dict[str, list[Any]] = {name: [] for name in args.only}
    for _ in range(args.rounds):
        for name in args.only:
            command = [sys.executable, __file__, *sys.argv[1:], "--measure", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {n: _medians([one[str(n)] for one in rounds]) for n in sorted(args.lengths)}
        for name, rounds in found.items()
    }


def _medians(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    seconds, memory = zip(*rounds, strict=True)
    return statistics.median(seconds), statistics.median(memory)


def show(args: argparse.Namespace, found: dict[str, dict[int, tuple[float, float]]]) -> None:
    """Print the table, with the hardware, and the growth of the time per token."""
    machine = manifest.environment()["machine"]
    device = choose_device(args.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else machine["cpu"]
    print(
        f"one document, {args.dtype}; {where}, {machine['cores']} cores; torch {torch.__version__}; "
        f"medians of {args.rounds} rounds\n"
    )
    lengths = sorted(args.lengths)
    print("| seconds (MB) | window | " + " | ".join(f"{n:,} tokens" for n in lengths) + " |")
    print("|---|---:|" + "---:|" * len(lengths))
    for name, cells in found.items():
        values = " | ".join(f"{cells[n][0]:.3f} ({cells[n][1]:,.0f})" for n in lengths)
        print(f"| {name} | {WINDOWS[name]:,} | {values} |")
    spread = [n for n in lengths if n >= 2048]
    if len(spread) > 1:
        for name, cells in found.items():
            one, other = (cells[n][0] / n for n in (spread[0], spread[-1]))
            print(
                f"\n{name}: a token takes {one * 1e6:.0f} us at {spread[0]:,} and {other * 1e6:.0f} us "
                f"at {spread[-1]:,} tokens, {other / one:.2f} times as long"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 2048, 8192, 32768])
    parser.add_argument("--only", nargs="+", choices=WINDOWS, default=list(WINDOWS), metavar="NAME")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", metavar="NAME", help="one model in this process, as JSON")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args)))
    else:
        show(args, turns(args))


if __name__ == "__main__":
    main()
