"""pool(): the one segment mean. Nothing else in the code averages states."""

import torch


def pool(
    states: torch.Tensor, marks: torch.Tensor, groups: torch.Tensor, count: int
) -> torch.Tensor:
    """The mean of the marked states of each group, in float32 (float64 for float64).

    states [tokens, dim] of any floating dtype; marks [m] positions in it; groups [m] non-decreasing
    numbers in 0 … count-1, each with at least one mark. Returns [count, dim]. Differentiable.
    """
    marked = states.index_select(0, marks)
    marked = marked.to(torch.promote_types(marked.dtype, torch.float32))
    if marked.shape[0] == count:
        return marked  # one mark each: cls, last
    lengths = torch.bincount(groups, minlength=count)
    return torch.segment_reduce(marked, "mean", lengths=lengths)
