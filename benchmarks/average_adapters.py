"""Average trained models: the adapters of several trainings of one base become one adapter.

    python benchmarks/average_adapters.py trained/one/adapter trained/two/adapter -o averaged --rank 20

Weights of models that began alike may be averaged (a model soup, arXiv 2203.05482). The mean of matrices
of rank 16 has a higher rank; what is written is the best approximation of --rank, in fp16, and how much of
each update it keeps is printed. Other trained tensors (a table of positions) are averaged as they are.
"""

import argparse
import json
import shutil
from pathlib import Path

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


def averaged(
    adapters: list[Tensors], scales: list[float], rank: int
) -> tuple[Tensors, list[float]]:
    """The tensors of the mean; its own scale is 1."""
    made: Tensors = {}
    kept: list[float] = []
    for name in adapters[0]:
        if name.endswith(A):
            whole = name.removesuffix(A)
            parts = zip(adapters, scales, strict=True)
            updates = [
                scale * (one[whole + B].double() @ one[name].double()) for one, scale in parts
            ]
            made[name], made[whole + B], share = factors(torch.stack(updates).mean(0), rank)
            kept += [share] if share else []  # of what was not trained there is nothing to keep
        elif not name.endswith(B):
            made[name] = torch.stack([one[name].double() for one in adapters]).mean(0)
    return {name: tensor.half().contiguous() for name, tensor in made.items()}, kept


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("adapters", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=16)
    args = parser.parse_args()
    configs = [json.loads((folder / CONFIG).read_text()) for folder in args.adapters]
    scales = [config["lora_alpha"] / config["r"] for config in configs]
    loaded = [load_file(folder / WEIGHTS) for folder in args.adapters]
    tensors, kept = averaged(loaded, scales, args.rank)
    shutil.copytree(args.adapters[0], args.output)
    save_file(tensors, args.output / WEIGHTS, metadata={"format": "pt"})
    config = configs[0] | {"r": args.rank, "lora_alpha": args.rank}
    (args.output / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
    size = (args.output / WEIGHTS).stat().st_size / 1e6
    print(
        f"{args.output}: {len(kept)} matrices of rank {args.rank}, {size:.1f} MB; they keep "
        f"{min(kept):.1%} to {max(kept):.1%} of the squared length of each update"
    )


if __name__ == "__main__":
    main()
