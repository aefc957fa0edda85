"""`lmk encode --workers`: other processes read and tokenize, and nothing else changes."""

import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.data.collection import Collection, open_collection
from lmkcli.encoding import token_stream
from lmkcli.vectors.stored import Vectors
from tests.conftest import Lmk

Models = Callable[[str], Path]
WORDS = ("--gran", 8, "--dtype", "fp32", "--batch-tokens", 512, "--device", "cpu")
COUNT = 900


@pytest.fixture
def corpus(tmp_path: Path, part_bytes: Callable[[int], None]) -> Path:
    """Documents that make several blocks and parts; the last line is none."""
    part_bytes(1_000_000)
    path = tmp_path / "corpus.jsonl"
    words = "wing flow plate shock layer".split()
    texts = (
        " ".join(words[(i * j) % 5] for j in range(160 + 112 * (i % 11))) for i in range(COUNT)
    )
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    path.write_text("\n".join([*lines, '{"_id": "broken"']) + "\n")
    return path


def stored(folder: Path) -> tuple[list[str], Any, Any]:
    vectors = Vectors(folder)
    rows = np.arange(vectors.rows)
    return vectors.ids(rows), vectors.at(rows).vectors, vectors.counts()


@pytest.mark.parametrize("kind", ["docs", "chunks", "tokens"])
def test_the_vectors_counts_and_messages_are_the_same(
    lmk: Lmk, tiny_model: Models, corpus: Path, tmp_path: Path, kind: str
) -> None:
    model = tiny_model("bert")
    source: object = f"{corpus},unreadable=skip"
    unit = ("--unit", "chunk" if kind == "chunks" else "doc")
    if kind == "tokens":
        lmk("tokenize", source, "-m", model, "-o", tmp_path / "tokens")
        source = tmp_path / "tokens"
    folders, done = [tmp_path / "alone", tmp_path / "together"], []
    for folder, workers in zip(folders, (0, 2), strict=True):
        given = (*WORDS, "--pool", "lmk", *unit, "--workers", workers, "-o", folder)
        done.append(lmk("encode", source, "-m", model, *given))
    (ids, vectors, counts), (other_ids, others, other_counts) = map(stored, folders)
    assert len(ids) == COUNT
    assert ids == other_ids
    np.testing.assert_array_equal(vectors, others)
    assert counts == other_counts
    if kind != "tokens":
        assert all(f"line {COUNT + 1}: not valid JSON" in each.err for each in done)
        assert done[0].out.replace("alone", "together") == done[1].out


@pytest.mark.parametrize("depth", ["the reader", "a tokenizing process"])
def test_a_killed_process_loses_nothing(
    lmk: Lmk,
    tiny_model: Models,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    depth: str,
) -> None:
    def words(folder: Path) -> tuple[object, ...]:
        given = (*WORDS, "--pool", "lmk", "--workers", 2, "-o", folder)
        return ("encode", f"{corpus},unreadable=skip", "-m", tiny_model("bert"), *given)

    whole = token_stream.in_process

    def one_is_killed(start: Any) -> Iterator[Any]:
        for number, result in enumerate(whole(start)):
            if number == 0:  # the next block does not fit into the pipe, so others are not read yet
                (reader,) = children(os.getpid())
                tokenizing = children(reader)
                assert len(tokenizing) == 2
                os.kill(reader if depth == "the reader" else tokenizing[0], signal.SIGKILL)
            yield result

    with monkeypatch.context() as patched:
        patched.setattr(token_stream, "in_process", one_is_killed)
        done = lmk(*words(tmp_path / "v"), code=75)
    assert "signal 9" in done.err
    assert "Run the same command again" in done.err
    lmk(*words(tmp_path / "v"))
    lmk(*words(tmp_path / "undisturbed"))
    ids, vectors, _ = stored(tmp_path / "v")
    other_ids, others, _ = stored(tmp_path / "undisturbed")
    assert ids == other_ids
    np.testing.assert_allclose(vectors, others, atol=1e-6)


def test_a_copy_of_a_source_reads_the_same(beir: Path, tmp_path: Path) -> None:
    (tmp_path / "docs/inner").mkdir(parents=True)
    (tmp_path / "rows").mkdir()
    (tmp_path / "docs/a.md").write_text("# Wings\n\nLift and drag.")
    (tmp_path / "docs/inner/b.csv").write_text('id,text\n1,"a ""quoted""\nline"\n2,flow\n')
    (tmp_path / "docs/c.json").write_text("{")
    pq.write_table(
        pa.table({"id": ["x", "y"], "text": ["one", "two"]}), tmp_path / "rows/t.parquet"
    )
    moved = 0
    for name in (beir, f"{beir},subset=5", tmp_path / "rows/t.parquet", tmp_path / "docs", "stdlib/functions",
                 "cranfield", f"hf:{tmp_path}/rows"):  # fmt: skip
        source = open_collection(name)
        if not source.can_move():
            continue
        moved += 1
        if name == "cranfield":  # has to be downloaded
            assert pickle.loads(pickle.dumps(source)).name == source.name
            continue
        copy = pickle.loads(pickle.dumps(source))
        docs = list(copy.docs())
        assert docs
        vars(source).update(vars(pickle.loads(pickle.dumps(copy))))
        assert source.skipped_files() == copy.skipped_files()
        assert source.skipped_count() == copy.skipped_count()
        assert list(source.docs()) == docs == list(open_collection(name).docs())
    assert moved == 6


@pytest.mark.parametrize("kind", ["tokens", "titles", "empty"])
def test_blocks_of_documents_without_texts_are_bounded(
    lmk: Lmk, tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A tokens folder may have no texts, and a document only a title, or nothing."""
    monkeypatch.setattr(token_stream, "MOVED_CHARACTERS", 20_000)
    monkeypatch.setattr(token_stream.tokens, "BATCH_CHARACTERS", 500)
    words = {"tokens": {"text": "wing flow " * 9}, "titles": {"title": "wing " * 9}, "empty": {}}
    rows = [{"_id": f"d{i}", "text": ""} | words[kind] for i in range(COUNT)]
    path = tmp_path / "docs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    source: Any = open_collection(path)
    if kind == "tokens":
        folder = tmp_path / "tokens"
        lmk("tokenize", path, "-m", tiny_model("bert"), "--no-store-text", "-o", folder)
        source = token_stream.Tokens(folder)
    reading = token_stream._Reading(source, tokens_of, token_stream.Shard(0, 1), 0, 0)
    steps = [step for step in reading.moved() if isinstance(step, token_stream._Step)]
    assert sum(len(step.block) for step in steps) == COUNT
    assert max(len(step.block) for step in steps) < COUNT / 2


def test_a_source_that_cannot_move_is_read_here(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(9)]
    held = open_collection(iter(texts))
    assert not held.can_move()

    class Connected(Collection):
        name, settings = "connected", {}
        queries = qrels = None  # type: ignore[assignment]

        def __init__(self) -> None:
            self.connection = open(tmp_path / "x", "w")  # noqa: SIM115

        def can_move(self) -> bool:
            return True

        def docs(self, shard: Any = None) -> Any:
            return held.docs()

    stream = token_stream.token_stream(Connected(), tokens_of, token_stream.Shard(0, 1), 0, 1)
    assert [doc.doc.text for batch in stream.batches for doc in batch] == texts


@pytest.mark.parametrize("name", ["/dev/fd/{}", "{}/link.jsonl"])
def test_an_open_file_of_this_process_is_read_here(corpus: Path, tmp_path: Path, name: str) -> None:
    """Another process has other files under the same numbers; its standard input is a pipe of lmk."""
    with open(corpus) as file:
        path = name.format(file.fileno() if "fd" in name else tmp_path)
        (tmp_path / "link.jsonl").symlink_to(f"/dev/fd/{file.fileno()}")
        source = open_collection(f"{path},format=jsonl,unreadable=skip")
        assert source.file_stats()
        assert not source.can_move()
        assert len(list(source.docs())) == COUNT


def tokens_of(texts: list[str]) -> list[token_stream.TextTokens]:
    none = np.zeros(0, np.int32)
    return [token_stream.TextTokens(none, none.reshape(0, 2), none, None) for _ in texts]


def children(process: int) -> list[int]:
    return [
        int(name)
        for task in Path(f"/proc/{process}/task").iterdir()
        for name in (task / "children").read_text().split()
        if b"lmkcli.system.workers" in Path(f"/proc/{name}/cmdline").read_bytes()
    ]


def test_a_negative_number_is_refused(lmk: Lmk, tmp_path: Path) -> None:
    done = lmk("encode", "x", "-m", "m", "--workers", -1, "-o", tmp_path / "v", code=2)
    assert "--workers" in done.err
