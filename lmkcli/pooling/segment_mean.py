"""The segment mean: the only function that averages states.

Several texts are in one batch. Their states are concatenated to [tokens, dim], and their marks are positions
in this array, sorted by vector. So the marks of one vector are a segment, and the vectors of the batch are
the means of consecutive segments:

    states  [s0 s1 s2 s3 s4 s5]      marks  [0 1 2 5]      groups  [0 0 0 1]
    vector 0 = (s0 + s1 + s2) / 3    vector 1 = s5

Sums are in float32, because bfloat16 and float16 lose the last states of a long segment.
"""

import torch


def pool(
    states: torch.Tensor, marks: torch.Tensor, groups: torch.Tensor, count: int
) -> torch.Tensor:
    """Return the mean of the marked states of each group, [count, dim], in float32 (float64 for float64).

    states: [tokens, dim] of any floating dtype. marks: [m], positions in it. groups: [m], ascending numbers
    in 0 … count - 1; each number has at least one mark. The result is differentiable.
    """
    marked = states.index_select(0, marks)
    marked = marked.to(torch.promote_types(marked.dtype, torch.float32))
    if marked.shape[0] == count:
        return marked  # one mark for each vector: cls, last
    # A GPU would have to wait in bincount, and in the checks that unsafe=True leaves out.
    lengths = groups.new_zeros(count).index_add_(0, groups, torch.ones_like(groups))
    return torch.segment_reduce(marked, "mean", lengths=lengths, unsafe=True)
