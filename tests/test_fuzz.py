"""Damage at random: whatever is wrong with a file, a command ends with an exit code that says so.

Files of every kind of artifact, and of every input format, are damaged in ways that a seed decides, and
a command that reads them is run. It may end well, or with 2, 3 or 4; not with 1, which is a bug of
ours; it changes nothing but its output; and a search does not answer otherwise than before, unless
`lmk verify` sees the damage.

A failure names the seed of its damage: `FUZZ_SEED=17 python -m pytest -m "" tests/test_fuzz.py` tries
that damage alone.
"""

import gzip
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import forked, levels, pages, tiny
from tests.damage import damage
from tests.forkserver import ForkServer

BLOCKS, ROUNDS = 25, 20  # the seed of the run is that of the first of 500 damages
ONE = os.environ.get("FUZZ_SEED")
SECONDS = 300  # beyond which a command hangs, also on a busy machine
ALLOWED = {0, 2, 3, 4}
Line = list[str]


class Target(NamedTuple):
    """Files, and command lines that read them, of which one is run. FILE is the damaged one, OUT an
    output. `whole` is a folder of vectors, for which a search is run and `lmk verify` beside it."""

    files: str
    lines: tuple[str, ...]
    whole: str = ""


TRAIN = "train FILE -m model --steps 1 --batch-size 2 -o OUT"
RESUME = "train examples.jsonl -m model --steps 3 --save-every 1 --batch-size 2 -o half"
VECTORS = ("show {0}", "export {0} --to parquet -o OUT", "index {0} --kind Flat -o OUT")
TARGETS = [
    Target("mine/**/*", ("show ./mine", "index ./mine --kind bm25 -o OUT")),
    Target("mine/**/*", ("tokenize ./mine -m model -o OUT", "encode ./mine -m model -o OUT")),
    Target("mine/**/*", ("search bm25 ./mine -o OUT", "eval run.trec", TRAIN.replace("FILE", "./mine"))),
    Target("docs.*", ("index FILE --kind bm25 -o OUT", "show FILE")),
    Target("queries.*", ("search bm25 FILE -o OUT",)),
    Target("qrels.*", ("eval run.trec --qrels FILE", "show ./mine,qrels=FILE")),
    Target("run.trec*", ("eval run.trec", "show run.trec", "search run.trec ./mine --rerank vectors -o OUT")),
    Target("run.trec*", ("repro run.trec", "search bm25 --with run.trec --fuse linear ./mine -o OUT")),
    Target("scores.jsonl", ("show scores.jsonl", "plot scores.jsonl --x k -o OUT.svg", "repro scores.jsonl")),
    Target("scores.jsonl", ("eval run.trec --log scores.jsonl", "show scores.jsonl", "repro scores.jsonl#1")),
    Target("vectors/**/*", tuple(line.format("vectors") for line in VECTORS), "vectors"),
    Target("chunks/**/*", tuple(line.format("chunks") for line in VECTORS), "chunks"),
    Target("chunks/**/*", ("search chunks ./mine --level chunk -o OUT", "repro chunks"), "chunks"),
    Target("updated/**/*", ("show updated", "search updated ./mine -k 3 -o OUT"), "updated"),
    Target("updated/**/*", ("compact updated", "encode ./mine -m model -o updated --if-exists update")),
    Target("tokens/**/*", ("show tokens", "encode tokens -m model -o OUT", "repro tokens")),
    Target("bm25/**/*", ("show bm25", "search bm25 ./mine -k 3 -o OUT"), "bm25"),
    Target("hnsw/**/*", ("verify hnsw", "show hnsw")),
    Target("hnsw/*.json", ("show hnsw", "search hnsw ./mine -k 3 -o OUT", "search hnsw -q rivers")),
    Target("model/**/*", ("encode ./mine -m model -o OUT", "show model", "tokenize ./mine -m model -o OUT")),
    Target("model/**/*", ("export -m model --to sentence-transformers -o OUT", "search vectors -q rivers")),
    Target("examples.*", (TRAIN,)),
    Target("half/**/*", ("show half", "encode ./mine -m half -o OUT", RESUME, RESUME)),
    Target("trained/**/*", ("show trained", "encode ./mine -m trained -o OUT")),
    Target("matrix.*", ("import matrix.npy --from numpy --ids matrix.txt -o OUT",)),
    Target("pyserini.jsonl", ("import pyserini.jsonl --from pyserini -o OUT",)),
    Target("texts/**/*", ("show folder:texts", "index folder:texts,unreadable=skip --kind bm25 -o OUT")),
    Target("settings.toml", ("index ./mine --kind bm25 --config settings.toml -o OUT",)),
]  # fmt: skip
WRITTEN = ("updated/", "half/", "scores.jsonl")  # what these command lines may change


class World:
    """A folder with everything that can be damaged; commands run in it, in children."""

    def __init__(self, forkserver: ForkServer, root: Path) -> None:
        self.folder, self._pristine = root / "world", root / "pristine"
        self._forkserver = forkserver

    def keep(self) -> None:
        """Take what there is now for undamaged."""
        shutil.copytree(self.folder, self._pristine, symlinks=True)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._pristine, self.folder, symlinks=True)

    def run(self, lines: list[str], how: str = "lines") -> list[forked.Done]:
        """What the command lines left behind, one after another; AssertionError if one hangs or dies."""
        report = self.folder.with_name("report.jsonl")
        report.write_text("")
        words = [line.split() for line in lines]
        child = self._forkserver.call(f"tests.forked:{how}", words, str(self.folder), str(report))
        child.wait(SECONDS)
        child.kill()
        done = [forked.Done(*json.loads(line)) for line in report.read_text().splitlines()]
        assert len(done) == len(lines), f"{lines[len(done)]} hangs or dies ({child.code})"
        return done

    def make(self, lines: list[str], how: str = "lines") -> None:
        """The same, where all must end well."""
        for line, done in zip(lines, self.run(lines, how), strict=True):
            assert done.code == (75 if how == "unpublished" else 0), f"{line}: {done.err}"

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file that no command line may change."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        stats = {str(path.relative_to(self.folder)): path.stat() for path in files}
        return {
            name: (stat.st_size, stat.st_mtime_ns)
            for name, stat in stats.items()
            if not name.startswith((*WRITTEN, "out"))
        }


@pytest.fixture(scope="module")
def world(
    forkserver: ForkServer,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[[str], Path],
) -> World:
    return build(World(forkserver, tmp_path_factory.mktemp("fuzz")), tiny_model("bert"))


@pytest.fixture(scope="module")
def answers(world: World) -> dict[str, str]:
    return answers_of(world)


def build(world: World, model: Path) -> World:
    """Make everything there is to damage."""
    inputs(world.folder)
    shutil.copytree(model, world.folder / "bert")
    world.make(
        [
            "export --to sentence-transformers -m bert --pool mean -o model",
            "encode ./mine -m model -o vectors",
            "encode ./mine -m model --pool lmk --gran 8 --unit chunk -o chunks",
            "encode ./mine -m model -o updated",
            "tokenize ./mine -m model -o tokens",
            "index ./mine --kind bm25 -o bm25",
            "index vectors --kind hnsw -o hnsw",
            "search bm25 ./mine -k 10 -o run.trec",
            "eval run.trec -m nDCG@10 --log scores.jsonl",
            "train examples.jsonl -m model --steps 2 --batch-size 2 -o trained",
        ]
    )
    world.make([RESUME], "unpublished")
    grow(world.folder / "mine/corpus.jsonl")
    world.make(["encode ./mine -m model -o updated --if-exists update"])
    world.keep()
    return world


def inputs(folder: Path) -> None:
    """The same little collection in several formats, and what else is read."""
    tiny.collection(folder / "mine", 24, 6)
    corpus = (folder / "mine/corpus.jsonl").read_bytes()
    docs = [json.loads(line) for line in corpus.splitlines()]
    ids, texts = [doc["_id"] for doc in docs], [doc["text"] for doc in docs]
    judged = (folder / "mine/qrels/test.tsv").read_text()
    pairs = [
        {"query": text, "pos": [text], "neg": ["iron"], "pos_scores": [1.5]} for text in texts[:6]
    ]
    rows = [{"id": name, "contents": name, "vector": [1.0, 0.5]} for name in ids]
    (folder / "texts").mkdir()
    (folder / "texts/notes.md").write_text("# Rivers\n\nThey carry water.\n")
    if all(importlib.util.find_spec(name) for name in ("inscriptis", "pypdfium2")):
        (folder / "texts/page.html").write_text("<title>Birds</title><p>They <b>fly</b>.")
        pages.save_pdf(folder / "texts/paper.pdf", ["Iron rusts."])
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress(corpus, mtime=0))
    tiny.write_jsonl(folder / "examples.jsonl", pairs)
    tiny.write_jsonl(folder / "pyserini.jsonl", rows)
    np.save(folder / "matrix.npy", np.eye(len(ids), 8, dtype=np.float32))
    pq.write_table(pa.table({"id": ids, "text": texts, "title": ids}), folder / "docs.parquet")
    pq.write_table(
        pa.table({"anchor": texts[:6], "positive": ids[:6]}), folder / "examples.parquet"
    )
    for name, text in {
        "docs.tsv": "".join(f"{name}\t{name} text\n" for name in ids),
        "examples.tsv": "".join(f"{text[:5]}\t{text}\n" for text in texts[:6]),
        "matrix.txt": "".join(f"{name}\n" for name in ids),
        "queries.tsv": "q0\trivers carry water\nq1\tbirds migrate south\n",
        "queries.txt": "<top><num> Number: 7 <title> rivers <desc> what carries water</top>\n",
        "queries.xml": '<topics><topic number="7"><query>rivers</query></topic></topics>',
        "qrels.tsv": judged,
        "qrels.txt": "".join(f"q{i} 0 d{i:03d} 1\n" for i in range(6)),
        "settings.toml": '[index]\nk1 = 1.2\nb = 0.5\nlanguage = "en"\n',
    }.items():
        (folder / name).write_text(text)


def grow(corpus: Path) -> None:
    """A document more, one changed and one gone."""
    first, _, *rest = corpus.read_text().rstrip("\n").split("\n")
    changed = first.replace('"text": "', '"text": "another ')
    corpus.write_text("\n".join([changed, *rest, '{"_id": "new", "text": "a heron"}']) + "\n")


def searched(folder: str) -> str:
    return f"search {folder} -q rivers"


def attack(world: World, seed: int, answers: dict[str, str]) -> list[str]:
    """Damage something and run what reads it; what went wrong, with the seed."""
    random = Random(seed)
    target = random.choice(TARGETS)
    file = random.choice(sorted(path for path in world.folder.glob(target.files) if path.is_file()))
    name = str(file.relative_to(world.folder))
    lines = [random.choice(target.lines).replace("FILE", name).replace("OUT", "out")]
    if target.whole:
        lines += [searched(target.whole), f"verify {target.whole} --sample 3"]
    said = f"FUZZ_SEED={seed}: {name} {damage(file, random)}"
    try:
        return [f"{said}: {fault}" for fault in faults(world, lines, answers)]
    finally:
        world.restore()


def faults(world: World, lines: list[str], answers: dict[str, str]) -> Iterator[str]:
    before = world.snapshot()
    try:
        done = world.run(lines)
    except AssertionError as error:
        return (yield str(error))
    after = world.snapshot()
    yield from (f"{lines[0]} changed {name}" for name in before if after.get(name) != before[name])
    for line, each in zip(lines, done, strict=True):
        if each.code not in ALLOWED or "Traceback" in each.err:
            yield f"{line}: exit code {each.code}\n{each.err}"
        whole = each.code == 0 and done[-1].code == 0  # lmk verify comes last
        if line in answers and len(lines) > 1 and whole and each.out != answers[line]:
            yield f"{line} answers\n{each.out}\nand not\n{answers[line]}"


def answers_of(world: World) -> dict[str, str]:
    """What the searches answer before any damage."""
    lines = [searched(folder) for folder in {target.whole for target in TARGETS} if folder]
    return {line: done.out for line, done in zip(lines, world.run(lines), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("block", levels.sample("fuzz", range(1 if ONE else BLOCKS), 5))
def test_damage_is_neither_taken_for_a_bug_nor_for_an_answer(
    world: World, answers: dict[str, str], block: int
) -> None:
    first = levels.SEED + block * ROUNDS
    seeds = [int(ONE)] if ONE else range(first, first + ROUNDS)
    wrong = [said for seed in seeds for said in attack(world, seed, answers)]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
def test_a_file_that_is_missing_changes_no_answer(world: World, answers: dict[str, str]) -> None:
    wrong = []
    for target in (target for target in TARGETS if target.whole):
        for file in sorted(path for path in world.folder.glob(target.files) if path.is_file()):
            file.unlink()
            lines = [searched(target.whole), f"verify {target.whole} --sample 3"]
            name = file.relative_to(world.folder)
            wrong += [f"{name} removed: {fault}" for fault in faults(world, lines, answers)]
            world.restore()
    assert not wrong, "\n\n".join(wrong)
