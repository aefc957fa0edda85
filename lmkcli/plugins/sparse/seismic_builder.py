"""Build an index of Seismic: `python -m` this module, with the task of SeismicSearch.build on stdin."""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import seismic

from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.store.parts import PartSlice
from lmkcli.vectors.stored import Vectors

SUFFIX = ".index.seismic"  # Seismic adds it itself
SMALL = 1 << 16  # terms that uint16 can number
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


def build(vectors: Vectors[SparseRows], path: Path) -> None:
    """Write the index of all vectors to `path`. They are named by their numbers."""
    # Seismic has weights of 16 bits, up to 65,504; the scale does not change a ranking.
    largest = max((block.weights.max(initial=0) for block in vectors), default=0) or 1
    small = vectors.dim <= SMALL
    dataset = (seismic.SeismicDataset if small else seismic.SeismicDatasetLV)(vectors.dim)
    first = 0
    for block in vectors:
        names = [str(first + number) for number in range(len(block.lengths))]
        terms, weights = block.terms.astype(np.int64), block.weights / np.float32(largest)
        dataset.add_documents_by_id(names, terms, weights, block.offsets)
        first += len(names)
    kind = seismic.SeismicIndex if small else seismic.SeismicIndexLV
    kind.build_from_dataset(dataset, num_threads=threads()).save(str(path).removesuffix(SUFFIX))


def threads() -> int:
    """Return OMP_NUM_THREADS, as other engines use it; 0, which means all processors, by default."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(int(first), os.cpu_count() or 1) if first.isdecimal() else 0


def main() -> None:
    """Read the task and build. The process ends with its parent, and its last words are the reason."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    folder, slices, path = json.load(sys.stdin)
    try:
        build(Vectors(folder, [PartSlice.from_json(piece) for piece in slices]), Path(path))
    except BaseException as error:  # a panic of Rust is no Exception
        sys.exit(str(error) or type(error).__name__)


if __name__ == "__main__":
    main()
