"""MUVERA: one fixed-dimensional encoding for the vectors of a text (Dhulipala et al., 2024, section 2).

The dot product of the encodings of a query and a document estimates their MaxSim. So an index over one
encoding for each document finds candidates for scores of many vectors.

Random hyperplanes divide the space into 2^bits clusters. The encoding of a query contains, for each cluster,
the sum of its vectors there; that of a document the mean of its vectors there, so that each query vector
meets the mean of the document's vectors that are near it. A cluster without a vector of the document gets
the mean of its nearest cluster with vectors, in the number of different bits. Vectors are projected to a few
dimensions, by random signs, before they are added. All of this is repeated with other hyperplanes and signs.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding_bag

from lmkcli.errors import UsageError
from lmkcli.spec.values import Muvera
from lmkcli.store.ragged import cut
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import BLOCK_BYTES, DenseVectors

BYTES = 64 << 20  # in memory at a time: encodings, and intermediates
_SEED = 0


class FixedDimensional:
    """Encodes texts with vectors of `dim` dimensions; an encoding has `width` dimensions.

    Raises UsageError if the vectors are to be projected to more dimensions than they have.
    """

    def __init__(self, muvera: Muvera, dim: int) -> None:
        repetitions, bits, dims = muvera.repetitions, muvera.bits, muvera.dims
        if dims > dim:
            raise UsageError(
                f"--muvera {muvera}: the vectors have {dim} dimensions and cannot be projected to {dims}; "
                f"write at most {repetitions}x{bits}x{dim}"
            )
        self._repetitions, self._clusters, self._dims = repetitions, 1 << bits, dims
        self.width = repetitions * self._clusters * dims
        # of a vector while it is encoded: the projection, the bits, and three 64-bit numbers of its place
        self._bytes = repetitions * (4 * dims + 4 * bits + 24)
        self._powers = (1 << torch.arange(bits)).float()
        # The stream of RandomState is fixed, so an index does not depend on the version of NumPy.
        random = np.random.RandomState(_SEED)
        planes = random.standard_normal((dim, repetitions * bits))
        signs = random.randint(0, 2, (dim, repetitions * dims)) * 2.0 - 1
        if dims == dim:
            signs = np.tile(np.eye(dim), repetitions) * dims**0.5
        self._planes = torch.from_numpy(planes).float()
        self._projection = torch.from_numpy(signs / dims**0.5).float()

    def queries(self, queries: Ragged) -> Ragged:
        """Encode queries: one vector [width] for each."""
        return Ragged.single(self._encoded(queries, self._query_part))

    def docs(self, docs: Ragged) -> NDArray[np.float32]:
        """Encode documents to [documents, width]."""
        return self._encoded(docs, self._doc_part)

    def _encoded(
        self, texts: Ragged, encode: Callable[[Ragged], torch.Tensor]
    ) -> NDArray[np.float32]:
        """Encode texts part by part, because a vector needs much memory meanwhile."""
        encodings = np.empty((len(texts.counts), self.width), np.float32)
        for first, stop in cut(texts.starts, max(1, BYTES // self._bytes)):
            part = texts.take(np.arange(first, stop))
            encodings[first:stop] = encode(part).view(-1, self.width).numpy()
        return encodings

    def _query_part(self, queries: Ragged) -> torch.Tensor:
        return self._pooled(queries, "sum")[0]

    def _doc_part(self, docs: Ragged) -> torch.Tensor:
        means, counts = self._pooled(docs, "mean")
        nearest = _nearest_with_vectors(counts > 0)
        return means.gather(1, nearest[..., None].expand_as(means))

    def _pooled(self, texts: Ragged, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums or means [texts * repetitions, clusters, dims] of the projected vectors in each
        cluster, zero without vectors, and the number of vectors [texts * repetitions, clusters]."""
        vectors = torch.from_numpy(np.ascontiguousarray(texts.vectors, np.float32))
        bits = (vectors @ self._planes > 0).float().view(len(vectors), self._repetitions, -1)
        text = torch.arange(len(texts.counts)).repeat_interleave(torch.from_numpy(texts.counts))
        places = text[:, None] * self._repetitions + torch.arange(self._repetitions)
        places = (places * self._clusters + (bits @ self._powers).long()).view(-1)
        rows = len(texts.counts) * self._repetitions
        counts = torch.bincount(places, minlength=rows * self._clusters)
        pooled = embedding_bag(
            torch.from_numpy(np.argsort(places.numpy(), kind="stable")),
            (vectors @ self._projection).view(-1, self._dims),
            counts.cumsum(0) - counts,
            mode=mode,
        )
        return pooled.view(rows, self._clusters, self._dims), counts.view(rows, self._clusters)


def _nearest_with_vectors(occupied: torch.Tensor) -> torch.Tensor:
    """Return for each cluster [n, clusters] the occupied one whose number differs in the fewest bits, and
    of several the lowest.

    The distance is a sum over bits, so one pass over the bits finds it. A key is distance * clusters +
    number.
    """
    clusters = occupied.shape[1]
    far = clusters * clusters  # no cluster of the text is occupied
    keys = torch.where(occupied, torch.arange(clusters, dtype=torch.int32), far)
    for bit in range(clusters.bit_length() - 1):
        pairs = keys.view(len(keys), -1, 2, 1 << bit)
        keys = torch.minimum(pairs, pairs.flip(2) + clusters).view_as(keys)
    return keys.long() % clusters


class EncodedDocs:
    """The encodings of all documents of a vectors folder (`vector_search.Computed`).

    At most `encoded` bytes of encodings are yielded, and about `read` bytes of vectors are read, at a time.
    """

    def __init__(
        self, vectors: DenseVectors, muvera: Muvera, encoded: int = BYTES, read: int = BLOCK_BYTES
    ) -> None:
        self._vectors, self._encoding = vectors, FixedDimensional(muvera, vectors.dim)
        self._encoded, self._read = encoded, read
        self.rows, self.dim = vectors.rows, self._encoding.width

    def __iter__(self) -> Iterator[Ragged]:
        """Yield all documents in order, in blocks of bounded size."""
        size = max(1, self._encoded // (4 * self.dim))
        for block in self._vectors:
            for first, stop in cut(np.arange(len(block.counts) + 1), size):
                yield Ragged.single(self._encoding.docs(block.take(np.arange(first, stop))))

    def compute(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the encodings of some documents, [rows, dim]."""
        encodings = np.empty((len(rows), self.dim), np.float32)
        counts = np.diff(self._vectors.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        for first, stop in cut(starts, self._read // (4 * self._vectors.dim)):
            encodings[first:stop] = self._encoding.docs(self._vectors.at(rows[first:stop]))
        return encodings
