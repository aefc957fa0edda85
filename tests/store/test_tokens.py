"""Tokens, written with a tokenizer of words and read again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli import manifest
from lmkcli.data.collection import WHOLE, CountedDocs, Doc, DocStream, Shard
from lmkcli.data.digest import doc_hash
from lmkcli.errors import DataError, Stopped
from lmkcli.manifest import Manifest
from lmkcli.progress import Report
from lmkcli.store import part_writer, parts, tokens
from lmkcli.store.part_writer import PartWriter, Target, shard_writer
from lmkcli.store.tokens import (
    ARRAYS,
    TokenRow,
    Tokens,
    TokenStream,
    estimate,
    tokenized,
    write_tokens,
)

DOCS = [
    Doc(f"d{number}", " ".join("word"[: 1 + i % 4] for i in range(number % 7)), "T" * (number % 3))
    for number in range(40)
]


class Words:
    """One token a word, numbered by its length; the prompt is one token, sentences are two words."""

    def __init__(self, prompt: bool = False, splitter: bool = False) -> None:
        self.prompt, self.splitter = prompt, splitter

    def __call__(self, texts: list[str]) -> list[Any]:
        return [self.one(text) for text in texts]

    def one(self, text: str) -> tuple[Any, ...]:
        places = [0, *(i + 1 for i, letter in enumerate(text) if letter == " ")]
        words = text.split(" ") if text else []
        spans = [(a, a + len(word)) for a, word in zip(places, words, strict=False)]
        ends = [*range(2, len(words), 2), len(words)] if words else []
        return (
            np.array([len(word) for word in words], np.int32),
            np.array(spans, np.int32).reshape(-1, 2),
            np.array([99] * self.prompt, np.int32),
            np.array(ends, np.int32) if self.splitter else None,
        )


WORDS = Words(prompt=True, splitter=True)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two or three documents, and parts of a few batches."""
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 200)
    monkeypatch.setattr(part_writer, "PART_BYTES", 400)


def claim(folder: Path, shards: int = 1) -> None:
    manifest.claim(folder, Manifest("tokens", {}, {"shards": shards}))


def stream(docs: list[Doc]) -> CountedDocs:
    return CountedDocs(lambda: iter(docs), len(docs))


def write(target: Target, docs: DocStream, tokenize: Words = WORDS, **report: Any) -> None:
    told = Report(**report)
    with shard_writer(target, told) as writer:
        batches = tokenized(docs, tokenize, writer.row)
        write_tokens(TokenStream(batches, lambda: docs.fraction), writer, told)


def written(
    folder: Path, docs: list[Doc], tokenize: Words = WORDS, *, text: bool = True, **report: Any
) -> Tokens:
    claim(folder)
    write(Target(folder, WHOLE, ARRAYS, text), stream(docs), tokenize, **report)
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
def test_rows_come_back_as_they_were_written(tmp_path: Path, prompt: bool, splitter: bool) -> None:
    tokenize = Words(prompt, splitter)
    made = written(tmp_path, DOCS, tokenize)
    assert len(made.state.slices) > 3
    assert made.state.unfinished == []
    assert read(made, 0, 40) == expected(DOCS, tokenize)
    assert all(row.ids.dtype == np.int32 for batch in made.rows(0, 40) for row in batch)


def test_any_stretch_of_rows_can_be_read(tmp_path: Path) -> None:
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
        write(Target(tmp_path, shard, ARRAYS), stream(docs))
    assert read(Tokens(tmp_path), 0, 40) == expected(DOCS)


def test_an_empty_collection_is_complete(tmp_path: Path) -> None:
    made = written(tmp_path, [])
    assert (made.docs, made.lengths().tolist(), read(made, 0, 9)) == (0, [], [])
    assert made.state.unfinished == []
    assert parts.done_rows(tmp_path, WHOLE) == 0


def stopped(folder: Path, looks: int) -> bool:
    """Whether a signal ended the job; it comes after so many looks for one."""
    asked = iter([False] * looks)
    try:
        written(folder, DOCS, stopping=lambda: next(asked, True))
    except Stopped:
        return True
    return False


def test_a_stop_keeps_what_is_whole_and_the_same_command_continues(tmp_path: Path) -> None:
    docs = [0]
    while stopped(tmp_path, looks=2):
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


def test_an_error_of_the_source_leaves_whole_parts_alone(tmp_path: Path) -> None:
    def broken() -> Iterator[Doc]:
        yield from DOCS[:20]
        raise DataError("line 21 is broken")

    claim(tmp_path)
    with pytest.raises(DataError, match="line 21"):
        write(Target(tmp_path, WHOLE, ARRAYS), CountedDocs(broken, None))
    assert 0 < Tokens(tmp_path).docs <= 20
    assert not list((tmp_path / "parts").glob(".growing*"))
    assert read(written(tmp_path, DOCS), 0, 40) == expected(DOCS)


@pytest.mark.parametrize("again", [0, 39])
def test_an_id_that_comes_again_is_refused(tmp_path: Path, again: int) -> None:
    """Whether it was written in this life or in an earlier one."""
    claim(tmp_path)
    assert stopped(tmp_path, looks=3)
    with pytest.raises(DataError, match=f"'d{again}' occurs twice"):
        written(tmp_path, [*DOCS, DOCS[again]])


def test_overlapping_parts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path)
    ranges = [(0, 12), (5, 20), (8, 15), (20, 33), (31, 40)]
    for start, stop in ranges:
        with PartWriter(Target(tmp_path, WHOLE, ARRAYS), Report(), start) as writer:
            monkeypatch.setattr(part_writer, "PART_BYTES", 1 << 20)
            for batch in tokenized(DOCS[start:stop], WORDS):
                writer.append(tokens._doc_rows(batch), tokens._arrays(batch, writer))
        assert writer.row == stop
    parts.mark_done(tmp_path, WHOLE, 40)
    made = Tokens(tmp_path)
    assert read(made, 0, 40) == expected(DOCS)
    assert read(made, 10, 35) == expected(DOCS)[10:35]
    assert made.lengths().tolist() == [len(row[2]) for row in expected(DOCS)]
    assert made.counts() == written(tmp_path / "plain", DOCS).counts()


def test_text_that_is_not_stored_is_not_read_back(tmp_path: Path) -> None:
    made = written(tmp_path, DOCS, text=False)
    whole = [[Doc(row[0].id, ""), *row[1:]] for row in expected(DOCS)]
    assert read(made, 0, 40) == whole


def test_documents_that_are_done_are_skipped_and_batches_bounded() -> None:
    batches = list(tokenized(DOCS, WORDS, skip=13))
    assert [row.doc for batch in batches for row in batch] == DOCS[13:]
    assert 1 < max(map(len, batches)) <= 200 // 64
    assert list(tokenized(DOCS, WORDS, skip=40)) == []


def test_progress_counts_tokens_up_to_their_number(tmp_path: Path) -> None:
    calls: list[tuple[int, int | None, str]] = []
    made = written(tmp_path, DOCS, progress=lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert calls[-1] == (made.counts().tokens, made.counts().tokens, "tokens")
    assert estimate(10, 0.25) == 40
    assert estimate(10, None) is None
    assert estimate(0, 0.0) is None


def test_another_artifact_is_no_tokens_folder(tmp_path: Path) -> None:
    manifest.claim(tmp_path, Manifest("vectors", {}, {"shards": 1}))
    with pytest.raises(DataError, match="holds vectors, but tokens are needed"):
        Tokens(tmp_path)
