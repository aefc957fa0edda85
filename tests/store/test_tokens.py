"""Tokens: written with a tokenizer of words, and read again."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.artifact import manifest
from lmkcli.data.collection import WHOLE, Collection, CountedDocs, Doc, DocStream, Shard, doc_hash
from lmkcli.encoding.token_stream import TokenStream, token_stream, tokenized, write_tokens
from lmkcli.errors import DataError, Stopped
from lmkcli.progress import EstimatedTotal, Report, estimate_total
from lmkcli.store import parts, tokens
from lmkcli.store.part_writer import PartTarget, PartWriter, shard_writer
from lmkcli.store.token_blocks import TextTokens, TokenRow
from lmkcli.store.tokens import ARRAYS, Tokens
from tests import manifests

DOCS = [
    Doc(f"d{number}", " ".join("word"[: 1 + i % 4] for i in range(number % 7)), "T" * (number % 3))
    for number in range(40)
]


class Words:
    """One token for each word; its id is the length of the word. A prompt has one token, a sentence two."""

    def __init__(self, prompt: bool = False, splitter: bool = False) -> None:
        self.prompt, self.splitter = prompt, splitter

    def __call__(self, texts: list[str]) -> list[TextTokens]:
        return [self.one(text) for text in texts]

    def one(self, text: str) -> TextTokens:
        places = [0, *(i + 1 for i, letter in enumerate(text) if letter == " ")]
        words = text.split(" ") if text else []
        spans = [(a, a + len(word)) for a, word in zip(places, words, strict=False)]
        ends = [*range(2, len(words), 2), len(words)] if words else []
        return TextTokens(
            np.array([len(word) for word in words], np.int32),
            np.array(spans, np.int32).reshape(-1, 2),
            np.array([99] * self.prompt, np.int32),
            np.array(ends, np.int32) if self.splitter else None,
        )


WORDS = Words(prompt=True, splitter=True)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, part_bytes: Callable[[int], None]) -> None:
    """Batches of two or three documents, and parts of a few batches."""
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 200)
    part_bytes(400)


def claim(folder: Path, shards: int = 1) -> None:
    manifest.claim(folder, manifests.tokens(shards))


def stream(docs: list[Doc]) -> CountedDocs:
    return CountedDocs(lambda: iter(docs), len(docs))


def write(target: PartTarget, docs: DocStream, tokenize: Words = WORDS, **report: Any) -> None:
    reporting = Report(**report)
    with shard_writer(target, reporting) as writer:
        batches = tokenized(islice(docs, writer.row, None), tokenize)
        write_tokens(TokenStream(batches, lambda: docs.fraction), writer, reporting)


def written(
    folder: Path, docs: list[Doc], tokenize: Words = WORDS, *, text: bool = True, **report: Any
) -> Tokens:
    claim(folder)
    write(PartTarget(folder, WHOLE, ARRAYS, text), stream(docs), tokenize, **report)
    return Tokens(folder)


def expected(docs: list[Doc], tokenize: Words = WORDS) -> list[list[Any]]:
    return [plain(TokenRow(doc, doc_hash(doc), *tokenize.one(doc.content))) for doc in docs]


def plain(row: TokenRow) -> list[Any]:
    ends = [] if row.ends is None else row.ends.tolist()
    return [row.doc, row.hash, row.ids.tolist(), row.spans.tolist(), row.prompt.tolist(), ends]


def read(made: Tokens, start: int, stop: int) -> list[list[Any]]:
    return [plain(row) for batch in made.rows(start, stop) for row in batch]


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("splitter", [False, True])
def test_rows_are_read_unchanged(tmp_path: Path, prompt: bool, splitter: bool) -> None:
    tokenize = Words(prompt, splitter)
    made = written(tmp_path, DOCS, tokenize)
    assert len(made.state.slices) > 3
    assert made.state.unfinished == []
    assert read(made, 0, 40) == expected(DOCS, tokenize)
    assert all(row.ids.dtype == np.int32 for batch in made.rows(0, 40) for row in batch)


def test_every_range_of_rows_can_be_read(tmp_path: Path) -> None:
    made = written(tmp_path, DOCS)
    whole = expected(DOCS)
    for start in range(0, 41, 3):
        for stop in range(start, 41, 2):
            assert read(made, start, stop) == whole[start:stop]
    assert read(made, 38, 99) == whole[38:]
    assert read(made, 7, 3) == []


def test_counts_and_lengths_are_those_of_the_content(tmp_path: Path) -> None:
    made = written(tmp_path, DOCS)
    lengths = [len(doc.content.split(" ")) if doc.content else 0 for doc in DOCS]
    assert made.docs == 40
    assert made.lengths().tolist() == lengths
    counts = made.counts()
    assert (counts.docs, counts.tokens, counts.empty) == (40, sum(lengths), lengths.count(0))
    assert (counts.lost, counts.cut, counts.vectors) == (0, 0, 0)


def test_shards_follow_each_other(tmp_path: Path) -> None:
    claim(tmp_path, 3)
    for number in (2, 0, 1):
        shard = Shard(number, 3)
        docs = [DOCS[row] for row in shard.rows(40)]
        write(PartTarget(tmp_path, shard, ARRAYS), stream(docs))
    assert read(Tokens(tmp_path), 0, 40) == expected(DOCS)


def test_an_empty_collection_is_complete(tmp_path: Path) -> None:
    made = written(tmp_path, [])
    assert (made.docs, made.lengths().tolist(), read(made, 0, 9)) == (0, [], [])
    assert made.state.unfinished == []
    assert parts.done_rows(tmp_path, WHOLE) == 0


def stopped(folder: Path, checks: int) -> bool:
    """Run the job with a signal after so many checks for one. Returns whether the signal ended it."""
    signals = iter([False] * checks)
    try:
        written(folder, DOCS, stopping=lambda: next(signals, True))
    except Stopped:
        return True
    return False


def test_after_a_stop_the_same_command_continues(tmp_path: Path) -> None:
    docs = [0]
    while stopped(tmp_path, checks=2):
        seen = Tokens(tmp_path)
        assert seen.state.unfinished == [0]
        assert seen.docs > docs[-1]
        docs.append(seen.docs)
        assert read(seen, 0, 40) == expected(DOCS)[: seen.docs]
        assert not list((tmp_path / "parts").glob(".growing*"))
    assert len(docs) > 3
    made = Tokens(tmp_path)
    assert read(made, 0, 40) == expected(DOCS)
    assert made.counts() == written(tmp_path / "undisturbed", DOCS).counts()


def test_an_error_of_the_source_leaves_published_parts(tmp_path: Path) -> None:
    def broken() -> Iterator[Doc]:
        yield from DOCS[:20]
        raise DataError("line 21 is broken")

    claim(tmp_path)
    with pytest.raises(DataError, match="line 21"):
        write(PartTarget(tmp_path, WHOLE, ARRAYS), CountedDocs(broken, None))
    assert 0 < Tokens(tmp_path).docs <= 20
    assert not list((tmp_path / "parts").glob(".growing*"))
    assert read(written(tmp_path, DOCS), 0, 40) == expected(DOCS)


@pytest.mark.parametrize("again", [0, 39])
def test_a_duplicate_id_is_refused(tmp_path: Path, again: int) -> None:
    """The first document with the id was written by this process, or by an earlier one."""
    claim(tmp_path)
    assert stopped(tmp_path, checks=3)
    with pytest.raises(DataError, match=f"'d{again}' occurs twice"):
        written(tmp_path, [*DOCS, DOCS[again]])


def test_overlapping_parts_are_read_once(tmp_path: Path, part_bytes: Callable[[int], None]) -> None:
    claim(tmp_path)
    ranges = [(0, 12), (5, 20), (8, 15), (20, 33), (31, 40)]
    for start, stop in ranges:
        with PartWriter(PartTarget(tmp_path, WHOLE, ARRAYS), Report(), start) as writer:
            part_bytes(1 << 20)
            batches = TokenStream(tokenized(DOCS[start:stop], WORDS), lambda: None)
            write_tokens(batches, writer, Report())
        assert writer.row == stop
    parts.mark_done(tmp_path, WHOLE, 40)
    made = Tokens(tmp_path)
    assert read(made, 0, 40) == expected(DOCS)
    assert read(made, 10, 35) == expected(DOCS)[10:35]
    assert made.lengths().tolist() == [len(row[2]) for row in expected(DOCS)]
    assert made.counts() == written(tmp_path / "plain", DOCS).counts()


def test_without_stored_texts_documents_have_only_ids(tmp_path: Path) -> None:
    made = written(tmp_path, DOCS, text=False)
    whole = [[Doc(row[0].id, ""), *row[1:]] for row in expected(DOCS)]
    assert read(made, 0, 40) == whole


class Listed(Collection):
    """A collection of the documents above; it has read `ahead` when the first batch arrives."""

    name, settings = "listed", {}

    def docs(self, shard: Shard = WHOLE) -> CountedDocs:
        return stream(DOCS)

    def queries(self) -> Any: ...

    def qrels(self) -> Any: ...


def test_blocks_without_texts_are_bounded_by_their_tokens(
    tmp_path: Path, part_bytes: Callable[[int], None]
) -> None:
    """Another process may send them, and no document ends a block by its text."""
    part_bytes(1 << 20)
    docs = [Doc(f"d{number}", "a " * 150) for number in range(6)]
    found = written(tmp_path / "t", docs, text=False)
    assert [len(block) for block in found.rows(0, 6)] == [1] * 6


def test_finished_documents_are_skipped_and_batches_are_bounded() -> None:
    batches = list(token_stream(Listed(), WORDS, WHOLE, 13).batches)
    assert [row.doc for batch in batches for row in batch] == DOCS[13:]
    assert 1 < max(map(len, batches)) <= 200 // 64
    assert list(token_stream(Listed(), WORDS, WHOLE, 40).batches) == []


@pytest.mark.parametrize("skip", [0, 13])
def test_the_fraction_is_that_of_the_batches_and_not_of_reading_ahead(
    tmp_path: Path, skip: int
) -> None:
    folder = written(tmp_path, DOCS)
    for source in (Listed(), folder):
        opened = token_stream(source, WORDS, WHOLE, skip)
        seen = 0
        for batch in opened.batches:
            seen += len(batch)
            assert opened.fraction() == pytest.approx(seen / (40 - skip))
        assert opened.docs() == seen == 40 - skip


def test_progress_ends_at_the_number_of_tokens(tmp_path: Path) -> None:
    calls: list[tuple[int, int | None, str, str]] = []
    made = written(tmp_path, DOCS, progress=lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert done == sorted(done)
    tokens = made.counts().tokens
    assert calls[-1] == (tokens, tokens, "tokens", "40 documents")
    assert estimate_total(10, 0.25) == 40
    assert estimate_total(10, None) is None
    assert estimate_total(0, 0.0) is None
    assert isinstance(estimate_total(10, 0.25), EstimatedTotal)
    assert not isinstance(estimate_total(10, 1.0), EstimatedTotal)


def test_another_artifact_is_refused(tmp_path: Path) -> None:
    manifest.claim(tmp_path, manifests.vectors())
    with pytest.raises(DataError, match=r"contains vectors; give tokens"):
        Tokens(tmp_path)
