"""t-SNE, a projection that keeps neighbours together (van der Maaten and Hinton 2008)."""

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE

_PERPLEXITY = 30.0  # about the number of neighbours; the default of scikit-learn


def tsne(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], tuple[str, str]]:
    """[vectors, dim] -> positions [vectors, 2] by cosine, with a fixed seed, and the labels of the axes."""
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)  # a few vectors have few neighbours
    projection = TSNE(metric="cosine", perplexity=perplexity, init="random", random_state=0)
    return np.asarray(projection.fit_transform(vectors), np.float32), ("t-SNE 1", "t-SNE 2")
