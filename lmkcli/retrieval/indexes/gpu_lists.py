"""Inverted lists on a GPU: a copy of an index that FAISS searches there, where it was built for one."""

from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from lmkcli.errors import DataError
from lmkcli.retrieval.indexes.factories import said

MOST = 2048  # candidates, and lists, of a search; FAISS's kernels take no more
THUS = "; it is searched on the processors"


class GpuLists:
    """A copy of an index of inverted lists (and of what turns vectors before them), 64-bit numbers kept."""

    def __init__(self, copy: Any, resources: Any) -> None:
        self._copy, self._resources = copy, resources  # which the copy needs as long as it lives

    @classmethod
    def of(cls, index: Any, device: int) -> tuple[Self | None, str]:
        """The copy on GPU `device`, or None and why: FAISS has no GPU, not this kind, or no room for it.

        Tables of product quantisation are float16 there, since those of 64 codes do not fit otherwise;
        candidates are scored again exactly, whoever found them.
        """
        if not count():
            return (
                None,
                f'FAISS sees no GPU (pip install "lmkcli[gpu]" has it built for them){THUS}',
            )
        gpu: Any = faiss
        try:
            resources, options = gpu.StandardGpuResources(), gpu.GpuClonerOptions()
            options.useFloat16 = options.allowCpuCoarseQuantizer = True
            copy = gpu.index_cpu_to_gpu(resources, device, index, options)
        except RuntimeError as error:
            return None, f"FAISS cannot hold this index on the GPU ({said(error)}){THUS}"
        return cls(copy, resources), ""

    @staticmethod
    def takes(k: int, probes: int) -> bool:
        """Whether a search for so many candidates in so many lists is one for a GPU."""
        return max(k, probes) <= MOST

    def search(
        self, queries: NDArray[np.float32], k: int, probes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and numbers [n, k] of the best in so many lists; -1 where there are no more.

        DataError where the GPU fails, as when its memory is full.
        """
        gpu: Any = faiss
        gpu.GpuParameterSpace().set_index_parameter(self._copy, "nprobe", probes)
        try:
            scores, rows = self._copy.search(queries, k)
        except RuntimeError as error:
            raise DataError(f"the GPU failed ({said(error)}); use --device cpu") from None
        return scores, rows


def count() -> int:
    """GPUs that FAISS can use: none where it was built without them."""
    return int(getattr(faiss, "get_num_gpus", int)())
