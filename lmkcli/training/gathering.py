"""Gathering: the vectors of all processes, in their order, of which only the own carry a gradient.

Every process then computes the same loss of the whole batch; the gradients of its own vectors, summed
over processes, are those of one process that ran everything.
"""

import gc

import torch
from torch import Tensor, distributed

from lmkcli.training.objective import Embedded


def world() -> int:
    """How many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def gathered(texts: Embedded) -> Embedded:
    """The texts of all processes, those of process 0 first; with one process, the same."""
    if world() == 1:
        return texts
    vectors = _gathered(texts.vectors)
    return Embedded(vectors, None if texts.counts is None else _gathered(texts.counts))


def _gathered(own: Tensor) -> Tensor:
    """[all rows, ...]; processes may have different numbers of rows."""
    rank = distributed.get_rank()
    rows = [torch.zeros(1, dtype=torch.long, device=own.device) for _ in range(world())]
    distributed.all_gather(rows, torch.tensor([len(own)], device=own.device))
    longest = max(int(count) for count in rows)
    padded = own.new_zeros(longest, *own.shape[1:])
    padded[: len(own)] = own.detach()
    everyone = [torch.zeros_like(padded) for _ in rows]
    distributed.all_gather(everyone, padded)
    parts = [part[: int(count)] for part, count in zip(everyone, rows, strict=True)]
    parts[rank] = own
    return torch.cat(parts)


def agreed(scores: dict[str, float]) -> dict[str, float]:
    """What process 0 found, in every process."""
    if world() == 1:
        return scores
    held = [scores]
    distributed.broadcast_object_list(held)
    return held[0]


def anywhere(here: bool, device: torch.device) -> bool:
    """Whether it is so in any process: what one of them knows alone must not part them."""
    if world() == 1:
        return here
    flag = torch.tensor([here], dtype=torch.uint8, device=device)
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    return bool(flag.item())


def leave_group() -> None:
    """The processes wait for one another and are a group no longer; nothing may hold the group any more.

    Python now and then aborts where it ends while a thread of the group still holds a tensor, and the
    first process that ends so takes the others with it, one that writes its model too.
    """
    if world() > 1:
        distributed.barrier()
        gc.collect()  # a trainer and what it trains refer to each other
        distributed.destroy_process_group()
