"""Hostile files of every reader of JSON and TOML: refused fast, with exit code 2 or 3, and never a bug.

Structures are drawn by hypothesis from the files that the commands read; the seed is that of the run.
"""

import contextlib
import copy
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.artifact import manifest
from lmkcli.cli import main
from lmkcli.errors import DataError
from lmkcli.models.model_files import read_json as model_json
from lmkcli.plugins.analysis import traininglog
from lmkcli.plugins.grid import plan
from lmkcli.provenance import scorelog
from lmkcli.retrieval.searching import read_manifest
from tests import tiny

RUN = "q0 Q0 d000 1 2.0 t\nq1 Q0 d001 1 1.0 t\n"


def lmk(*words: object) -> tuple[int, str]:
    """The exit code and the messages of one command line."""
    err = io.StringIO()
    with (
        contextlib.redirect_stderr(err),
        contextlib.redirect_stdout(io.StringIO()),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("sys.argv", ["lmk", *map(str, words)])
        try:
            main.main()
        except SystemExit as exit_:
            return int(exit_.code or 0), err.getvalue()
    return 0, err.getvalue()


# --- keys that come twice ---------------------------------------------------------------------------


def twice(count: int) -> str:
    """An object of many keys, the last one twice."""
    return "{" + ",".join(f'"k{n}": 1' for n in range(count)) + f', "k{count - 1}": 2}}'


def read_collection(path: Path) -> None:
    from lmkcli.data.records import open_records

    list(open_records(str(path)))


READERS: dict[str, Callable[[Path], Any]] = {
    "docs.jsonl": read_collection,
    "config.json": lambda path: model_json(path),
    "manifest.json": lambda path: manifest.read(path.parent),
    "run.trec.json": lambda path: read_manifest(path.with_suffix("")),
    "scores.jsonl": scorelog.read,
    "log.jsonl": lambda path: traininglog.panels(path.parent),
    "plan.json": lambda path: plan.read(path.parent),
}


@pytest.mark.parametrize("name", READERS)
def test_a_key_that_comes_twice_is_found_in_linear_time(tmp_path: Path, name: str) -> None:
    def seconds(count: int) -> float:
        (tmp_path / name).write_text(twice(count) + "\n")
        started = time.process_time()
        with pytest.raises(DataError, match=f"'k{count - 1}' .*twice"):
            READERS[name](tmp_path / name)
        return time.process_time() - started

    few = seconds(15_000)
    assert seconds(60_000) < 16 * max(few, 0.05)  # 4 for a linear time, 16 for a quadratic one


# --- fuzzing ----------------------------------------------------------------------------------------

ODD = st.sampled_from(
    [
        None, True, 0, -1, 10**30, 10**400, 1.5, float("inf"), float("nan"), "", "x", "\0", "a\nb", "\x1b[2J",
        "../..", "/dev/zero", "9" * 5000, "\ud800", [], {}, [[]], {"a": {"a": 1}}, "٣", "-", "--help",
    ]
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value in nested dictionaries and lists."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(pairs):
        yield (*at, key)
        yield from places(inner, (*at, key))


@st.composite
def changed(draw: st.DrawFn, good: dict[str, Any]) -> dict[str, Any]:
    """A structure with one to three values that are odd, gone, or under another name."""
    made = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(made))
        if not found:
            break
        *above, last = draw(st.sampled_from(found))
        inside: Any = made
        for key in above:
            inside = inside[key]
        how = draw(st.sampled_from(["odd", "odd", "odd", "gone", "named"]))
        if how == "odd":
            inside[last] = copy.deepcopy(draw(ODD))  # the next change may be inside of it
        else:
            value = inside.pop(last)
            if how == "named" and isinstance(inside, dict):
                inside[draw(st.sampled_from(["", "a.b", "é", "a\nb", "\0", "k"]))] = value
    return made


FACTS = {
    "lmk": "0.1", "python": "3.11", "packages": {"numpy": "2"}, "machine": {"cpu": "x", "cores": 2},
    "command": ["lmk", "search", "bm25", "./beir"], "directory": ".", "index": "bm25", "collection": "beir",
    "operation": {"operation": "search", "version": 1, "index": "bm25", "queries": "./beir", "k": 3},
}  # fmt: skip
SIDE = {
    "kind": "run", "format": 1,
    "identity": {"index": "x", "search": {"kind": "bm25"}, "queries": "x", "k": 3},
    "execution": {}, "facts": FACTS,
}  # fmt: skip
ENTRY = {
    "run": "run.trec", "run_sha256": "0", "qrels": "qrels.txt", "qrels_digest": "0", "scores": {"P@1": 0.5},
    "intervals": {"P@1": [0.1, 0.9]}, "time": "2026-01-01T00:00:00Z", **FACTS,
    "lineage": [{"path": "run.trec", "kind": "run", "identity": SIDE["identity"], "execution": {},
                 "facts": FACTS, "digest": "", "collection": ""}],
}  # fmt: skip
GRID = {
    "grid": {
        "collections": ["./beir"], "kind": "bm25", "k1": [0.9, 1.2], "b": 0.5, "k": [3, 5],
        "measures": ["nDCG@10"], "search": {"tag": "x"}, "where": [{"k1": 0.9, "k": [7]}],
    },
    "table": {"rows": ["k1", "k"], "columns": "collection", "baseline": {"k1": 0.9, "k": 5}},
    "slurm": {"time": "1:00", "encode": {"gres": "gpu:1", "shards": 2}},
}  # fmt: skip


def toml(value: Any) -> str:
    """A TOML value, with inline tables; what TOML cannot represent is written all the same."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return str(value)
    return json.dumps(value)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a collection and its judgements, as the working directory."""
    folder = tmp_path_factory.mktemp("hostile")
    tiny.collection(folder / "beir", 12, 3)
    (folder / "qrels.txt").write_text("q0 0 d000 1\nq1 0 d001 1\n")
    (folder / "run.trec").write_text(RUN)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def check(*words: object) -> None:
    code, err = lmk(*words)
    assert code in (0, 2, 3, 4), (words, err)
    assert "Traceback" not in err
    assert len(err) < 30_000


EXAMPLES = settings(max_examples=25, deadline=None)


@EXAMPLES
@given(side=changed(SIDE))
def test_side_files_of_runs(world: Path, side: dict[str, Any]) -> None:
    (world / "run.trec.json").write_text(json.dumps(side), "utf-8")
    check("eval", "run.trec", "-m", "P@1")
    check("eval", "run.trec", "-m", "P@1", "--qrels", "qrels.txt", "--log", "new.jsonl")
    check("show", "run.trec")
    check("repro", "run.trec")


@EXAMPLES
@given(entry=changed(ENTRY))
def test_score_logs(world: Path, entry: dict[str, Any]) -> None:
    (world / "log.jsonl").write_text(json.dumps(entry) + "\n", "utf-8")
    check("show", "log.jsonl")
    check("repro", "log.jsonl#1")


@EXAMPLES
@given(grid=changed(GRID))
def test_grid_files(world: Path, grid: dict[str, Any]) -> None:
    text = "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in grid.items())
    (world / "grid.toml").write_text(text, "utf-8")
    check("grid", "grid.toml", "-o", "results", "--dry-run")
    assert not (world / "results").exists()


@EXAMPLES
@given(
    table=changed({"index": {"kind": "bm25", "k1": 1.2, "b": 0.5, "language": "en", "json": True}})
)
def test_config_files(world: Path, table: dict[str, Any]) -> None:
    text = "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in table.items())
    (world / "settings.toml").write_text(text, "utf-8")
    check("index", "./nothing", "--config", "settings.toml", "-o", "out")
