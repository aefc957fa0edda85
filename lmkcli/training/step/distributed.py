"""Gathering: vectors and small values that processes exchange during training.

Each process encodes its share of the batch and gathers the vectors of all processes, in process order. Only
the local rows have a gradient. Every process then computes the same loss of the whole batch and
back-propagates through its local rows. The sum of the parameter gradients over all processes is therefore
the gradient that one process would compute for the whole batch.
"""

import gc
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, distributed

from lmkcli.training.objectives.objective import Embedded

Scores = TypeVar("Scores")


def world_size() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def gather(texts: Embedded) -> Embedded:
    """Return the texts of all processes, in process order. With one process, return `texts`."""
    if world_size() == 1:
        return texts
    vectors = _gather(texts.vectors)
    return Embedded(vectors, None if texts.counts is None else _gather(texts.counts))


def _gather(local: Tensor) -> Tensor:
    """Concatenate [local rows, ...] over processes to [all rows, ...].

    Processes may have different numbers of rows, and all_gather needs equal shapes. So each process pads its
    rows to the largest number and cuts the padding afterwards. all_gather returns tensors without gradients.
    The local tensor replaces its copy, so the local rows keep their gradients.
    """
    rank = distributed.get_rank()
    rows = [torch.zeros(1, dtype=torch.long, device=local.device) for _ in range(world_size())]
    distributed.all_gather(rows, torch.tensor([len(local)], device=local.device))
    longest = max(int(count) for count in rows)
    padded = local.new_zeros(longest, *local.shape[1:])
    padded[: len(local)] = local.detach()
    everyone = [torch.zeros_like(padded) for _ in rows]
    distributed.all_gather(everyone, padded)
    parts = [part[: int(count)] for part, count in zip(everyone, rows, strict=True)]
    parts[rank] = local
    return torch.cat(parts)


def broadcast_scores(scores: Scores) -> Scores:
    """Return the scores of process 0 in every process."""
    if world_size() == 1:
        return scores
    objects = [scores]
    distributed.broadcast_object_list(objects)
    return objects[0]


def any_process(local: bool, device: torch.device) -> bool:
    """Return whether `local` is true in any process, so that all processes take the same decision."""
    if world_size() == 1:
        return local
    flag = torch.tensor([local], dtype=torch.uint8, device=device)
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    return bool(flag.item())


def total_counts(local: Mapping[str, int], device: torch.device) -> dict[str, int]:
    """Return the sums of the counts of all processes, which have the same names."""
    if world_size() == 1 or not local:
        return dict(local)
    names = sorted(local)
    counts = torch.tensor([local[name] for name in names], device=device)
    distributed.all_reduce(counts)
    return dict(zip(names, counts.tolist(), strict=True))


def wait_for_all() -> None:
    """Wait until all processes have come here."""
    if world_size() > 1:
        distributed.barrier()


def leave_group() -> None:
    """Wait for all processes and destroy the process group.

    No object may refer to the group afterwards. Python sometimes aborts at exit if a thread of the group
    still holds a tensor. The first process that aborts ends all others, even one that is writing its model.
    """
    if world_size() > 1:
        wait_for_all()
        gc.collect()  # the trainer and its module refer to each other
        distributed.destroy_process_group()
