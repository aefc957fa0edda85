"""SIGKILL at any moment: nothing incomplete passes for complete, and the same command finishes the job.

A server process imports everything once and forks a child for each command line, so that a round
takes the time of the work alone. Parts are made small, so that there are many boundaries to be killed at.
"""

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lmkcli import manifest
from lmkcli.data.collection import Shard
from lmkcli.data.run import read_run
from lmkcli.errors import DataError
from lmkcli.models.finding import read_model
from lmkcli.models.folder import TRAINED
from lmkcli.retrieval.index_folder import BUILT, read_built
from lmkcli.retrieval.opening import open_index
from lmkcli.settings import OpenSettings
from lmkcli.store import parts, summary
from lmkcli.store.doctable import DocTable
from lmkcli.store.tokens import Tokens
from lmkcli.store.vectors import Vectors
from lmkcli.training import checkpoints
from tests import forked, tiny

DOCS = 600
PRELOAD = [  # what a command imports when it needs it, imported once by the server instead
    *(
        "tests.forked",
        "lmkcli.encoding.jobs",
        "lmkcli.retrieval.building",
        "lmkcli.retrieval.searching",
        "lmkcli.retrieval.pipeline",
        "lmkcli.training.planning",
    ),
    *(
        "lmkcli.retrieval.indexes.ann",
        "lmkcli.models.transformer",
        "lmkcli.data.sources.files",
        "lmkcli.pooling.landmark",
    ),
    *(
        "pytest",
        "transformers.models.bert.modeling_bert",
        "transformers.models.bert.tokenization_bert",
    ),
]


class Step(NamedTuple):
    """A command line without its output, and what makes two outputs the same."""

    words: list[str]
    same: Callable[[Path, Path], None]
    whole: Callable[[Path], bool]


class Machine:
    """Runs command lines in children; `errors` holds what they printed."""

    def __init__(self, context: ForkServerContext, errors: Path) -> None:
        self.context, self.errors = context, errors

    def start(self, step: Step, output: Path) -> ForkServerProcess:
        words = [*step.words, "-o", str(output)]
        child = self.context.Process(target=forked.lmk, args=(words, str(self.errors)))
        child.start()
        return child

    def run(self, step: Step, output: Path) -> float:
        """To the end; returns the seconds it took."""
        begin = time.monotonic()
        child = self.start(step, output)
        child.join(120)
        assert child.exitcode == 0, self.errors.read_text()
        return time.monotonic() - begin

    def stop(self, step: Step, output: Path, after: float, number: int) -> int:
        """Send a signal `after` seconds; returns the exit code (negative: died of that signal)."""
        child = self.start(step, output)
        child.join(after)
        if child.exitcode is None:
            os.kill(int(child.pid or 0), number)
        child.join(60)
        assert child.exitcode is not None, "still running a minute after the signal"
        return child.exitcode


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOAD)
    return made


@pytest.fixture
def machine(context: ForkServerContext, tmp_path: Path) -> Machine:
    return Machine(context, tmp_path / "errors.txt")


class Made(NamedTuple):
    """The collection, and the artifacts of undisturbed runs."""

    folder: Path
    steps: dict[str, Step]
    seconds: dict[str, float]


@pytest.fixture(scope="module")
def made(
    context: ForkServerContext,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[[str], Path],
) -> Made:
    return make(context, tmp_path_factory.mktemp("many"), tiny_model("bert"), DOCS)


@pytest.fixture(scope="module")
def few(
    context: ForkServerContext,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[[str], Path],
) -> Made:
    """Few enough documents to make two or three parts."""
    return make(context, tmp_path_factory.mktemp("few"), tiny_model("bert"), 60)


def make(context: ForkServerContext, folder: Path, bert: Path, docs: int) -> Made:
    beir = str(tiny.collection(folder / "beir", docs, docs // 10))
    model = ["-m", str(bert)]
    small = ["--pool", "lmk", "--gran", "8", "--batch-tokens", "128"]
    small += ["--dtype", "fp32", "--store-dtype", "fp32"]
    vectors = str(folder / "encode")
    steps = {
        "tokenize": Step(["tokenize", beir, *model], same_tokens, whole_parts),
        "encode": Step(["encode", beir, *model, *small], same_vectors, whole_parts),
        "index": Step(["index", vectors, "--ef-construction", "400"], same_index, whole_index),
        "search": Step(["search", vectors, beir, "-k", "50"], same_run, whole_run),
    }
    machine = Machine(context, folder / "errors.txt")
    for name, step in steps.items():
        machine.run(step, folder / name)  # the first time, the server itself still imports
    seconds = {name: machine.run(step, folder / f"{name}-again") for name, step in steps.items()}
    return Made(folder, steps, seconds)


# --- what is whole, and what is the same ----------------------------------------------------------


WHOLE = Shard()


def whole_parts(folder: Path) -> bool:
    """Whether tokens or vectors are complete; every part that is there is whole either way."""
    names = parts.list_parts(folder)
    if not (folder / manifest.NAME).exists():
        assert not names  # the manifest comes first
        return False
    slices = parts.cover(names, WHOLE)
    for piece in slices:
        assert summary.part_summary(folder, piece.name)["docs"] == piece.rows
        assert DocTable(folder / "parts" / str(piece.name) / "docs.parquet").rows == piece.rows
    if parts.done_rows(folder, WHOLE) is None:
        refused(folder)
        return False
    assert parts.covered_rows(slices) == parts.done_rows(folder, WHOLE)
    return True


def refused(folder: Path) -> None:
    """What is incomplete is refused by every reader."""
    if manifest.read(folder).kind == "tokens":
        assert Tokens(folder).state.unfinished == [0]
    else:
        with pytest.raises(DataError, match="not complete"):
            Vectors(folder)


def whole_index(folder: Path) -> bool:
    if not (folder / manifest.NAME).exists():
        assert not folder.exists() or not (folder / BUILT).exists()
        return False
    if not read_built(folder):
        with pytest.raises(DataError, match="not complete"):
            open_index(folder, OpenSettings())
        return False
    return len(open_index(folder, OpenSettings()).texts(["d001"])) == 1


def whole_run(path: Path) -> bool:
    """A run is there with all its lines or not at all."""
    if not path.exists():
        return False
    assert {len(ranking.doc_ids) for ranking in read_run(path).rankings.values()} == {50}
    return True


def same_tokens(one: Path, other: Path) -> None:
    count = Tokens(other).docs
    rows = ([r for batch in Tokens(path).rows(0, count) for r in batch] for path in (one, other))
    for mine, theirs in zip(*rows, strict=True):
        assert mine.doc == theirs.doc
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        np.testing.assert_array_equal(mine.spans, theirs.spans)
    assert Tokens(one).counts() == Tokens(other).counts()


def same_vectors(one: Path, other: Path) -> None:
    mine, theirs = Vectors(one), Vectors(other)
    rows = np.arange(theirs.rows)
    assert mine.docs(rows) == theirs.docs(rows)
    assert mine.counts() == theirs.counts()
    assert mine.collection_digest() == theirs.collection_digest()
    np.testing.assert_allclose(mine.at(rows).vectors, theirs.at(rows).vectors, rtol=0, atol=1e-6)


def same_index(one: Path, other: Path) -> None:
    assert (one / "faiss.index").stat().st_size == (other / "faiss.index").stat().st_size
    assert read_built(one)["digest"] == read_built(other)["digest"]
    assert {path.name for path in other.iterdir()} <= {path.name for path in one.iterdir()}


def same_run(one: Path, other: Path) -> None:
    assert one.read_text() == other.read_text()


def whole_model(folder: Path) -> bool:
    """A model is there with all its files, or its folder is refused."""
    if not (folder / TRAINED).exists():
        with pytest.raises(DataError):
            read_model(str(folder))
        return False
    return read_model(str(folder)).pool == "mean"


def same_model(one: Path, other: Path) -> None:
    mine, theirs = (load_file(path / "model.safetensors") for path in (one, other))
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=0, atol=1e-6)


def whole_export(folder: Path) -> bool:
    """An export is there with all its files or not at all."""
    if not folder.exists():
        return False
    files = manifest.read(folder, "export").facts["files"]
    assert {path.name for path in folder.iterdir()} == {*files, manifest.NAME}
    return True


def same_files(one: Path, other: Path) -> None:
    """The same names and bytes in both, but for what says when and where they were made."""
    mine, theirs = (
        {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        for folder in (one, other)
    )
    assert theirs.keys() <= mine.keys()  # a kill may leave what was being written
    for name, path in theirs.items():
        assert name.name in (manifest.NAME, BUILT) or mine[name].read_bytes() == path.read_bytes()


# --- the tests ------------------------------------------------------------------------------------


def rounds(made: Made, machine: Machine, name: str, output: Path, count: int) -> None:
    """Kill `count` times at random moments, each time continuing with what is there; then finish."""
    step = made.steps[name]
    moments = random.Random(name)
    killed, seconds = 0, made.seconds[name]
    for _ in range(count):
        begun = time.perf_counter()
        code = machine.stop(step, output, moments.uniform(0, 1.1 * seconds), signal.SIGKILL)
        assert code in (0, -signal.SIGKILL), machine.errors.read_text()
        killed += code != 0
        if code == 0:  # the machine was slower when the seconds were taken
            seconds = min(seconds, time.perf_counter() - begun)
        if step.whole(output):
            step.same(output, made.folder / name)
            output = output.with_name(f"{output.name}-")  # it finished first: start another
    machine.run(step, output)
    assert killed
    assert step.whole(output)
    step.same(output, made.folder / name)


@pytest.mark.parametrize("name", ["tokenize", "encode", "index", "search"])
def test_the_same_command_completes_what_was_killed(
    made: Made, machine: Machine, tmp_path: Path, name: str
) -> None:
    rounds(made, machine, name, tmp_path / name, 5)


def last_moment(machine: Machine, step: Step, few: Path, fresh: Callable[[int], Path]) -> int:
    """Kill before each change of a name on disk in turn, and complete; how many changes there are.

    `fresh` makes an output for each moment to begin with.
    """
    for moment in range(1000):
        output = fresh(moment)
        words = [*step.words, "-o", str(output)]
        target = (words, str(machine.errors), moment)
        child = machine.context.Process(target=forked.lmk_dying, args=target)
        child.start()
        child.join(60)
        if child.exitcode == 0:
            return moment
        assert child.exitcode == -signal.SIGKILL, machine.errors.read_text()
        if step.whole(output):
            step.same(output, few)
        machine.run(step, output)
        assert step.whole(output)
        step.same(output, few)
    raise AssertionError("it never came to an end")


SLOW = pytest.mark.slow  # half a minute each on a busy machine


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=SLOW) for name in ("tokenize", "encode", "search")), "index"],
)
def test_no_moment_between_two_names_is_fatal(
    few: Made, machine: Machine, tmp_path: Path, name: str
) -> None:
    step, there = few.steps[name], few.folder / name
    assert last_moment(machine, step, there, lambda i: tmp_path / f"{name}-{i}") > 1


@pytest.mark.parametrize(
    "name", [pytest.param("tokenize", marks=SLOW), "index", pytest.param("search", marks=SLOW)]
)
def test_no_moment_of_an_overwriting_is_fatal(
    few: Made, machine: Machine, tmp_path: Path, name: str
) -> None:
    step, there = few.steps[name], few.folder / name
    step = step._replace(words=[*step.words, "--if-exists", "overwrite"])

    (tmp_path / "encode").symlink_to(few.folder / "encode")  # an index expects it beside itself

    def full(moment: int) -> Path:
        copy = tmp_path / f"{name}-{moment}"
        if there.is_dir():
            shutil.copytree(there, copy)
        else:
            shutil.copy(there, copy)
            shutil.copy(f"{there}.json", f"{copy}.json")
        return copy

    assert last_moment(machine, step, there, full) > 4


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["import", "export", "index"])
def test_no_moment_of_what_needs_no_model_is_fatal(
    machine: Machine, tmp_path: Path, verb: str
) -> None:
    beir = str(tiny.collection(tmp_path / "beir", 20, 4))
    matrix, ids, vectors = (tmp_path / name for name in ("matrix.npy", "ids.txt", "vectors"))
    np.save(matrix, np.random.default_rng(0).normal(size=(60, 300)).astype(np.float32))
    ids.write_text("".join(f"d{number}\n" for number in range(60)))
    importing = ["import", str(matrix), "--from", "numpy", "--ids", str(ids)]
    steps = {
        "import": Step(importing, same_vectors, whole_parts),
        "export": Step(["export", str(vectors), "--to", "numpy"], same_files, whole_export),
        "index": Step(["index", beir, "--kind", "bm25"], same_files, whole_index),
    }
    if verb == "export":
        machine.run(steps["import"], vectors)
    machine.run(steps[verb], tmp_path / "there")
    fresh = [tmp_path / f"{verb}-{moment}" for moment in range(1000)]
    assert last_moment(machine, steps[verb], tmp_path / "there", fresh.__getitem__) > 1


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--if-exists", "overwrite"]])
def test_no_moment_of_a_training_is_fatal(
    machine: Machine, tmp_path: Path, tiny_model: Callable[[str], Path], more: list[str]
) -> None:
    examples, there = tmp_path / "pairs.tsv", tmp_path / "trained"
    pairs = ((tiny.sentence(i, 4), tiny.sentence(i, 9)) for i in range(8))
    examples.write_text("".join(f"{query}\t{passage}\n" for query, passage in pairs))
    words = ["train", str(examples), "-m", str(tiny_model("bert")), "--pool", "mean"]
    words += ["--steps", "3", "--save-every", "1", "--batch-size", "2", "--dtype", "fp32"]
    step = Step(words, same_model, whole_model)
    machine.run(step, there)

    def output(moment: int) -> Path:
        made = tmp_path / f"trained-{moment}"
        if more:
            shutil.copytree(there, made)
        return made

    step = step._replace(words=[*words, *more])
    assert last_moment(machine, step, there, output) > 10
    assert not list(tmp_path.glob(f"trained-*/{checkpoints.FOLDER}/checkpoint-*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenize", "encode", "index", "search"])
def test_the_same_command_completes_what_was_killed_often(
    made: Made, machine: Machine, tmp_path: Path, name: str
) -> None:
    rounds(made, machine, name, tmp_path / name, 25)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("tokenize", signal.SIGTERM),
        ("encode", signal.SIGTERM),
        ("encode", signal.SIGINT),
    ],
)
def test_a_signal_stops_with_75_and_the_same_command_goes_on(
    made: Made, machine: Machine, tmp_path: Path, name: str, number: int
) -> None:
    step, output = made.steps[name], tmp_path / name
    child = machine.start(step, output)
    deadline = time.monotonic() + 60
    while not parts.list_parts(output):  # well under way
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(int(child.pid or 0), number)
    there = len(parts.list_parts(output))
    child.join(60)
    assert child.exitcode == 75, machine.errors.read_text()
    assert "Run the same command again" in machine.errors.read_text()
    assert not list((output / "parts").glob(".growing*"))
    kept = parts.list_parts(output)
    assert 0 < len(kept) <= there + 2  # the current part, and one that had begun to be published
    assert not step.whole(output)
    machine.run(step, output)
    assert set(kept) <= set(parts.list_parts(output))
    step.same(output, made.folder / name)
