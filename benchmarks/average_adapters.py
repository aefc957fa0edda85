"""Average trained models: merge the adapters of several trainings of one base into one adapter.

    python benchmarks/average_adapters.py trained/one/adapter trained/two/adapter -o averaged --rank 20

Models with the same initial weights can be averaged (a model soup, arXiv 2203.05482), with equal weights or
with --weights. If a training continued another, give the adapters of both, in order:
trained/one/adapter+further/adapter. A sum of matrices of rank 16 has a higher rank, so the script writes its
best approximation of rank --rank, in fp16, and prints the kept share of each update. Other trained tensors
(a position table) are averaged without approximation.

The other files are those of the first model, but its settings declare the window of any of the models, and
the pooling --pool, if that is given (one without a granularity); the pooling of the training stays known.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

A, B = ".lora_A.weight", ".lora_B.weight"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
SETTINGS = "sentence_bert_config.json"
Tensors = dict[str, torch.Tensor]


def factors(update: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the best rank-`rank` factors of the update (SVD), and the share of its energy that they keep."""
    left, values, right = torch.linalg.svd(update.double(), full_matrices=False)
    root = values[:rank].sqrt()
    kept = float((values[:rank] ** 2).sum() / (values**2).sum().clamp_min(1e-30))
    return root[:, None] * right[:rank], left[:, :rank] * root, kept


class Training(NamedTuple):
    """One adapter: its tensors, and the factor on the product of each pair of them."""

    tensors: Tensors
    scale: float

    def update(self, whole: str) -> torch.Tensor:
        """Return the update B @ A of a matrix, [out, in], with its scale."""
        product = self.tensors[whole + B].double() @ self.tensors[whole + A].double()
        return self.scale * product


def averaged(
    models: list[list[Training]], weights: list[float], rank: int
) -> tuple[Tensors, list[float]]:
    """Return the tensors of the weighted mean (scale 1) and the kept share of each update.

    A model is a list of trainings, each of which continued the previous one: their updates add up.
    """
    made: Tensors = {}
    kept: list[float] = []
    shares = [weight / sum(weights) for weight in weights]
    for name in models[0][0].tensors:
        whole = name.removesuffix(A)
        if name.endswith(A):
            sums = [sum(one.update(whole) for one in model) for model in models]
            update = sum(share * each for share, each in zip(shares, sums, strict=True))
            made[name], made[whole + B], part = factors(torch.as_tensor(update), rank)
            kept += [part] if part else []  # an update of zero has no energy to keep
        elif not name.endswith(B):
            last = [model[-1].tensors[name].double() for model in models]
            made[name] = torch.stack([s * t for s, t in zip(shares, last, strict=True)]).sum(0)
    return {name: tensor.half().contiguous() for name, tensor in made.items()}, kept


def read(folder: Path) -> Training:
    """Read the adapter in a folder."""
    config = json.loads((folder / CONFIG).read_text())
    return Training(load_file(folder / WEIGHTS), config["lora_alpha"] / config["r"])


def declared_window(folders: list[Path]) -> str | None:
    """Return the window of documents that the adapters declare; None if none does.

    Raises SystemExit if they declare different windows.
    """
    files = [folder / SETTINGS for folder in folders]
    found = {json.loads(file.read_text()).get("window") for file in files if file.exists()} - {None}
    if len(found) > 1:
        raise SystemExit(f"the models declare different windows: {', '.join(sorted(found))}")
    return next(iter(found), None)


def main() -> None:
    """Write the averaged adapter."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+", metavar="ADAPTER[+ADAPTER…]")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--weights", nargs="+", type=float, default=[])
    parser.add_argument("--pool", default="", help="the pooling that the new folder declares")
    args = parser.parse_args()
    if args.weights and len(args.weights) != len(args.models):
        parser.error("--weights: give one for each model")
    folders = [[Path(name) for name in model.split("+")] for model in args.models]
    models = [[read(folder) for folder in model] for model in folders]
    tensors, kept = averaged(models, args.weights or [1.0] * len(models), args.rank)
    first = folders[0][0]
    window = declared_window([model[-1] for model in folders])
    shutil.copytree(first, args.output)
    save_file(tensors, args.output / WEIGHTS, metadata={"format": "pt"})
    (args.output / WEIGHTS).chmod(0o644)  # safetensors writes a file that only its user can read
    config = json.loads((first / CONFIG).read_text()) | {"r": args.rank, "lora_alpha": args.rank}
    (args.output / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
    if window or args.pool:
        declared = json.loads((first / SETTINGS).read_text())
        declared |= {"window": window} if window else {}
        if args.pool:
            others = sorted({declared.get("pool", args.pool)} - {args.pool})
            declared |= {"pool": args.pool, "gran": ""}
            declared |= {"trained_poolers": others} if others else {}  # use of them needs no note
        (args.output / SETTINGS).write_text(json.dumps(declared, indent=2))
    size = (args.output / WEIGHTS).stat().st_size / 1e6
    print(
        f"{args.output}: {len(kept)} matrices of rank {args.rank}, {size:.1f} MB; they keep "
        f"{min(kept):.1%} to {max(kept):.1%} of the squared norm of each update"
    )


if __name__ == "__main__":
    main()
