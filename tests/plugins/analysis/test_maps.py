"""Maps of vectors in two dimensions."""

import numpy as np

from lmkcli.plugins.analysis.maps import pca


def test_the_first_component_has_most_of_the_variance() -> None:
    random = np.random.default_rng(0)
    spread = np.array([5.0, 2.0, 0.1, 0.1])
    vectors = (random.normal(size=(500, 4)) * spread + 3).astype(np.float32)
    places, axes = pca(vectors)
    centred = vectors - vectors.mean(0)
    assert abs(np.corrcoef(places[:, 0], centred[:, 0])[0, 1]) > 0.99
    assert abs(np.corrcoef(places[:, 1], centred[:, 1])[0, 1]) > 0.99
    share = centred[:, 0].var() / centred.var(0).sum()
    assert axes[0] == f"component 1 ({share:.0%} of variance)"
    np.testing.assert_allclose(places.mean(0), 0, atol=1e-4)


def test_the_largest_component_of_a_direction_is_positive() -> None:
    random = np.random.default_rng(1)
    for _ in range(8):
        vectors = random.normal(size=(50, 6)).astype(np.float32)
        centred = vectors - vectors.mean(0)
        for along in pca(vectors)[0].T:
            direction = np.linalg.lstsq(centred, along, rcond=None)[0]
            assert direction[np.abs(direction).argmax()] > 0
