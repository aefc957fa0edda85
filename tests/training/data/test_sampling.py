"""Sampling: the same batches everywhere and after every resume, mixed as asked, without repeats."""

import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError, UsageError
from lmkcli.training.data.examples import Example, Examples, ScoredText
from lmkcli.training.data.sampling import ExampleBatch, Sampling, batches, shares


def pack(*sizes: int, passages: int = 10**9) -> Examples:
    """Sources of so many examples; only `passages` different ones answer those of a source."""

    def example(source: int, number: int) -> Example:
        answer = number % passages
        text = f"{source} {answer}" + "x" * (answer % 50)
        return Example(f"{source}-{number}", f"query {source} {number}", (ScoredText(text),))

    each = enumerate(sizes)
    return Examples.gather([[example(source, i) for i in range(size)] for source, size in each])


def first(count: int, examples: Examples, sampling: Sampling, start: int = 0) -> list[ExampleBatch]:
    weights = [1.0] * (int(examples.sources.max()) + 1)
    return list(islice(batches(examples, weights, sampling, start), count))


def plain(found: list[ExampleBatch]) -> list[tuple[int, list[int], list[int]]]:
    return [(batch.step, batch.examples.tolist(), batch.epochs.tolist()) for batch in found]


SAMPLINGS = st.builds(
    Sampling,
    batch_size=st.integers(1, 6),
    batches=st.sampled_from(["source", "mixed"]),
    temperature=st.sampled_from([1.0, 2.0, math.inf]),
    like_length=st.booleans(),
    seed=st.integers(0, 5),
)
SIZES = st.lists(st.integers(12, 40), min_size=1, max_size=3)


@settings(deadline=None, max_examples=50)
@given(SIZES, SAMPLINGS, st.integers(0, 30), st.integers(6, 9))
def test_whoever_resumes_goes_on_where_the_other_would(
    sizes: list[int], sampling: Sampling, start: int, passages: int
) -> None:
    examples = pack(*sizes, passages=passages)
    whole = plain(first(start + 5, examples, sampling))
    assert plain(first(5, examples, sampling, start)) == whole[start:]


@settings(deadline=None, max_examples=50)
@given(SIZES, SAMPLINGS, st.integers(6, 9))
def test_no_batch_has_a_query_or_a_positive_twice(
    sizes: list[int], sampling: Sampling, passages: int
) -> None:
    examples = pack(*sizes, passages=passages)
    for batch in first(30, examples, sampling):
        assert len(batch.examples) == sampling.batch_size
        positives = [examples[number].positives[0].text for number in batch.examples]
        assert len(set(positives)) == len(positives)
        if sampling.batches == "source":
            assert len(set(examples.sources[batch.examples])) == 1


@settings(deadline=None, max_examples=50)
@given(st.integers(5, 60), SAMPLINGS, st.integers(1, 4))
def test_every_example_comes_once_an_epoch(size: int, sampling: Sampling, epochs: int) -> None:
    examples = pack(size)
    if sampling.batch_size > size:
        return
    found = first(math.ceil(size * epochs / sampling.batch_size), examples, sampling)
    seen = Counter(
        (number, epoch) for batch in found for number, epoch in zip(*batch[1:], strict=True)
    )
    assert set(seen.values()) == {1}
    early = sum(1 for number in range(size) for epoch in range(epochs) if seen[number, epoch])
    assert early >= size * (
        epochs - 1
    )  # at the seam of two epochs an example may meet itself, and wait


@settings(deadline=None, max_examples=30)
@given(SAMPLINGS, st.integers(1, 7))
def test_slices_of_processes_are_the_batch_whatever_their_number(
    sampling: Sampling, processes: int
) -> None:
    for batch in first(3, pack(20, 15), sampling):
        parts = [batch.slice(Shard(number, processes)) for number in range(processes)]
        assert np.concatenate([part.examples for part in parts]).tolist() == batch.examples.tolist()
        assert np.concatenate([part.epochs for part in parts]).tolist() == batch.epochs.tolist()
        assert {part.step for part in parts} == {batch.step}


def test_the_order_is_another_in_every_epoch_and_for_every_seed() -> None:
    examples = pack(64)
    orders = [
        tuple(np.concatenate([batch.examples for batch in found[i : i + 4]]).tolist())
        for seed in range(3)
        for found in [first(12, examples, Sampling(16, like_length=False, seed=seed))]
        for i in (0, 4, 8)
    ]
    assert len(set(orders)) == len(orders)
    assert all(sorted(order) == list(range(64)) for order in orders)


@pytest.mark.parametrize("kind", ["source", "mixed"])
@pytest.mark.parametrize(
    ("weights", "temperature", "expected"),
    [
        ([1, 1], 1, [0.9, 0.1]),
        ([1, 3], 1, [0.75, 0.25]),
        ([1, 1], 2, [0.75, 0.25]),
        ([1, 1], math.inf, [0.5, 0.5]),
        ([0.2, 0.8], math.inf, [0.2, 0.8]),
        ([0, 1], 1, [0, 1]),
    ],
)
def test_sources_are_mixed_as_weights_and_temperature_say(
    kind: str, weights: list[float], temperature: float, expected: list[float]
) -> None:
    examples = pack(900, 100)
    assert shares(examples, weights, temperature) == pytest.approx(expected)
    sampling = Sampling(10, kind, temperature, like_length=False)  # type: ignore[arg-type]
    found = islice(batches(examples, weights, sampling), 1000)
    seen = np.bincount(np.concatenate([examples.sources[batch.examples] for batch in found]))
    assert seen[1:].sum() / 10_000 == pytest.approx(expected[1], abs=0.06)


def test_texts_of_a_batch_are_of_like_length_and_batches_come_in_any_order() -> None:
    examples = pack(3200)
    spread = {}
    for like in (True, False):
        found = first(100, examples, Sampling(32, like_length=like))
        lengths = [examples.lengths[batch.examples] for batch in found]
        spread[like] = np.mean([length.std() for length in lengths])
        middle = np.array([length.mean() for length in lengths])
        assert abs(np.corrcoef(middle[:-1], middle[1:])[0, 1]) < 0.3
    assert spread[True] < 0.1 * spread[False]


def test_an_example_that_fits_nowhere_now_comes_later() -> None:
    examples = pack(40, passages=4)  # ten examples to a passage
    found = first(40, examples, Sampling(4, like_length=False))
    seen = Counter(np.concatenate([batch.examples for batch in found]).tolist())
    assert len(seen) == 40


def test_a_batch_that_cannot_be_filled_says_how_many_can() -> None:
    with pytest.raises(DataError, match=r"4 examples .* --batch-size 5"):
        first(1, pack(40, passages=4), Sampling(5))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="batch-size"):
        Sampling(batch_size=0)
    with pytest.raises(UsageError, match="one must be above 0"):
        shares(pack(3, 3), [0, 0], 1)
    with pytest.raises(DataError, match="source 2 of 2"):
        shares(pack(3), [1, 1], 1)
