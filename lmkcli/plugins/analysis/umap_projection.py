"""UMAP, a projection that keeps neighbours together (McInnes et al., arXiv 1802.03426)."""

import numpy as np
from numpy.typing import NDArray
from umap import UMAP


def umap(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], tuple[str, str]]:
    """[vectors, dim] -> positions [vectors, 2] by cosine, with a fixed seed, and the labels of the axes."""
    places = UMAP(n_components=2, metric="cosine", random_state=0).fit_transform(vectors)
    return np.asarray(places, np.float32), ("UMAP 1", "UMAP 2")
