"""The promises of every engine of the catalog, and of an engine of another package."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lmkcli import BuildIndex, Encode, Verify, catalog
from lmkcli import open_index as open_for_questions
from lmkcli.artifact.shards import shards_folder
from lmkcli.data.collection import Query, Shard
from lmkcli.data.run import Run
from lmkcli.errors import DataError, Mismatch, Stopped, UsageError
from lmkcli.operations.index import Built
from lmkcli.plugins.serve.indexes import IndexSet
from lmkcli.progress import Report
from lmkcli.retrieval import index_job
from lmkcli.retrieval.engines.index_settings import IndexSettings
from lmkcli.retrieval.index import Divisible
from lmkcli.retrieval.index_job import IndexJob
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.retrieval.sharding import sharded_search
from lmkcli.system.atomic import LOCK_FILE, locked
from tests.indexes import record_of
from tests.tiny import write_jsonl

Models = Callable[[str], Path]
WORDS = "tea bread bike river stone cloud tree heron lamp green old small".split()
QUERIES = [Query(f"q{number}", f"{word} {WORDS[number - 3]}") for number, word in enumerate(WORDS)]
DOCS = 640  # enough to train 16 centroids
CPU = OpenSettings(device="cpu")

# A package with one engine: brute force over a file of vectors. It uses the public interface alone.
ROWS_OF_BRUTE = """
from lmkcli.catalog import EngineRow

ROWS = (EngineRow("brute", "lmk_brute_engine:Brute", "brute force", variant="vectors"),)
"""

BRUTE = """
import numpy as np

from lmkcli.retrieval.vectors.vector_engine import NearestEngine
from lmkcli.retrieval.vectors.vector_search import OpenedEngine
from lmkcli.retrieval.vectors.vector_search import Candidates
from lmkcli.retrieval.engine import Appended


def stored(vectors):
    return np.concatenate([np.zeros((0, vectors.dim), np.float32), *(b.vectors for b in vectors)])


class Brute(NearestEngine):
    kind = "brute"
    in_shards = True

    def build(self, given, folder, report):
        (folder / "any").mkdir()
        np.save(folder / "any" / "matrix.npy", stored(given.vectors))
        return {"compared": given.vectors.total}

    def append(self, given, index, folder, report):
        changes = given.changes(index.vectors)
        facts = {}
        if changes.fresh.slices:
            old = np.load(index.files / "any" / "matrix.npy")
            (folder / "any").mkdir()
            matrix = np.concatenate([old, stored(changes.fresh)])
            np.save(folder / "any" / "matrix.npy", matrix)
            facts = {"compared": len(matrix)}
        return Appended(facts, changes.numbering, f"{changes.fresh.rows} appended")

    def open(self, files, vectors, rows, settings):
        return OpenedEngine(Nearest(np.load(files / "any" / "matrix.npy", mmap_mode="r")))

    def check_shards(self, given):
        pass

    def write_common(self, given, path):
        path.write_text("nothing")

    def write_shard(self, given, shard, common, path, report):
        with open(path, "wb") as file:
            np.save(file, stored(given.vectors.share(shard.rows(given.vectors.rows))))

    def join(self, given, common, shards, folder, apart):
        matrix = np.concatenate([np.load(path) for path in shards])
        (folder / "any").mkdir()
        np.save(folder / "any" / "matrix.npy", matrix)
        return {"compared": len(matrix)}


class Nearest:
    overfetch, divisible = 1, True

    def __init__(self, matrix):
        self.matrix, self.rows, self.most = matrix, len(matrix), len(matrix)

    def candidates(self, queries, k, among=None):
        among = among or range(self.rows)
        scores = queries @ self.matrix[among.start : among.stop].T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        found, rows = np.take_along_axis(scores, best, 1), best + among.start
        missing = ((0, 0), (0, k - best.shape[1]))
        found = np.pad(found.astype(np.float32), missing, constant_values=-np.inf)
        return Candidates(found, np.pad(rows, missing, constant_values=-1))
"""


@dataclass(frozen=True)
class Case:
    """An engine, other settings of it, and whether its first hits are those of exact search."""

    kind: str
    other: dict[str, Any]
    exact: bool = False
    needs: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("hnsw", {"m": 8}),
    Case("ivf", {"seed": 1}, exact=True),
    Case("IVF4,SQ8", {"seed": 1}),
    Case("int8", {"seed": 1}),
    Case("binary", {"seed": 1}),
    Case("pq", {"seed": 1}),
    Case("inverted", {"kind": "seismic"}, exact=True),
    Case("seismic", {"kind": "inverted"}, needs="seismic"),
    Case("bm25", {"k1": 2.0}),
    Case("lucene", {"k1": 2.0}, needs="jnius"),
    Case("milvus", {"index_type": "HNSW"}, True, "milvus_lite", {"index_type": "FLAT"}),
    Case("brute", {"kind": "hnsw"}, exact=True),
]
EACH = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.kind,
            marks=pytest.mark.skipif(
                bool(case.needs) and find_spec(case.needs) is None, reason=f"no {case.needs}"
            ),
        )
        for case in CASES
    ],
    indirect=True,
)


def docs(numbers: range, version: int = 0) -> dict[str, str]:
    """Documents by id: three words that depend on the number and the version."""
    rng = np.random.default_rng([numbers.start, version])
    return {f"d{number}": " ".join(rng.choice(WORDS, 3)) + f" number{number}" for number in numbers}


@dataclass
class Life:
    """A collection, its vectors, and an index of an engine."""

    root: Path
    case: Case
    model: Path
    notes: list[str] = field(default_factory=list)

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def variant(self) -> str:
        return catalog.engine_row(self.case.kind).variant

    @property
    def source(self) -> Path:
        return Path("collection.jsonl" if self.variant == "lexical" else "vectors")

    def write(self, contents: dict[str, str]) -> None:
        """Write the collection, and bring its vectors up to date."""
        rows = [
            {"id": name, "text": text, "group": number % 40}
            for number, (name, text) in enumerate(contents.items())
        ]
        write_jsonl(Path("collection.jsonl"), rows)
        if self.variant == "lexical":
            return
        options: dict[str, Any] = (
            {"pool": "splade", "top_terms": 9} if takes_terms(self.case.kind) else {}
        )
        Encode(
            "collection.jsonl", model=str(self.model), output=self.source,
            dtype="fp32", device="cpu", if_exists="update", **{"pool": "mean", **options},
        ).run()  # fmt: skip

    def run(self, if_exists: str = "resume", **options: Any) -> dict[str, Any]:
        """Run `lmk index`, and return what it prints as JSON."""
        built = self.operation(if_exists, **options).run(Report(note=self.notes.append))
        facts: dict[str, Any] = built.as_json()  # type: ignore[union-attr]
        return facts

    def operation(self, if_exists: str = "resume", **options: Any) -> BuildIndex:
        given = {"kind": self.case.kind, **self.case.settings, **options}
        if given["kind"] == "milvus":
            given |= {"uri": str(self.root / "milvus.db"), "collection": "docs"}
        return BuildIndex(str(self.source), output=self.index, if_exists=if_exists, **given)  # type: ignore[arg-type]

    def job(self, **options: Any) -> IndexJob[Any]:
        settings = self.operation(**options).part(IndexSettings)
        return IndexJob.open(str(self.source), self.index, settings, False, Report())

    def files(self) -> list[Path]:
        """The files of the engine."""
        at = record_of(self.index).at
        paths = sorted((self.index / at).rglob("*")) if at else []
        return [path for path in paths if path.is_file() and path.name != "files.json"]

    def check(self, foreign: tuple[str, ...] = ()) -> None:
        """Check that the index finds what it must find, and that no other files are in its folder."""
        at = record_of(self.index).at
        names = {"manifest.json", "built.json", *([at] if at else []), *foreign}
        assert {*os.listdir(self.index)} == names
        found = search(self.index, 2 * DOCS)
        if self.variant == "lexical":
            other = self.root / "fresh"
            BuildIndex(str(self.source), output=other, kind=self.case.kind).run()
            assert found == search(other, 2 * DOCS)
            shutil.rmtree(other)
        else:
            assert found == search(self.source, 2 * DOCS)
            if self.case.exact:
                assert search(self.index, 7) == search(self.source, 7)
        assert any(ids for ids, _ in found.values())


def search(folder: Path, k: int) -> dict[str, tuple[list[str], list[float]]]:
    run: Run = open_index(folder, CPU).search(QUERIES, k)
    return {name: (each.doc_ids, each.scores.tolist()) for name, each in run.rankings.items()}


@pytest.fixture(scope="module")
def foreign_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install a package with an engine for the tests of this file."""
    site = tmp_path_factory.mktemp("site")
    (site / "lmk_brute.py").write_text(ROWS_OF_BRUTE)
    (site / "lmk_brute_engine.py").write_text(BRUTE)
    info = site / "lmk_brute-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lmk-brute\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lmkcli.plugins]\nbrute = lmk_brute\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        catalog.read_again()
        yield
    catalog.read_again()


@pytest.fixture
def case(request: pytest.FixtureRequest, foreign_package: None) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.fixture
def life(
    case: Case,
    tmp_path: Path,
    tiny_model: Models,
    masked_model: Models,
    once: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Life:
    """A finished index of a collection."""
    model = masked_model("bert") if takes_terms(case.kind) else tiny_model("bert")

    def make(folder: Path) -> None:
        folder.mkdir()
        monkeypatch.chdir(folder)
        Life(folder, case, model).write(docs(range(DOCS)))

    made = once(f"engines/{catalog.engine_row(case.kind).variant}", make)
    shutil.copytree(made, tmp_path / "life")
    for path in (tmp_path / "life").glob("vectors/manifest.json"):  # the collection moves too
        path.write_text(path.read_text().replace(str(made), str(tmp_path / "life")))
    monkeypatch.chdir(tmp_path / "life")
    new = Life(tmp_path / "life", case, model)
    new.run()
    return new


def takes_terms(kind: str) -> bool:
    return catalog.engine_row(kind).takes == "sparse"


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """The time and the inode of each file in a folder."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_ino) for p in paths}


def test_every_engine_of_the_catalog_is_tested() -> None:
    buildable = {name for name, row in catalog.ENGINES.items() if row.variant}
    assert buildable <= {case.kind for case in CASES}


@EACH
def test_an_index_is_found_kept_described_and_protected(life: Life) -> None:
    life.check()
    before = snapshot(life.index)
    facts = life.run()
    record = record_of(life.index)
    details = ("empty", "tokens", "dim")
    counts = {
        key: item
        for key, item in record.facts.items()
        if isinstance(item, int) and key not in details
    }
    assert counts
    (line,) = Built(life.index, facts).blocks()
    assert all(f"{key} {item:,}" in str(line) for key, item in counts.items())
    assert facts == {"output": str(life.index), "digest": record.digest, **record.facts}
    life.run("update")
    assert "already up to date" in life.notes[-1]
    assert snapshot(life.index) == before
    with pytest.raises(Mismatch):
        life.run(**life.case.other)
    with locked(life.index), pytest.raises(Stopped, match="is being changed by"):
        life.run("update")
    (life.index / LOCK_FILE).unlink()
    assert snapshot(life.index).keys() == before.keys()
    opened = IndexSet.open([life.index], OpenSettings(device="cpu"))
    (described,) = opened.describe()
    assert described["documents"] == DOCS
    assert described["kind"] == life.case.kind


@EACH
def test_conditions_filter_the_whole_ranking(life: Life) -> None:
    group = {f"d{number}" for number in range(7, DOCS, 40)}
    whole = open_index(life.index, CPU).search(QUERIES, 2 * DOCS)
    options: dict[str, Any] = {"device": "cpu", "where": ["group=7"]}
    found = open_for_questions(life.index, **options).search(QUERIES, 5)
    ranked = {
        query: [name for name in ranking.doc_ids if name in group]
        for query, ranking in whole.rankings.items()
    }
    assert any(ranked.values())
    for query, ranking in found.rankings.items():
        assert {*ranking.doc_ids} <= group
        assert len(ranking.doc_ids) == min(5, len(ranked[query]))
        if life.case.exact or life.variant == "lexical":
            assert ranking.doc_ids == ranked[query][:5]
    with pytest.raises(UsageError, match="'grop'"):
        open_for_questions(life.index, device="cpu", where=["grop=7"]).search(QUERIES, 5)
    life.write({**docs(range(DOCS)), "new": "tea heron"})
    life.run("update")
    open_for_questions(life.index, **options)
    with open("collection.jsonl", "a") as file:
        file.write('{"id": "more", "text": "tea", "group": 7}\n')
    with pytest.raises(Mismatch, match="run lmk update first"):
        open_for_questions(life.index, **options)


@EACH
def test_an_update_finds_added_changed_and_deleted_documents(life: Life) -> None:
    now = docs(range(DOCS))
    for round_ in range(2):
        now = {**now, **docs(range(10 * round_, 10 * round_ + 4), 1), f"new{round_}": "tea heron"}
        del now[f"d{300 + round_}"]
        life.write(now)
        with pytest.raises(Mismatch, match="--if-exists update"):
            life.run()
        if life.variant != "lexical":
            before = open_index(life.index, CPU)
            assert "is behind" in before.info.notes[0]
            rankings = before.search(QUERIES, DOCS).rankings.values()
            assert any(f"d{300 + round_}" in each.doc_ids for each in rankings)
        (life.index / "mine.txt").write_text("mine")
        life.run("update")
        assert "already" not in life.notes[-1]
        life.check(foreign=("mine.txt",))
    life.run("update")
    assert "already up to date" in life.notes[-1]
    life.write(docs(range(1000, 1000 + DOCS)))
    life.run("update")
    assert "built again: " in life.notes[-1] or life.case.kind in ("milvus", "brute")
    life.check(foreign=("mine.txt",))
    assert (life.index / "mine.txt").read_text() == "mine"


@EACH
def test_an_overwritten_index_keeps_the_files_of_others(life: Life, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "1").mkdir(parents=True)
    (outside / "1" / "files.json").write_text('{"thesis.tex": [4, ""]}')
    (outside / "1" / "thesis.tex").write_text("mine")
    for name in ("1/mine.txt", "2024/photo.jpg", "faiss.index", ".hidden"):
        (life.index / name).parent.mkdir(exist_ok=True)
        (life.index / name).write_text("mine")
    (life.index / "2").symlink_to(outside / "1")
    (life.index / "1" / "link").symlink_to(outside)
    kept = ("1", "2", "2024", "faiss.index", ".hidden")
    for times in range(2):
        life.run("overwrite")
        life.check(foreign=kept)
        assert record_of(life.index).at in ("3", "") or times
    assert sorted(os.listdir(life.index / "1")) == ["link", "mine.txt"]
    life.write({**docs(range(DOCS)), "new": "tea"})
    life.run("update")
    life.check(foreign=kept)
    for name in ("1/mine.txt", "2024/photo.jpg", "faiss.index", ".hidden", "2/thesis.tex"):
        assert (life.index / name).read_text() == "mine"
    assert (life.index / "1" / "link").is_symlink()


@EACH
def test_the_same_command_continues_after_a_kill(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states that a kill leaves; test_sweeps.py kills real processes."""
    at = record_of(life.index).at
    dead = ".5.1.2.3"
    if at:
        shutil.copytree(life.index / at, life.index / dead)  # unfinished work of another process
        (life.index / dead / "files.json").unlink()
    (life.index / "built.json").unlink()  # the files have their names, but are not recorded
    with pytest.raises(DataError, match="not complete"):
        search(life.index, 3)
    life.run()
    life.check()
    before = search(life.index, 9)
    life.write({**docs(range(1, DOCS)), "new": "tea heron"})
    with monkeypatch.context() as patch:
        patch.setattr(index_job, "write_record", mock.Mock(side_effect=Stopped("killed")))
        with pytest.raises(Stopped):
            life.run("update")
    if life.case.kind != "milvus" and life.variant != "lexical":
        assert search(life.index, 9) == before  # the old index is complete until the record changes
    record = record_of(life.index)

    def killed_after_the_record(folder: Path, at: str) -> None:
        if record_of(folder) != record:
            raise Stopped("killed")

    with monkeypatch.context() as patch:
        patch.setattr(index_job, "remove_leftovers", killed_after_the_record)
        with pytest.raises(Stopped):
            life.run("update")
    life.run("update")
    life.check()


@EACH
def test_damage_is_noticed(life: Life) -> None:
    if not life.files():
        with pytest.raises(UsageError, match="no files to verify"):
            Verify(life.index).run()
        return
    listed = json.loads((life.index / "1" / "files.json").read_text())
    verified: Any = Verify(life.index).run()
    assert verified.files == len(listed) == len(life.files())
    for path in life.files():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(DataError, match="was changed after it was written"):
            Verify(life.index).run()
        path.write_bytes(whole + b"0")
        with pytest.raises(DataError, match=f"has {len(whole) + 1} bytes"):
            search(life.index, 3)
        path.unlink()
        with pytest.raises(DataError, match="is missing"):
            search(life.index, 3)
        path.write_bytes(whole)
    life.check()
    listed_at = life.index / "1" / "files.json"
    listed_at.rename(life.root / "list")
    with pytest.raises(DataError, match=r"files\.json is missing"):
        search(life.index, 3)
    listed_at.write_text('{"../built.json": [3, ""]}')
    with pytest.raises(DataError, match="not in its folder"):
        search(life.index, 3)
    (life.root / "list").rename(listed_at)
    record = life.index / "built.json"
    text = record.read_text()
    for damaged in (text[: len(text) // 2], text.replace('"of"', '"off"'), "[]", "{}"):
        record.write_text(damaged)
        with pytest.raises(DataError):
            search(life.index, 3)
    life.run("overwrite")
    life.check()


@EACH
def test_vectors_that_moved_are_found_again(life: Life) -> None:
    if life.variant == "lexical":
        pytest.skip("the index contains its documents")
    found = search(life.index, 5)
    (life.root / "vectors").rename(life.root / "elsewhere")
    with pytest.raises(DataError, match="give their location with --vectors"):
        search(life.index, 5)
    moved = OpenSettings(device="cpu", vectors=str(life.root / "elsewhere"))
    run = open_index(life.index, moved).search(QUERIES, 5)
    assert {name: each.doc_ids for name, each in run.rankings.items()} == {
        name: ids for name, (ids, _) in found.items()
    }


@EACH
def test_shards_are_refused_or_join_to_the_whole(life: Life, tmp_path: Path) -> None:
    whole, found = record_of(life.index), search(life.index, 20)
    shutil.rmtree(life.index)
    if life.case.kind not in ("ivf", "IVF4,SQ8", "brute"):
        with pytest.raises(UsageError, match="--shard"):
            life.job().build_shard(Shard(0, 2))
        assert not shards_folder(life.index).exists()
        return
    for number in (1, 0):
        life.job(shard=Shard(number, 2)).build_shard(Shard(number, 2))
    life.run()
    joined = record_of(life.index)
    assert (joined.digest, joined.of, joined.at) == (whole.digest, whole.of, whole.at)
    assert {**joined.facts, "bytes": 0} == {**whole.facts, "bytes": 0}
    assert search(life.index, 20) == found
    assert not shards_folder(life.index).exists()
    life.check()
    opened = open_index(life.index, CPU)
    assert isinstance(opened, Divisible)
    sharded = sharded_search(opened, QUERIES, 20)
    shards = sharded.claim(tmp_path / "run", {}, 2, Report().call)
    for number in range(2):
        sharded.search(Shard(number, 2), shards, Report())
    (run,) = sharded.joined("tag", shards, Report())
    assert {name: each.doc_ids for name, each in run.rankings.items()} == {
        name: ids for name, (ids, _) in found.items()
    }
