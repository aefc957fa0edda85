"""Vectors: written with an encoder of word counts, and read again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.artifact import manifest
from lmkcli.data.collection import WHOLE, CollectionDigest, Doc, Shard, doc_hash
from lmkcli.encoding.encoder import DocumentVectors, encode_stream
from lmkcli.encoding.shard_run import vectors_target, write_vectors
from lmkcli.encoding.token_stream import TokenStream
from lmkcli.errors import DataError, Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import EncoderConfig, Recipe
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store import parts
from lmkcli.store.doctable import DocRows
from lmkcli.store.part_writer import PartBuilder, PartTarget, shard_writer
from lmkcli.store.token_blocks import TokenRow
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import Vectors
from tests import manifests
from tests.immediate import Immediate

SIDE = EncoderConfig("w", "t", "a/model", pool="mean")
RECIPE = Recipe(SIDE, SIDE)
DIM, LIMIT = 3, 5
DOCS = [Doc(f"d{number}", "w " * (number % 9), f"T{number}") for number in range(60)]
NONE = np.zeros(0, np.int32)


def vector(doc: Doc) -> list[float]:
    number = int(doc.id[1:])
    return [number, len(doc.text), 1 / (number + 1)]


def token_row(doc: Doc) -> TokenRow:
    words = len(doc.text.split())
    return TokenRow(doc, doc_hash(doc), np.arange(words), np.zeros((words, 2)), NONE, None)


class WordCounts(Immediate):
    """An encoder that keeps five tokens of a text. It checks for a stop after each document, or never."""

    dim, spans = DIM, False
    buffer_tokens, contexts, sparse = 20, False, False

    def __init__(
        self, change: Callable[[Any], Any] = lambda made: made, checks: bool = True
    ) -> None:
        self._change, self._checks = change, checks
        self.calls: list[int] = []

    def __call__(self, rows: list[TokenRow], report: Report) -> DocumentVectors[Ragged]:
        self.calls.append(len(rows))
        for number, row in enumerate(rows):
            report.progress(sum(len(r.ids) for r in rows[: number + 1]), None, "tokens")
            if self._checks:
                report.check_stop()
            assert row.hash == doc_hash(row.doc)
        made = np.array([vector(row.doc) for row in rows], np.float32)
        return DocumentVectors(
            Ragged.single(self._change(made)), [min(len(row.ids), LIMIT) for row in rows]
        )


@pytest.fixture(autouse=True)
def small(part_bytes: Callable[[int], None]) -> None:
    """Parts of a few buffers."""
    part_bytes(200)


def claim(folder: Path, shards: int = 1, store: str = "fp32") -> None:
    made = manifests.vectors(RECIPE, DIM, shards=shards, store_dtype=store)
    manifest.claim(folder, made)


def write(
    folder: Path, docs: list[Doc] = DOCS, encode: Any = None, shard: Shard = WHOLE,
    store: Any = "fp32", overflow: Any = "truncate", **report: Any,
) -> None:  # fmt: skip
    claim(folder, shard.count, store)
    encode, reporting = encode or WordCounts(), Report(**report)
    settings = EncodeSettings(store_dtype=store, on_overflow=overflow)
    with shard_writer(vectors_target(folder, shard, encode, settings), reporting) as writer:
        rest = [token_row(doc) for doc in docs[writer.row :]]
        batches = (rest[i : i + 4] for i in range(0, len(rest), 4))
        stream = TokenStream(batches, lambda: None)
        write_vectors(encode_stream(stream, encode, reporting), writer, settings)


def overlapping(folder: Path, ranges: list[tuple[int, int]]) -> Vectors:
    """Write parts as two processes of one task leave them."""
    claim(folder)
    for start, stop in ranges:
        builder = PartBuilder(PartTarget(folder, WHOLE, {"vectors": ("float32", (DIM,))}), start)
        for doc in DOCS[start:stop]:
            row = token_row(doc)
            lost = max(len(row.ids) - LIMIT, 0)
            each = {"tokens": len(row.ids), "lost": lost, "vectors": 1}
            counts = {name: np.array([value]) for name, value in each.items()}
            builder.add_docs(DocRows([doc], [row.hash], counts))
        builder.add_array("vectors", np.array([vector(doc) for doc in DOCS[start:stop]]))
        builder.publish()
    parts.mark_done(folder, WHOLE, len(DOCS))
    return Vectors(folder)


def all_of(found: Vectors) -> Any:
    return np.concatenate([block.vectors for block in found])


@pytest.fixture(params=["parts", "overlaps", "shards"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Vectors:
    """Vectors of the same sixty documents, written in three ways."""
    if request.param == "overlaps":
        return overlapping(tmp_path, [(0, 20), (10, 25), (24, 60), (30, 50)])
    if request.param == "parts":
        write(tmp_path)
        return Vectors(tmp_path)
    for number in (1, 3, 0, 2):
        shard = Shard(number, 4)
        write(tmp_path, [DOCS[row] for row in shard.rows(60)], shard=shard)
    return Vectors(tmp_path)


def test_vectors_are_in_the_order_of_the_source(made: Vectors) -> None:
    assert made.rows == 60
    assert made.dim == DIM
    assert len(made.slices) > 2
    expected = np.array([vector(doc) for doc in DOCS], np.float32)
    np.testing.assert_array_equal(np.concatenate([b.vectors for b in made]), expected)
    np.testing.assert_array_equal(made.at(np.arange(60)).vectors, expected)
    assert made.ids(np.arange(60)) == [doc.id for doc in DOCS]
    assert made.docs(np.arange(60)) == DOCS


def test_rows_are_read_in_any_order_and_more_than_once(made: Vectors) -> None:
    random = np.random.default_rng(0)
    for size in (0, 1, 7, 150, 1000):
        rows = random.integers(0, 60, size)
        wanted = [DOCS[row] for row in rows]
        assert made.ids(rows) == [doc.id for doc in wanted]
        assert made.docs(rows) == wanted
        expected = np.array([vector(doc) for doc in wanted], np.float32).reshape(-1, DIM)
        np.testing.assert_array_equal(made.at(rows).vectors, expected)
        assert made.at(rows).vectors.dtype == np.float32


def test_documents_are_found_by_id_once(made: Vectors) -> None:
    wanted = ["d59", "d24", "nowhere", "d12", "d0"]
    assert [doc.id for doc in made.by_ids(wanted)] == ["d0", "d12", "d24", "d59"]
    assert made.by_ids([doc.id for doc in DOCS]) == DOCS
    assert made.numbers() == {doc.id: row for row, doc in enumerate(DOCS)}


def test_counts_do_not_depend_on_the_parts(made: Vectors) -> None:
    lengths = [len(doc.text.split()) for doc in DOCS]
    counts = made.counts()
    assert (counts.docs, counts.vectors, counts.tokens) == (60, 60, sum(lengths))
    assert counts.lost == sum(max(length - LIMIT, 0) for length in lengths)
    assert counts.cut == sum(length > LIMIT for length in lengths)
    assert counts.empty == lengths.count(0)


def test_blocks_are_bounded(made: Vectors) -> None:
    blocks = [block.vectors for block in made.blocks(4 * DIM * 7)]
    assert max(map(len, blocks)) == 7
    assert all(block.dtype == np.float32 and block.flags.c_contiguous for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), made.at(np.arange(60)).vectors)


def test_the_recipe_is_read_unchanged(made: Vectors) -> None:
    assert made.recipe == RECIPE
    assert made.recipe.doc.model == "a/model"


def test_the_digest_of_the_collection_is_that_of_its_documents(tmp_path: Path) -> None:
    write(tmp_path)
    whole = CollectionDigest()
    for doc in reversed(DOCS):
        whole.add(doc_hash(doc))
    assert Vectors(tmp_path).collection_digest() == str(whole)


def test_the_digest_changes_with_a_vector_and_not_with_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    write(tmp_path / "c", encode=WordCounts(lambda made: made + (made == 59)))
    digests = [Vectors(tmp_path / name).digest() for name in "abc"]
    assert digests[0] == digests[1] != digests[2]


def test_documents_are_encoded_in_full_buffers(tmp_path: Path) -> None:
    fake = WordCounts()
    write(tmp_path, encode=fake)
    assert sum(fake.calls) == 60
    assert min(fake.calls[:-1]) >= 20 // 8
    assert max(fake.calls) < 15


@pytest.mark.parametrize(("store", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
def test_vectors_are_stored_in_the_requested_dtype(tmp_path: Path, store: str, dtype: Any) -> None:
    write(tmp_path, store=store)
    found = Vectors(tmp_path)
    assert found.coded(0).arrays["vectors"].dtype == dtype
    expected = np.array([vector(doc) for doc in DOCS]).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(found.at(np.arange(60)).vectors, expected)


@pytest.mark.parametrize(
    ("value", "store", "advice"),
    [
        (70_000.0, "fp16", "--store-dtype fp32.* --dtype fp32"),
        (np.nan, "fp16", "--store-dtype fp32"),
        (np.nan, "fp32", "try --dtype fp32"),
        (-np.inf, "fp32", "try --dtype fp32"),
    ],
)
def test_the_error_of_a_non_finite_vector_names_its_document(
    tmp_path: Path, value: float, store: str, advice: str
) -> None:
    spoil = WordCounts(lambda made: np.where(made[:, :1] == 41, value, made))
    with np.errstate(over="ignore"), pytest.raises(DataError, match=f"document d41 .*{advice}"):
        write(tmp_path, encode=spoil, store=store)
    assert not list((tmp_path / "parts").glob(".growing*"))
    with pytest.raises(DataError, match="not complete"):
        Vectors(tmp_path)


def test_a_large_float32_value_is_stored(tmp_path: Path) -> None:
    write(tmp_path, encode=WordCounts(lambda made: made * 1e6), store="fp32")
    assert Vectors(tmp_path).at(np.array([59])).vectors[0, 0] == np.float32(59e6)


def test_an_overflow_is_an_error_if_requested(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d6 .*6 tokens .*1 .*--max-l"):
        write(tmp_path, overflow="error")
    fitting = [doc for doc in DOCS if len(doc.text.split()) <= LIMIT]
    write(tmp_path / "b", fitting, overflow="error")
    assert Vectors(tmp_path / "b").counts().lost == 0


def stopped(folder: Path, encode: WordCounts, checks: int) -> bool:
    """Run the job with a signal after so many checks for one. Returns whether the signal ended it."""
    signals = iter([False] * checks)
    try:
        write(folder, encode=encode, stopping=lambda: next(signals, True))
    except Stopped:
        return True
    return False


@pytest.mark.parametrize("checks", [True, False])
def test_after_a_stop_the_same_command_continues(tmp_path: Path, checks: bool) -> None:
    """The encoder sees the signal first, or the signal comes just after its last check."""
    rows = [0]
    while stopped(tmp_path, WordCounts(checks=checks), 23 if checks else 3):
        assert not list((tmp_path / "parts").glob(".growing*"))
        rows.append(parts.covered_rows(parts.cover(parts.list_parts(tmp_path), WHOLE)))
        assert rows[-1] > rows[-2]
        with pytest.raises(DataError, match="not finished: 0;"):
            Vectors(tmp_path)
    assert len(rows) > 2
    found = Vectors(tmp_path)
    write(tmp_path / "undisturbed")
    whole = Vectors(tmp_path / "undisturbed")
    np.testing.assert_array_equal(all_of(found), all_of(whole))
    assert found.docs(np.arange(60)) == DOCS
    assert found.counts() == whole.counts()
    assert found.collection_digest() == whole.collection_digest()


def test_a_stop_publishes_the_encoded_buffers(
    tmp_path: Path, part_bytes: Callable[[int], None]
) -> None:
    part_bytes(1 << 20)
    fake = WordCounts()
    assert stopped(tmp_path, fake, 30)  # in the middle of a buffer
    rows = parts.covered_rows(parts.cover(parts.list_parts(tmp_path), WHOLE))
    assert rows == sum(fake.calls[:-1]) > 0


def test_a_stop_before_the_first_vector_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        write(tmp_path, stopping=lambda: True)
    assert parts.list_parts(tmp_path) == []


def test_a_duplicate_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'d3' occurs twice"):
        write(tmp_path, [*DOCS, DOCS[3]])
    assert parts.list_parts(tmp_path)
    with pytest.raises(DataError, match="'d3' occurs twice"):
        write(tmp_path, [*DOCS, DOCS[3]])


def test_progress_ends_at_the_number_of_tokens(tmp_path: Path) -> None:
    calls: list[tuple[int, int | None, str, str]] = []
    write(tmp_path, progress=lambda *call: calls.append(call))
    tokens = sum(len(doc.text.split()) for doc in DOCS)
    documents = [int(call[3].split()[0]) for call in calls]
    for done in ([call[0] for call in calls], documents):
        assert done == sorted(done)
    assert calls[-1] == (tokens, tokens, "tokens", f"{len(DOCS)} documents")


def test_empty_collections_and_empty_shards_are_complete(tmp_path: Path) -> None:
    write(tmp_path, [])
    empty = Vectors(tmp_path)
    assert (empty.rows, list(empty), empty.by_ids(["d1"])) == (0, [], [])
    assert empty.at(np.zeros(0, np.int64)).vectors.shape == (0, DIM)
    assert (empty.ids(np.zeros(0, np.int64)), empty.docs(np.zeros(0, np.int64))) == ([], [])
    assert empty.counts().docs == 0
    for number in range(3):
        write(tmp_path / "b", DOCS[:1] if number == 1 else [], shard=Shard(number, 3))
    assert Vectors(tmp_path / "b").docs(np.array([0])) == DOCS[:1]


def test_the_error_names_missing_shards(tmp_path: Path) -> None:
    write(tmp_path, DOCS[:20], shard=Shard(0, 3))
    with pytest.raises(DataError, match="not finished: 1, 2;"):
        Vectors(tmp_path)


def test_the_recorded_slices_of_an_index_are_opened(tmp_path: Path) -> None:
    write(tmp_path, DOCS[:20], shard=Shard(0, 3))
    frozen = parts.cover(parts.list_parts(tmp_path), Shard(0, 3))[:2]
    write(tmp_path, DOCS[20:40], shard=Shard(1, 3))
    found = Vectors(tmp_path, slices=frozen)
    assert found.rows == sum(piece.rows for piece in frozen)
    assert found.docs(np.arange(found.rows)) == DOCS[: found.rows]


def test_a_damaged_part_is_a_data_error(tmp_path: Path) -> None:
    write(tmp_path)
    found = Vectors(tmp_path)
    path = tmp_path / "parts" / str(found.slices[1].name) / "vectors.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match="delete this part"):
        found.at(np.arange(60))
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(found)
