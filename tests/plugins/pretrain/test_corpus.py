"""The texts of pre-training: from collections and tokens folders, whole and in blocks."""

from pathlib import Path

import numpy as np
import pytest

from lmkcli.plugins.pretrain.corpus import Corpus, TokenStore, in_blocks


def store(*texts: list[int]) -> TokenStore:
    starts = np.zeros((len(texts) + 1, 3), np.int64)
    starts[1:, 0] = np.cumsum([len(text) for text in texts])
    ids = np.array([token for text in texts for token in text], np.int32)
    return TokenStore(ids, np.zeros(0, np.int32), starts)


@pytest.fixture
def corpus() -> Corpus:
    """Two sources, the first in two stores; a text is empty."""
    one = store([1, 2, 3], [], [4])
    other = store([5, 6])
    return Corpus([one, other, store([7, 8, 9, 10, 11])], [0, 0, 1], ["a", "b"], empty=1)


def test_whole_texts(corpus: Corpus) -> None:
    assert [corpus[i].ids.tolist() for i in range(len(corpus))] == [
        [1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11],
    ]  # fmt: skip
    assert corpus.sources.tolist() == [0, 0, 0, 1]
    assert corpus.lengths.tolist() == [3, 1, 2, 5]
    assert corpus.tokens == 11
    assert [corpus.name(i) for i in (0, 2, 3)] == ["a text 0", "a text 2", "b text 0"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("separator", [None, 99])
def test_blocks_hold_every_token_once(corpus: Corpus, size: int, separator: int | None) -> None:
    blocks = in_blocks(corpus, size, separator)
    between = [] if separator is None else [separator]
    streams = [[1, 2, 3, *between, 4, *between, 5, 6], [7, 8, 9, 10, 11]]
    wanted = [
        (source, stream[i : i + size])
        for source, stream in enumerate(streams)
        for i in range(0, len(stream), size)
    ]
    assert len(blocks) == len(wanted)
    assert [(int(blocks.sources[i]), blocks[i].ids.tolist()) for i in range(len(blocks))] == wanted
    assert blocks.lengths.tolist() == [len(ids) for _, ids in wanted]


def test_only_chosen_sources_are_in_blocks(corpus: Corpus) -> None:
    """M2-BERT mixes single texts and blocks of the same length (§4.2)."""
    mixed = in_blocks(corpus, 2, 99, [False, True])
    assert [mixed[i].ids.tolist() for i in range(len(mixed))] == [
        *([1, 2, 3], [4], [5, 6]), *([7, 8], [9, 10], [11]),
    ]  # fmt: skip
    assert mixed.lengths.tolist() == [3, 1, 2, 2, 2, 1]
    assert mixed.sources.tolist() == [0, 0, 0, 1, 1, 1]
    assert [mixed.name(i) for i in (1, 3)] == ["a text 1", "b block 0"]
    other = in_blocks(corpus, 2, 99, [True, False])
    assert [other[i].ids.tolist() for i in range(len(other))] == [
        *([1, 2], [3, 99], [4, 99], [5, 6]), [7, 8, 9, 10, 11],
    ]  # fmt: skip
    assert len({mixed.digest, other.digest, corpus.digest, in_blocks(corpus, 2, 99).digest}) == 4


def test_the_digest_is_that_of_the_texts(corpus: Corpus) -> None:
    same = Corpus([store([1, 2, 3], [], [4]), *corpus.stores[1:]], [0, 0, 1], ["c", "d"])
    assert corpus.digest == same.digest
    others = [
        Corpus([store([1, 2], [3], [4]), *corpus.stores[1:]], [0, 0, 1], ["a", "b"]),
        Corpus(corpus.stores, [0, 1, 1], ["a", "b"]),
        in_blocks(corpus, 3, None),
        in_blocks(corpus, 3, 99),
    ]
    assert len({corpus.digest, *(other.digest for other in others)}) == 5


def test_prompts_and_chunks_stay_with_their_text(tmp_path: Path) -> None:
    starts = np.array([[0, 0, 1], [4, 2, 1], [6, 3, 0]], np.int64)
    made = TokenStore(np.arange(6, dtype=np.int32), np.array([1, 3, 1], np.int32), starts)
    first, second = made.text(0), made.text(1)
    assert (first.ids.tolist(), first.prompt.tolist()) == ([1, 2, 3], [0])
    assert first.ends is not None
    assert second.ends is not None
    assert (first.ends.tolist(), second.ends.tolist()) == ([1, 3], [1])
    assert made.lengths.tolist() == [3, 1]
