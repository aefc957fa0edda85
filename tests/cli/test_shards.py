"""Shards on the command line: any number, a requeued task, refused inputs, and `lmk show`."""

import gzip
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.data.collection import Shard
from lmkcli.data.fields import Fields
from lmkcli.data.sources.file_collections import open_files
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.shard_run import run_encode
from lmkcli.provenance.description import completion, ranges
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import WHOLE
from lmkcli.store import part_writer, parts, tokens
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
DATA = 3
FP32 = ("--dtype", "fp32", "--store-dtype", "fp32")


@pytest.fixture
def encode(lmk: Lmk, tiny_model: Models) -> Callable[..., Any]:
    """`lmk encode SOURCE -o OUTPUT …` in fp32 with the tiny BERT."""

    def run(source: object, output: Path, *words: object, code: int = 0) -> Any:
        model = tiny_model("bert")
        return lmk("encode", source, "-m", model, "-o", output, *FP32, *words, code=code)

    return run


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch, part_bytes: Callable[[int], None]) -> None:
    """Write a part after every few documents."""
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 1000)
    part_bytes(1)


def gzipped(beir: Path, folder: Path) -> Path:
    path = folder / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress((beir / "corpus.jsonl").read_bytes()))
    return path


def same(one: Path, other: Path) -> None:
    """The same documents with the same vectors, in any order of the shards."""
    mine, theirs = Vectors(one), Vectors(other)
    assert mine.counts() == theirs.counts()
    assert mine.collection_digest() == theirs.collection_digest()
    rows = np.arange(theirs.rows)
    order = [mine.numbers()[name] for name in theirs.ids(rows)]
    np.testing.assert_allclose(
        mine.at(np.array(order)).vectors, theirs.at(rows).vectors, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("kind", "docs", "count"),
    [("folder", 60, 7), ("folder", 12, 19), ("gzip", 60, 3), ("tokens", 60, 7), ("tokens", 12, 19)],
)
def test_any_number_of_shards_is_the_whole(
    lmk: Lmk,
    encode: Callable[..., Any],
    tiny_model: Models,
    tmp_path: Path,
    kind: str,
    docs: int,
    count: int,
) -> None:
    """7 does not divide 60 documents, 19 is more than 12, and gzip files are distributed in blocks of
    1,000."""
    source = beir = tiny.collection(tmp_path / "beir", docs)
    if kind == "gzip":
        source = gzipped(beir, tmp_path)
    if kind == "tokens":
        source = tmp_path / "t"
        lmk("tokenize", beir, "-m", tiny_model("bert"), "-o", source)
    whole, shards = tmp_path / "whole", tmp_path / "shards"
    encode(source, whole)
    made = (encode(source, shards, "--shard", f"{i}/{count}", "--json") for i in range(count))
    sizes = [one.json["docs"] for one in made]
    assert sum(sizes) == docs
    assert (0 in sizes) == (count > docs or kind == "gzip")
    same(shards, whole)


@pytest.mark.usefixtures("small_parts")
def test_two_lives_of_one_task_make_one_shard(
    encode: Callable[..., Any],
    tiny_model: Models,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first process of the task still runs: while it writes, the second starts, overlaps it and
    finishes."""
    encode(beir, tmp_path / "whole")
    folder, first_publish = tmp_path / "v", part_writer.PartBuilder.publish
    digests = []

    def second_life() -> None:
        monkeypatch.setattr(
            tokens, "BATCH_CHARACTERS", 1700
        )  # other part borders than in the first process
        settings = EncodeSettings(dtype="fp32", store_dtype="fp32", batch_tokens=3)
        job = plan(str(beir), RecipeOptions(model=str(tiny_model("bert"))), settings, WHOLE)
        run_encode(job, folder)
        digests.append(Vectors(folder).digest())

    def publish(builder: part_writer.PartBuilder) -> int:
        stop = first_publish(builder)
        if len(parts.list_parts(folder)) == 2:
            monkeypatch.setattr(part_writer.PartBuilder, "publish", first_publish)
            second_life()
        return stop

    monkeypatch.setattr(part_writer.PartBuilder, "publish", publish)
    encode(beir, folder, "--batch-tokens", "2")
    names = parts.list_parts(folder)
    assert any(a.start < b.start < a.stop for a in names for b in names)  # the parts overlap
    same(folder, tmp_path / "whole")
    assert [Vectors(folder).digest()] == digests  # parts that arrive after the end change nothing


def test_a_source_that_changed_between_two_shards(
    encode: Callable[..., Any], beir: Path, tmp_path: Path
) -> None:
    source = tmp_path / "c.jsonl"
    source.write_bytes((beir / "corpus.jsonl").read_bytes())
    encode(source, tmp_path / "v", "--shard", "0/2")
    os.utime(source, ns=(1, 1))
    later = encode(source, tmp_path / "v", "--shard", "1/2", code=DATA)
    assert f"{source} has changed" in later.err
    assert parts.read_state(tmp_path / "v", 2).unfinished == [1]


def test_a_source_that_changes_while_it_is_read(
    encode: Callable[..., Any], beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "c.jsonl"
    source.write_bytes((beir / "corpus.jsonl").read_bytes())
    docs = open_files(str(source), {}).docs
    assert len(list(docs())) == 60
    read = Fields.doc

    def touch(fields: Fields, record: Any, where: str) -> Any:
        os.utime(source, ns=(1, 1))
        return read(fields, record, where)

    monkeypatch.setattr(Fields, "doc", touch)
    failed = encode(source, tmp_path / "v", code=DATA)
    assert "changed while lmk read it" in failed.err
    assert not (tmp_path / "v" / "done").exists()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_an_id_in_two_shards_is_named_by_whoever_finishes_last(
    lmk: Lmk, encode: Callable[..., Any], tmp_path: Path, order: tuple[int, ...]
) -> None:
    records = [{"_id": f"d{i}", "text": tiny.sentence(i, 9)} for i in range(30)]
    records[29]["_id"] = "d3"
    tiny.write_jsonl(tmp_path / "c.jsonl", records)
    *early, last = order
    for number in early:
        encode(tmp_path / "c.jsonl", tmp_path / "v", "--shard", f"{number}/3")
    for _ in range(2):  # also the second time
        failed = encode(tmp_path / "c.jsonl", tmp_path / "v", "--shard", f"{last}/3", code=DATA)
        assert "document id 'd3'" in failed.err
        assert re.search(r"c\.jsonl.{1,9}\b30\b.*c\.jsonl.{1,9}\b4\b", failed.err), failed.err
    assert parts.read_state(tmp_path / "v", 3).unfinished == [last]
    lmk("search", tmp_path / "v", "-q", "x", code=DATA)


def test_two_shards_that_finish_together_are_looked_at_all_the_same(
    encode: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"_id": "same", "text": tiny.sentence(i, 9)} for i in range(2)]
    tiny.write_jsonl(tmp_path / "c.jsonl", records)
    encode(tmp_path / "c.jsonl", tmp_path / "v", "--shard", "0/2")
    whole, calls = part_writer._others_done, []

    def not_yet(folder: Path, shard: Shard) -> bool:
        calls.append(shard)
        return len(calls) > 1 and whole(folder, shard)

    monkeypatch.setattr(part_writer, "_others_done", not_yet)
    failed = encode(tmp_path / "c.jsonl", tmp_path / "v", "--shard", "1/2", code=DATA)
    assert "'same' occurs twice" in failed.err
    assert parts.read_state(tmp_path / "v", 2).unfinished == [1]


# --- lmk show, and the use of incomplete folders ----------------------------------------------------


@pytest.fixture
def incomplete(
    encode: Callable[..., Any],
    small_parts: None,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Vectors with the shards 0, 2 and 3 of 6; shard 5 was stopped after its first part."""
    folder, publish = tmp_path / "v", part_writer.PartBuilder.publish
    for number in (0, 2, 3):
        encode(beir, folder, "--shard", f"{number}/6", "--batch-tokens", "2")

    def stop(builder: part_writer.PartBuilder) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return publish(builder)

    with monkeypatch.context() as patch:
        patch.setattr(part_writer.PartBuilder, "publish", stop)
        stopped = encode(beir, folder, "--shard", "5/6", "--batch-tokens", "2", code=75)
    assert "Run the same command again" in stopped.err
    return folder


def test_show_lists_missing_shards_and_the_command_to_finish(
    lmk: Lmk, encode: Callable[..., Any], incomplete: Path, beir: Path
) -> None:
    shown = lmk("show", incomplete, "--json").json
    assert shown["shards"] == "3 of 6 finished"
    left = shown["unfinished shards, documents done"]
    assert (left["1"], left["4"]) == (0, 0)
    assert left.keys() == {"1", "4", "5"}
    assert 0 < left["5"] < 10
    line = shown["finish with"]
    assert line.startswith("sbatch --array=1,4-5 job.sh  # in it: lmk encode ")
    assert line.endswith("--shard $SLURM_ARRAY_TASK_ID/6")
    assert line.count("--shard") == 1
    assert f"  5: {left['5']}" in lmk("show", incomplete).out
    words = line.partition("lmk encode ")[2]
    for number in (1, 4, 5):  # the printed command finishes the folder
        lmk("encode", *words.replace("$SLURM_ARRAY_TASK_ID", str(number)).split())
    whole = lmk("show", incomplete, "--json").json
    assert whole["shards"] == "6 of 6 finished"
    assert "finish with" not in whole
    encode(beir, incomplete.with_name("w"))
    same(incomplete, incomplete.with_name("w"))


def test_a_job_without_shards_is_finished_by_its_own_command() -> None:
    words = ["/some/where/lmk", "encode", "a file.jsonl", "-m", "x", "-o", "v"]
    assert completion(words, [0], 1) == "lmk encode 'a file.jsonl' -m x -o v"
    equals = completion([*words, "--shard=2/4"], [1, 3], 4)
    assert equals == (
        "sbatch --array=1,3 job.sh  # in it: lmk encode 'a file.jsonl' -m x -o v "
        "--shard $SLURM_ARRAY_TASK_ID/4"
    )
    for again in (["--if-exists", "overwrite"], ["--if-exists=fail"]):  # these would not continue
        assert completion([*words, *again, "--shard", "2/4"], [1, 3], 4) == equals
        assert completion([*words, *again], [0], 1) == completion(words, [0], 1)
    update = completion([*words, "--if-exists=update"], [0], 1)
    assert update == "lmk encode 'a file.jsonl' -m x -o v --if-exists update"


def test_from_another_directory_the_command_starts_with_that_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths in a command are relative to the directory in which it was typed."""
    words = ["lmk", "encode", "c.jsonl", "-m", "x", "-o", "v"]
    place = tmp_path / "my work"
    assert completion(words, [0], 1, str(place)) == f"cd '{place}' && lmk encode c.jsonl -m x -o v"
    assert f"# in it: cd '{place}' && lmk" in completion(words, [1], 4, str(place))
    place.mkdir()
    monkeypatch.chdir(place)
    assert completion(words, [0], 1, str(place)) == "lmk encode c.jsonl -m x -o v"


def test_one_shard_does_not_overwrite_the_others(
    lmk: Lmk, encode: Callable[..., Any], tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    encode(beir, tmp_path / "v", "--shard", "0/2")
    again = ("--if-exists", "overwrite", "--shard", "1/2")
    for folder in (tmp_path / "v", tmp_path / "new"):
        assert "other shards" in encode(beir, folder, *again, code=2).err
    words = ("tokenize", beir, "-m", tiny_model("bert"), "-o", tmp_path / "t")
    assert "other shards" in lmk(*words, *again, code=2).err
    assert lmk("show", tmp_path / "v", "--json").json["shards"] == "1 of 2 finished"
    assert not (tmp_path / "new").exists()


def test_ranges_are_written_as_sbatch_reads_them() -> None:
    assert ranges([8, 2, 5, 7, 9]) == "2,5,7-9"
    assert ranges([0, 1]) == "0-1"
    assert ranges([4]) == "4"


def test_incomplete_vectors_are_indexed_only_with_a_flag(
    lmk: Lmk, incomplete: Path, beir: Path
) -> None:
    graph = incomplete.with_name("i")
    for words in (["index", incomplete, "-o", graph], ["search", incomplete, "-q", "x"]):
        refused = lmk(*words, code=DATA)
        assert "not finished: 1, 4, 5;" in refused.err
        assert f"lmk show {incomplete}" in refused.err
    built = lmk("index", incomplete, "-o", graph, "--allow-incomplete", "--json")
    assert "shards 1, 4, 5" in built.err
    assert 30 < built.json["rows"] < 40
    assert lmk("show", graph, "--json").json["unfinished shards"] == [1, 4, 5]
    found = lmk("search", graph, "-q", "copper", "-k", 100, "--json")
    assert len(found.json) == built.json["rows"]
    assert "shards 1, 4, 5" in found.err
    lexical = ["index", beir, "--kind", "bm25", "-o", incomplete.with_name("b")]
    lmk(*lexical, "--allow-incomplete", code=2)


# --- searching and indexing in shards ----------------------------------------------------------------


def test_slices_of_a_search_join_to_the_run_of_one_process(
    lmk: Lmk, encode: Callable[..., Any], beir: Path, tmp_path: Path
) -> None:
    vectors, whole, run = tmp_path / "v", tmp_path / "whole.trec", tmp_path / "run.trec"
    encode(beir, vectors)
    words = ("search", vectors, beir, "-k", 20, "-o")
    lmk(*words, whole)
    assert re.search(r"shard 2/3 .*\b2 other", lmk(*words, run, "--shard", "2/3").out)
    for more in ((), ("--if-exists", "overwrite")):
        refused = lmk(*words, run, *more, code=DATA)
        assert "not finished: 0, 1;" in refused.err
        run.write_bytes(whole.read_bytes())  # an older run is kept until the new one exists
        run.with_name("run.trec.json").write_bytes(whole.with_name("whole.trec.json").read_bytes())
    run.unlink()
    shown = lmk("show", tmp_path / "run.trec.shards", "--json").json
    assert shown["shards"] == "1 of 3 finished"
    assert "--array=0-1" in shown["finish with"]
    for number in (1, 0, 1):
        last = lmk(*words, run, "--shard", f"{number}/3")
    assert "all shards are finished" in last.out
    lmk(*words, run)
    assert run.read_text() == whole.read_text()
    assert not (tmp_path / "run.trec.shards").exists()
    again = lmk(*words, run, "--shard", "1/3")  # a requeued task runs after the join
    assert "is up to date" in again.err
    assert not (tmp_path / "run.trec.shards").exists()


def test_unshardable_searches_are_refused(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "b")
    search = ("search", tmp_path / "b")
    shard = ("--shard", "0/2")
    assert "is searched whole" in lmk(*search, beir, *shard, "-o", tmp_path / "r", code=2).err
    assert "--shard belong to" in lmk(*search, "-q", "x", *shard, code=2).err
    assert "--shard needs an output file" in lmk(*search, beir, *shard, "-o", "-", code=2).err
    fused = (*search, beir, *shard, "-o", tmp_path / "r", "--rerank", tmp_path / "v")
    assert "--rerank" in lmk(*fused, code=2).err
    over = (*search, beir, *shard, "-o", tmp_path / "r", "--if-exists", "overwrite")
    assert "the work of other shards" in lmk(*over, code=2).err
    assert not (tmp_path / "r.shards").exists()


def test_shards_of_an_index_join_to_an_index(
    lmk: Lmk, encode: Callable[..., Any], beir: Path, tmp_path: Path
) -> None:
    vectors, index = tmp_path / "v", tmp_path / "i"
    encode(beir, vectors)
    words = ("index", vectors, "--kind", "ivf", "-o", index)
    assert re.search(r"shard 1/2 .*\b1 other", lmk(*words, "--shard", "1/2").out)
    assert "not finished: 0;" in lmk(*words, code=DATA).err
    assert lmk("show", f"{index}.shards", "--json").json["shards"] == "1 of 2 finished"
    assert lmk(*words, "--shard", "0/2", "--json").json["unfinished"] == []
    assert lmk(*words, "--json").json["rows"] == 60
    assert not Path(f"{index}.shards").exists()
    assert "is already built" in lmk(*words, "--shard", "0/2").err
    found = lmk("search", index, "-q", "copper", "-k", 60, "--json")
    assert len(found.json) == 60
    assert found.out.lstrip().startswith("[")  # FAISS itself prints nothing
    for more in (["--if-exists", "update"], ["--if-exists", "overwrite"], ["--kind", "hnsw"]):
        lmk(*words[:2], *more, "-o", tmp_path / "j", "--shard", "0/2", code=2)
    apart = (*words[:4], "-o", tmp_path / "j", "--apart")
    assert "build each with --shard" in lmk(*apart, code=2).err
    assert "give it without --shard" in lmk(*apart, "--shard", "0/1", code=2).err
    lmk(*apart[:-1], "--shard", "0/1")
    assert lmk(*apart, "--json").json["rows"] == 60
    assert lmk(*apart, "--json").json["rows"] == 60  # the same command again
    assert lmk("search", tmp_path / "j", "-q", "copper", "-k", 60, "--json").out == found.out
    lmk("verify", tmp_path / "j")
    lmk(*apart[:-1], "--if-exists", "overwrite")
    assert not (tmp_path / "j" / "faiss-00000.index").exists()
    lexical = ("index", beir, "--kind", "bm25", "-o", tmp_path / "k")
    assert "--shard has no effect" in lmk(*lexical, "--shard", "0/2", code=2).err
    assert not (tmp_path / "k.shards").exists()
