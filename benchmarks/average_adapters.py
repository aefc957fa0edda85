"""Average trained models: the adapters of several trainings of one base become one adapter.

    python benchmarks/average_adapters.py trained/one/adapter trained/two/adapter -o averaged --rank 20

Weights of models that began alike may be averaged (a model soup, arXiv 2203.05482), equally or as --weights
say. A model that was trained further is written with the adapters of all its trainings, in their order:
trained/one/adapter+further/adapter. The sum of matrices of rank 16 has a higher rank; what is written is the
best approximation of --rank, in fp16, and how much of each update it keeps is printed. Other trained tensors
(a table of positions) are averaged as they are.
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
Tensors = dict[str, torch.Tensor]


def factors(update: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Two matrices whose product is nearest to the update, and the share of its energy that they keep."""
    left, values, right = torch.linalg.svd(update.double(), full_matrices=False)
    root = values[:rank].sqrt()
    kept = float((values[:rank] ** 2).sum() / (values**2).sum().clamp_min(1e-30))
    return root[:, None] * right[:rank], left[:, :rank] * root, kept


class Training(NamedTuple):
    """One adapter: its tensors, and what its products are multiplied by."""

    tensors: Tensors
    scale: float

    def update(self, whole: str) -> torch.Tensor:
        """What it adds to a matrix."""
        product = self.tensors[whole + B].double() @ self.tensors[whole + A].double()
        return self.scale * product


def averaged(
    models: list[list[Training]], weights: list[float], rank: int
) -> tuple[Tensors, list[float]]:
    """The tensors of the mean of models, each its trainings one upon the other; its own scale is 1."""
    made: Tensors = {}
    kept: list[float] = []
    shares = [weight / sum(weights) for weight in weights]
    for name in models[0][0].tensors:
        whole = name.removesuffix(A)
        if name.endswith(A):
            sums = [sum(one.update(whole) for one in model) for model in models]
            update = sum(share * each for share, each in zip(shares, sums, strict=True))
            made[name], made[whole + B], part = factors(torch.as_tensor(update), rank)
            kept += [part] if part else []  # of what was not trained there is nothing to keep
        elif not name.endswith(B):
            last = [model[-1].tensors[name].double() for model in models]
            made[name] = torch.stack([s * t for s, t in zip(shares, last, strict=True)]).sum(0)
    return {name: tensor.half().contiguous() for name, tensor in made.items()}, kept


def read(folder: Path) -> Training:
    """The adapter in a folder."""
    config = json.loads((folder / CONFIG).read_text())
    return Training(load_file(folder / WEIGHTS), config["lora_alpha"] / config["r"])


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+", metavar="ADAPTER[+ADAPTER…]")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--weights", nargs="+", type=float, default=[])
    args = parser.parse_args()
    if args.weights and len(args.weights) != len(args.models):
        parser.error("--weights: give one for each model")
    folders = [[Path(name) for name in model.split("+")] for model in args.models]
    models = [[read(folder) for folder in model] for model in folders]
    tensors, kept = averaged(models, args.weights or [1.0] * len(models), args.rank)
    first = folders[0][0]
    shutil.copytree(first, args.output)
    save_file(tensors, args.output / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((first / CONFIG).read_text()) | {"r": args.rank, "lora_alpha": args.rank}
    (args.output / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
    size = (args.output / WEIGHTS).stat().st_size / 1e6
    print(
        f"{args.output}: {len(kept)} matrices of rank {args.rank}, {size:.1f} MB; they keep "
        f"{min(kept):.1%} to {max(kept):.1%} of the squared length of each update"
    )


if __name__ == "__main__":
    main()
