"""Commands that are killed, or that find the disk full, and that the same command line then completes.

The commands come from the catalog of operations, with small inputs for the roles of their fields. So a new
command is swept without an entry here, unless it needs other words (`WORDS`). A sweep compares the files of a
disturbed command, after a second run, with those of an undisturbed one. test_sweeps.py runs a part of the
sweeps. All of them, or a number of random kills, run from a shell:

    python -m tests.sweeps kills 1000        # kills at random moments and times; a table with a line per verb
    python -m tests.sweeps kills 1000 17     # others: 17 is the seed
    python -m tests.sweeps kills encode      # kills at every moment, for the cases with this prefix
    python -m tests.sweeps kills encode 5    # at five moments of each
    python -m tests.sweeps disks encode      # a disk with room for every number of pages
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import pickle
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from lmkcli.catalog import ENGINES, VERBS
from lmkcli.cli import main
from lmkcli.errors import CheckFailed, DataError, LmkError, Stopped
from lmkcli.plugins.demo import demo
from lmkcli.spec.option import Option, options
from lmkcli.store import part_writer, tokens
from tests import levels, tiny
from tests.forked import Moments

PATIENCE = 300.0  # seconds; a command takes about one, also on a busy machine, or it hangs
CLEARED = ".removed.manifest.json"  # in a folder in which an artifact is overwritten
PAGE = os.sysconf("SC_PAGE_SIZE")
DOCS, QUERIES = 24, 4
WORKERS = 2  # cases at the same time, from a shell
FEW = 3  # random kills of a slow case
MANY = 640  # vectors, enough for every kind of index
SPARE = 3  # more pages on a disk than the files need in the end, for temporary ones
PART = 1500  # bytes of a part, and characters of a batch of documents
# Files of the user in an output that is overwritten.
USERS_FILES = ("thesis.tex", "parts/notes.txt", "1_Pooling/notes.txt")

Change = Callable[[Path], None]
Contents = dict[str, Any]


# --- the cases ------------------------------------------------------------------------------------

# The input for each role of a field.
INPUTS = {
    "collection": "./small",
    "model": "bert",
    "artifact": "vectors",
    "run": "run.trec",
    "file": "scores.jsonl",
}
_ENCODE = "-m bert --pool lmk --gran 8 --batch-tokens 128 --dtype fp32 --store-dtype fp32"
_SPARSE = "-m masked --pool splade --top-terms 9 --batch-tokens 128 --dtype fp32"
_STEPS = "--steps 3 --save-every 1 --log-every 1 --batch-size 2 --dtype fp32"
_FIGURES = "--docs 3 --min-tokens 10 --dtype fp32"
# The words of a verb, or of one of its cases, without the output; {} is the name of the case.
WORDS = {
    "tokenize": "./small -m bert",
    "encode": f"./small {_ENCODE}",
    "encode.adapter": "./small -m lora/adapter --dtype fp32 --store-dtype fp32",
    "encode.sparse": f"./small {_SPARSE}",
    "encode.workers": f"./small {_ENCODE} --workers 2",
    "encode.tokens": "./small -m bert --unit token --batch-tokens 128 --dtype fp32 --store-dtype int4",
    "index": "many --kind {}",
    "index.bm25": "./small --kind {}",
    "index.lucene": "./small --kind {}",
    "index.inverted": "sparse --kind {}",
    "index.seismic": "sparse --kind {}",
    "index.muvera": "chunks --muvera 4x3x8",
    "index.milvus": "many --kind {} --uri ./milvus.db --collection docs",
    "search": "vectors ./small -k 5",
    "search.documents": "./small -q rivers -m bert",
    "search.changed": "./small -q rivers -m bert",
    "update": "./small updated hnsw bm25",
    "fetch": "-m lora/adapter",
    "repro": "run.trec",
    "import.numpy": "matrix.npy --from {} --ids matrix.txt",
    "import.pyserini": "pyserini --from {}",
    "import.anserini-json": "json --from {} -m masked --pool splade",
    "export": "vectors --to {}",
    "export.tevatron-train": "pairs.tsv --to {}",
    "export.anserini-json": "sparse --to {}",
    "export.sentence-transformers": "-m bert --pool cls --to {}",
    "export.hub": "-m bert --pool cls --to {}",
    "export.onnx": "-m bert --pool cls --to {}",
    "train": f"pairs.tsv -m bert --pool mean {_STEPS}",
    "train.lora": f"pairs.tsv -m bert --pool mean --lora 2 {_STEPS}",
    "pretrain": f"./small -m bert --max-length 32 {_STEPS}",
    "compact": "updated --keep-hours 0",
    "grid": "grid.toml",
    "plot": "scores.jsonl --x k",
    "plot.training": "trained",
    "analyze": "{} ./small",
    "analyze.attention": f"{{}} ./small -m bert --pool cls --bins 4 {_FIGURES}",
    "analyze.landmarks": f"{{}} ./small -m bert --gran 4 {_FIGURES}",
    "analyze.map": "{} chunks",
    "analyze.similarity": "{} chunks --doc d011",
    "show": "vectors",
}  # fmt: skip
# The cases of a verb, if they do not follow from the choices of a required field.
CASES: dict[str, Sequence[str]] = {
    "index": [
        *(
            kind
            for kind, row in ENGINES.items()
            if row.variant and all(map(find_spec, row.package.split()))
        ),
        "muvera",
    ],
    "encode": ["", "adapter", "sparse", "tokens", "workers"],
    "search": ["", "documents", "changed"],  # with an index in the cache
    "train": ["", "lora"],
    "plot": ["", "training"],
    "doctor": [],  # writes nothing, and depends on the machine
    "serve": [],  # does not end
}
SUFFIXES = {
    "search": ".trec",
    "eval log": ".jsonl",
    "browse": ".html",
    "plot": ".svg",
    "analyze": ".svg",
    "eval plot": ".svg",
}
_CHUNKS = f"encode ./small {_ENCODE} --unit chunk -o chunks"
_LORA = "train pairs.tsv -m bert --pool mean --lora 2 --steps 1 --batch-size 2 --dtype fp32 -o lora"
# Vectors for updates are made in the folder of the case, since they record the path of their collection.
_UPDATED = f"encode ./small {_ENCODE} -o updated"
_CHANGED = f"{_UPDATED} --if-exists update"


def change_collection(folder: Path) -> None:
    """Remove, change and add documents."""
    path = folder / "small" / "corpus.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").strip().split("\n")]
    records[3]["text"] += " copper"
    added = [
        {"_id": f"n{len(records)}-{i}", "title": "", "text": tiny.sentence(90 + i, 20)}
        for i in range(3)
    ]
    tiny.write_jsonl(path, [*records[2:], *added])


# Command lines and changes before a case.
BEFORE: dict[str, Sequence[str | Change]] = {
    "encode.adapter": [_LORA],
    "export.anserini-json": [f"encode ./small {_SPARSE} -o sparse"],
    "index.inverted": [f"encode ./small {_SPARSE} -o sparse"],
    "index.seismic": [f"encode ./small {_SPARSE} -o sparse"],
    "index.muvera": [_CHUNKS],
    "fetch": [_LORA],
    "update": [
        *(_UPDATED, "index updated -o hnsw", "index ./small --kind bm25 -o bm25"),
        change_collection,
    ],
    "compact": [_UPDATED, change_collection, _CHANGED, change_collection, _CHANGED],
    "search.changed": ["search ./small -q rivers -m bert", change_collection],
    "plot.training": [
        "train pairs.tsv -m bert --pool mean --steps 2 --batch-size 2 --dtype fp32 -o trained"
    ],
    "analyze.map": [_CHUNKS],
    "analyze.similarity": [_CHUNKS],
    "import.pyserini": ["export vectors --to pyserini -o pyserini"],
    "import.anserini-json": [
        f"encode ./small {_SPARSE} -o sparse",
        "export sparse --to anserini-json -o json",
    ],
}
# A command without --shard completes the work of their shards. It has another case with the given flags.
JOINED = {"index": ("apart", "--apart"), "search": ("overwrite", "--if-exists overwrite")}
AGAIN = ("export.sentence-transformers", "index.bm25")  # and the first case of each verb
SHARDED_KINDS = {"index": "IVF1,Flat"}
# a Java machine, a server, a larger collection, a compiler of graphs
SLOW = ("index.lucene", "index.milvus", "demo", "export.onnx")


READ_ONLY = ("verify", "show")  # without a moment


class Case(NamedTuple):
    """A command line, and the command lines and changes before it."""

    name: str
    words: list[str]
    before: list[str | Change]

    @property
    def verb(self) -> str:
        return self.words[0]


def cases() -> dict[str, Case]:
    """All cases by name: each verb, its variants, and how its output may exist already."""
    found: dict[str, Case] = {}
    for verb in VERBS:
        kind = VERBS.load(verb)
        fields = {option.name: option for option in options(kind)}
        first = True
        for variant in CASES.get(verb, _choices(fields.values()) or [""]):
            case = _case(verb, variant, fields)
            for each in (case, *(_again(case, fields) if first or case.name in AGAIN else ())):
                found[each.name] = each
            first = False
    return found


def _choices(fields: Iterable[Option]) -> Sequence[str]:
    """The choices of the first required field that has some."""
    return next((each.choices for each in fields if each.required and each.choices), ())


def _case(verb: str, variant: str, fields: dict[str, Option]) -> Case:
    name = f"{verb}.{variant}" if variant else verb
    given = WORDS.get(name, WORDS.get(verb))
    words = (
        given.format(variant).split() if given is not None else _composed(fields.values(), variant)
    )
    if "-q" not in words:  # prints its result
        words += (word for each in fields.values() for word in _output(verb, each))
    return Case(name, [verb, *words], list(BEFORE.get(name, ())))


def _composed(fields: Iterable[Option], variant: str) -> list[str]:
    """The words of a command that is only known by its fields."""
    words = []
    for option in fields:
        flag = [] if option.flag.argument else [option.spelling]
        if option.required and option.choices:
            words += [*flag, variant]
        elif option.flag.role in INPUTS and (option.required or option.flag.argument):
            words += [*flag, INPUTS[option.flag.role]]
    return words


def _output(verb: str, option: Option) -> list[str]:
    if option.flag.role != "output":
        return []
    several = f"{verb} {option.name}"
    suffix = SUFFIXES.get(several, SUFFIXES.get(verb, ""))
    name = f"{'out' if option.name == 'output' else option.name}{suffix}"
    return [name] if option.flag.argument else [option.spelling, name]


def _again(case: Case, fields: dict[str, Option]) -> Iterator[Case]:
    """The same command for an output that exists, and for one of two shards."""
    line, out = " ".join(case.words), case.words[-1]
    choices = fields["if_exists"].choices if "if_exists" in fields else ()
    if "overwrite" in choices:
        before = [*case.before, line, *([] if "." in out else [_add_users_files])]
        yield Case(f"{case.name}.overwrite", [*case.words, "--if-exists", "overwrite"], before)
    if "update" in choices:
        words, before = case.words, [*case.before, line, change_collection]
        if case.words[1] == "many":
            words = ["index", "updated", *case.words[2:]]
            before = [_UPDATED, " ".join(words), change_collection, _CHANGED]
        yield Case(f"{case.name}.update", [*words, "--if-exists", "update"], before)
    if "shard" in fields and case.name not in AGAIN:
        words = case.words
        if kind := SHARDED_KINDS.get(case.verb):
            words = [*words[:2], "--kind", kind, "-o", out]
        shards = [f"{' '.join(words)} --shard {number}/2" for number in range(2)]
        yield Case(f"{case.verb}.shard", shards[1].split(), [*case.before, shards[0]])
        if case.verb in JOINED:
            yield Case(f"{case.verb}.join", words, [*case.before, *shards])
            how, flags = JOINED[case.verb]
            joined = [*words, *flags.split()]
            yield Case(f"{case.verb}.join.{how}", joined, [*case.before, *shards])


def _add_users_files(folder: Path) -> None:
    for name in USERS_FILES:
        path = folder / "out" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("years of work\n")


def make_inputs(folder: Path, bert: Path) -> None:
    """The files that the cases start from."""
    tiny.collection(folder / "small", DOCS, QUERIES)
    (folder / "bert").symlink_to(bert)
    tiny.save_masked(folder / "masked", "bert")
    pairs = ((tiny.sentence(i, 4), tiny.sentence(i, 9)) for i in range(6))
    (folder / "pairs.tsv").write_text("".join(f"{query}\t{passage}\n" for query, passage in pairs))
    for name, rows in (("matrix", 20), ("many", MANY)):
        (folder / f"{name}.txt").write_text("".join(f"d{number}\n" for number in range(rows)))
        values = np.random.default_rng(0).normal(size=(rows, tiny.WIDTH))
        np.save(folder / f"{name}.npy", values.astype(np.float32))
    grid = ["[grid]", 'collections = "./small"', 'kind = "bm25"', "k1 = [0.9, 1.5]", "k = 5"]
    (folder / "grid.toml").write_text("\n".join([*grid, 'measures = ["nDCG@10"]', ""]))


ARTIFACTS = (  # what several cases need, made once
    f"encode ./small {_ENCODE} -o vectors",
    "search vectors ./small -k 5 -o run.trec",
    "eval run.trec --log scores.jsonl",
    "plot scores.jsonl --x k -o drawn.svg",  # also fills matplotlib's cache of fonts
    "import many.npy --from numpy --ids many.txt -m bert --pool mean -o many",
)


# --- the contents of a folder ---------------------------------------------------------------------

# Facts of one process: where, when and how fast it ran.
VOLATILE = {
    *("time", "seconds", "machine", "packages", "environment", "command", "directory", "operation"),
    *(
        "tokens_per_second",
        "memory",
        "updated",
        "work",
        "encoded",
        "ms_per_document",
        "peak_memory",
    ),
}
# Files about the runs of a command, and numbers of rows that no other row may have.
HISTORY = ("update.lock", "log.txt", "report.html", "generation.json")
_HIDDEN = re.compile(r"\.(growing|removed)|\.(.+)\.\d+\.\d+$")  # temporary names
_REFUSED = "refused"


def contents(folder: Path) -> Contents:
    """Everything below a folder, by path. Artifacts also as their readers see them.

    Left out are the temporary folder of the system, which the system empties, and the files of parts and
    databases, since interruptions decide about them; their readers see them.
    """
    found: Contents = dict(readable(folder))
    for path in _walk(folder):
        name = str(path.relative_to(folder))
        if not re.search(r"^tmp/|/parts/\d|\.db/", name) or _HIDDEN.match(path.name):
            found[name] = None if path.is_dir() or path.is_symlink() else _normal(path)
    return found


def readable(folder: Path) -> Contents:
    """Each artifact below a folder as its reader sees it, or that the reader refuses it."""
    found: Contents = {}
    for path in _walk(folder):
        is_run = path.suffix == ".trec"
        if is_run or (path.name == "manifest.json" and not _HIDDEN.match(path.parent.name)):
            read = _read_run if is_run else _read_artifact
            try:
                value = read(path if is_run else path.parent)
            except LmkError:
                value = _REFUSED
            name = path if is_run else path.parent
            found[f"{name.relative_to(folder)} (read)"] = value
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(folder):
        yield from (Path(above, name) for name in sorted([*folders, *files]))


def _read_run(path: Path) -> Any:
    from lmkcli.data.run import read_run

    return {query: (r.doc_ids, list(r.scores)) for query, r in read_run(path).rankings.items()}


def _read_artifact(folder: Path) -> Any:
    """What a reader finds in a folder; LmkError if it refuses the folder."""
    from lmkcli.artifact import manifest

    kind = manifest.read(folder).kind
    reader = _READERS.get(kind)
    return reader(folder) if reader else kind


def _read_tokens(folder: Path) -> Any:
    from lmkcli.store.tokens import Tokens

    tokens = Tokens(folder)
    if tokens.state.unfinished:
        return _REFUSED
    rows = [row for batch in tokens.rows(0, tokens.docs) for row in batch]
    return [(row.doc, row.ids, row.spans) for row in rows]


def _read_vectors(folder: Path) -> Any:
    from lmkcli.vectors.stored import Vectors

    vectors = Vectors(folder)
    found = {}
    for row, doc in enumerate(vectors.docs(np.arange(vectors.rows))):
        assert doc.id not in found, f"{doc.id} is in {folder} twice"
        found[doc.id] = (doc.text, vectors.at(np.array([row])).matrix())
    return found, vectors.collection_digest()


def _read_index(folder: Path) -> Any:
    from lmkcli.data.collection import Query
    from lmkcli.retrieval.open_settings import OpenSettings
    from lmkcli.retrieval.pipeline import open_index

    vectors = json.loads((folder / "manifest.json").read_text())["identity"]["family"] not in (
        "bm25",
        "lucene",
    )
    opened = open_index(folder, OpenSettings(dtype="fp32") if vectors else OpenSettings())
    ranking = opened.search([Query("q", tiny.sentence(3, 6))], 5).rankings["q"]
    return ranking.doc_ids, list(ranking.scores)


def _read_model(folder: Path) -> Any:
    from lmkcli.models.lookup import read_model
    from lmkcli.models.model_folder import TRAINED

    return read_model(str(folder)).pool if (folder / TRAINED).exists() else _REFUSED


_READERS: dict[str, Callable[[Path], Any]] = {
    "tokens": _read_tokens,
    "vectors": _read_vectors,
    "index": _read_index,
    "model": _read_model,
}


def _normal(path: Path) -> Any:
    """The content of a file without the facts of one process."""
    data = path.read_bytes()
    if path.name == "faiss.index":
        return len(data)  # threads decide about the order of edges
    if path.name in HISTORY or path.name == "vectors.index.seismic":
        return None  # Seismic draws the centres of its blocks
    if path.name == "files.json" or path.parent.name == "lucene":
        return None  # digests of files that differ in two builds; Lucene draws ids of its segments
    if path.name == "result.json" and path.parent.name.startswith("search-"):
        return None  # in a grid; a complete run is not searched again, so nothing is printed
    with contextlib.suppress(ValueError):  # half of a file
        if path.suffix == ".json":
            return _stable(json.loads(data))
        if path.suffix == ".jsonl":
            entries = [_stable(json.loads(line)) for line in data.splitlines()]
            again = [one == other and "run" in one for one, other in pairwise(entries)]
            return list(compress(entries, [True, *(not each for each in again)]))
    return data


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(each) for key, each in value.items() if key not in VOLATILE}
    return [_stable(each) for each in value] if isinstance(value, list) else value


def difference(found: Any, expected: Any, where: str = "") -> str:
    """The first difference between two contents; empty if there is none."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if extra := sorted(map(str, found.keys() - expected.keys())):
            return f"{where}: {extra[0]} is extra"
        if missing := sorted(map(str, expected.keys() - found.keys())):
            return f"{where}: {missing[0]} is missing"
        pairs = ((f"{where} {key}", found[key], value) for key, value in expected.items())
    elif isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        if len(found) != len(expected):
            return f"{where}: {len(found)} entries instead of {len(expected)}"
        both = zip(found, expected, strict=True)
        pairs = ((f"{where} [{n}]", *each) for n, each in enumerate(both))
    else:
        return (
            ""
            if _same(found, expected)
            else f"{where}: {str(found)[:90]} instead of {str(expected)[:90]}"
        )
    return next(filter(None, (difference(one, other, name) for name, one, other in pairs)), "")


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray | float) and not isinstance(found, str | bytes | None):
        one, other = np.asarray(found), np.asarray(expected)
        return one.shape == other.shape and bool(np.allclose(one, other, rtol=0, atol=1e-5))
    return type(found) is type(expected) and bool(found == expected)


# --- running one command --------------------------------------------------------------------------


class Done(NamedTuple):
    """The end of a process: its exit code, negative after a signal, its messages, and its moments."""

    code: int
    err: str
    moments: int
    seconds: float


class World:
    """A folder in which a case runs again and again, always from the same state.

    Each command is a forked child and the leader of a process group. This process itself runs no command, so
    it has no thread that a child would lose.
    """

    def __init__(self, root: Path, base: Path, case: Case) -> None:
        self.case, self.folder = case, root / "work"
        self._root, self._prepared, self._base = root, root / "prepared", base
        root.mkdir(exist_ok=True)
        ctypes.CDLL(None).prctl(
            36, 1
        )  # PR_SET_CHILD_SUBREAPER: orphans of a killed command are ours

    def prepare(self) -> None:
        """Run what comes before the case, keep that state, and run the case without a disturbance."""
        _copy(self._base, self.folder)
        for step in self.case.before:
            if isinstance(step, str):
                self.must(step.split())
            else:
                step(self.folder)
        _copy(self.folder, self._prepared)
        self.old = self.look(readable)
        self.undisturbed = self.must(self.case.words)
        self.expected = self.look(contents)

    def fresh(self) -> None:
        """Return to the state before the case."""
        if self.folder.exists():
            for path in self.folder.iterdir():  # the folder itself may be a mounted disk
                _remove(path)
        _copy(self._prepared, self.folder)

    def run(self, fatal: int = -1, seconds: float = PATIENCE, number: int = signal.SIGKILL) -> Done:
        """Run the case, with a signal at a moment, or killed after some seconds."""
        return self._run(self.case.words, seconds, Moments(fatal, number))

    def must(self, words: list[str]) -> Done:
        done = self._run(words, PATIENCE, Moments())
        assert done.code == 0, f"lmk {' '.join(words)}: exit code {done.code}\n{done.err}"
        return done

    def _run(self, words: list[str], seconds: float, moments: Moments) -> Done:
        start = time.monotonic()
        streams = [self._root / name for name in ("stdout", "stderr")]
        child = os.fork()
        if child == 0:
            _command(words, self.folder, moments, streams)
        code = _end(child, seconds)
        err = streams[1].read_text("utf-8", "replace")
        if code is None and seconds == PATIENCE:
            raise AssertionError(f"lmk {' '.join(words)} hangs: {err}")
        code = -signal.SIGKILL if code is None else code
        return Done(code, err, moments.passed, time.monotonic() - start)

    def look(self, what: Callable[[Path], Contents]) -> Contents:
        """Call `contents` or `readable` in a child, which may start threads."""
        report = self._root / "contents"
        child = os.fork()
        if child == 0:
            _quietly(
                lambda: report.write_bytes(pickle.dumps(what(self.folder))), self._root / "stderr"
            )
        assert _end(child, PATIENCE) == 0, (self._root / "stderr").read_text()
        found: Contents = pickle.loads(report.read_bytes())
        return found

    # What must hold after a disturbance.

    def check_readers(self) -> None:
        """Each reader refuses an artifact, or finds the old or the new one."""
        for name, found in self.look(readable).items():
            new = difference(found, self.expected.get(name, _REFUSED))
            assert (
                found == _REFUSED or not new or not difference(found, self.old.get(name, _REFUSED))
            ), f"{name} is neither refused, nor the old one, nor the new one: {new}"

    def check_completed(self, again: bool = True) -> None:
        """Everything is as without the disturbance, after the same command again unless it has ended well.

        A command may also refuse an output that is complete.
        """
        done = self.run() if again else None
        found = difference(self.look(contents), self.expected)
        refused = done and done.code == 3 and "exists" in done.err and not found
        assert not done or done.code == 0 or refused, f"then it ends with {done.code}: {done.err}"
        assert not found, f"after the same command{found}"

    def check_nothing_hidden(self) -> None:
        """A command that ended itself has removed its temporary files."""
        names = [Path(name).name for name in self.look(contents)]
        left = [name for name in names if _HIDDEN.match(name) and name != CLEARED]
        assert not left, f"{left[0]} is left after the end"

    def check_message(self, done: Done) -> None:
        """The message about a full disk names the space and a path; lmk grid has one for each failed cell."""
        grid = self.case.verb == "grid" and done.code == CheckFailed.exit_code
        assert grid or done.code == DataError.exit_code, (
            f"exit code {done.code}: {done.err[-1500:]}"
        )
        assert "Traceback" not in done.err, done.err[-1500:]
        last = done.err.strip().rpartition("\n")[2]
        assert " space" in last, done.err
        assert last.startswith("  " if grid else "error: "), done.err
        names = {*os.listdir(self.folder), *self.case.words}
        assert any(name in last for name in names), f"no path: {last}"


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _end(child: int, seconds: float) -> int | None:
    """Wait for the end of a process, then kill its group; its exit code, or None if it took too long."""
    with contextlib.suppress(OSError):
        os.setpgid(child, child)  # the child does the same; whoever is first
    descriptor = os.pidfd_open(child)
    ended = bool(select.select([descriptor], [], [], seconds)[0])
    os.close(descriptor)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _command(words: list[str], folder: Path, moments: Moments, streams: list[Path]) -> NoReturn:
    """Become a process of `lmk` with small parts, which counts its moments."""
    environment = {
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
        "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), "COLUMNS": "200",
    }  # fmt: skip

    def run() -> None:
        os.environ.update(environment)
        (folder / "tmp").mkdir(exist_ok=True)
        tempfile.tempdir = None  # read TMPDIR again
        os.chdir(folder)
        for number, path in enumerate(streams, 1):
            with open(path, "wb") as file:
                os.dup2(file.fileno(), number)
        # Processes of lmk grid are forked from this one: they have imported everything, and they count.
        context = multiprocessing.get_context("fork")
        context.set_forkserver_preload = lambda names: None  # type: ignore[attr-defined]
        multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment]
        # A few documents fill a part. The demo is about them.
        part_writer.PART_BYTES = tokens.BATCH_CHARACTERS = (
            PART if words[1] != "many.npy" else 1 << 20
        )
        demo.COLLECTION = demo.SLICE = demo.LONG_COLLECTION = "./small"
        demo.MODEL = demo.BASE_MODEL = "bert"
        sys.argv = ["lmk", *words]
        moments.watch()
        main.main()

    _quietly(run, streams[1])


def _quietly(call: Callable[[], object], log: Path) -> NoReturn:
    """Call in a forked child, and leave; an exception is in the log."""
    code: Any = 0
    try:
        os.setpgid(0, 0)
        call()
    except SystemExit as exit_:
        code = exit_.code or 0
    except BaseException:
        log.write_text(traceback.format_exc())
        code = 1
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


# --- sweeps ---------------------------------------------------------------------------------------


def make_base(name: str, bert: str) -> None:
    """Make a folder with the inputs and the artifacts that several cases read."""
    folder = Path(name)
    make_inputs(folder, Path(bert))
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root), folder, Case("", [], []))
        world.folder = folder
        for line in ARTIFACTS:
            world.must(line.split())


class Swept(NamedTuple):
    """The result of a sweep of one case.

    points: how many there are. tried: the number of those that disturbed the command. wrong: what was wrong,
    by point.
    """

    points: int
    tried: int
    wrong: dict[str, str]


# A moment, or a share of the time that the command takes. Several: of the command, then of its repetitions.
Point = Sequence[float]
Choice = Callable[[int], Iterable[Point]]  # the points to try, from the number of moments or pages


def kills(world: World, choose: Choice) -> Swept:
    """Kill a command at moments, or after some time, and complete it."""
    world.prepare()

    def disturb(point: Point) -> bool:
        world.fresh()
        codes = []
        for when in point:
            done = world.run(*_when(when, world.undisturbed))
            assert done.code in (0, -signal.SIGKILL), f"exit code {done.code}: {done.err}"
            codes.append(done.code)
            world.check_readers()
            if done.code == 0:
                break
        world.check_completed(again=done.code != 0)
        return any(codes)

    def in_time(point: Point) -> bool:
        """Kill a command that has ended before some time after a shorter time."""
        for _ in range(9):
            if disturb(point):
                return True
            point = [when if isinstance(when, int) else 0.7 * when for when in point]
        return False

    return _tried(world.undisturbed.moments, choose, in_time)


def _when(point: float, undisturbed: Done) -> tuple[int, float]:
    """The fatal moment, or the seconds before the kill."""
    return (point, PATIENCE) if isinstance(point, int) else (-1, point * undisturbed.seconds)


def stops(world: World, choose: Choice) -> Swept:
    """Send SIGTERM to a command at moments, and complete it."""
    world.prepare()

    def disturb(point: Point) -> bool:
        world.fresh()
        done = world.run(int(point[0]), number=signal.SIGTERM)
        assert done.code in (0, Stopped.exit_code), f"exit code {done.code}: {done.err}"
        assert done.code == 0 or "same command again" in done.err, done.err
        world.check_readers()
        world.check_completed(again=done.code != 0)
        return done.code != 0

    return _tried(world.undisturbed.moments, choose, disturb)


def disks(world: World, choose: Choice) -> Swept:
    """Run a command on a disk with room for a number of pages, then with room for all."""
    with Disk(world.folder) as disk:
        world.prepare()
        world.fresh()
        before = disk.used
        world.run()
        points = disk.used - before + SPARE

        def disturb(point: Point) -> bool:
            world.fresh()
            disk.resize(disk.used + int(point[0]))
            done = world.run()
            if done.code:
                world.check_message(done)
                world.check_readers()
            disk.resize(Disk.PAGES)
            if done.code:
                world.check_nothing_hidden()
            world.check_completed(again=done.code != 0)
            return done.code != 0

        def disturb_and_empty(point: Point) -> bool:
            try:
                return disturb(point)
            finally:
                disk.resize(Disk.PAGES)

        return _tried(points, choose, disturb_and_empty)


def _tried(points: int, choose: Choice, disturb: Callable[[Point], bool]) -> Swept:
    tried, wrong = 0, {}
    for point in choose(points):
        try:
            disturbed = disturb(point)
        except AssertionError as error:
            wrong[" ".join(map(str, point))], disturbed = str(error), True
        tried += disturbed
    return Swept(points, tried, wrong)


class Disk:
    """A small file system at a folder, for this process and its children alone.

    It is mounted in a mount namespace of this process. Without root, a user namespace permits that; it must
    be created while the process has a single thread.
    """

    PAGES = 64 << 20 >> 12

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def allowed() -> bool:
        """Whether this machine lets us mount a file system."""
        test = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        with contextlib.suppress(OSError):
            return subprocess.run(test, capture_output=True, check=False).returncode == 0
        return False

    def __enter__(self) -> "Disk":
        _own_mounts()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mount("-t", "tmpfs", "tmpfs", pages=self.PAGES)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @property
    def used(self) -> int:
        """The number of used pages."""
        found = os.statvfs(self.folder)
        return found.f_blocks - found.f_bfree

    def resize(self, pages: int) -> None:
        """Set the number of pages."""
        self._mount("-o", "remount", pages=pages)

    def _mount(self, *words: str, pages: int) -> None:
        size = ["-o", f"size={pages * PAGE}"]
        subprocess.run(["mount", *size, *words, str(self.folder)], check=True, capture_output=True)


def _own_mounts() -> None:
    """Give this process a mount namespace of its own, in a user namespace in which it is root."""
    user, group, libc = os.getuid(), os.getgid(), ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000 | 0x20000):  # CLONE_NEWUSER, CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "a mount namespace cannot be created")
    for name, text in (
        ("uid_map", f"0 {user} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"0 {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)


SWEEPS: dict[str, Callable[[World, Choice], Swept]] = {
    "kills": kills,
    "stops": stops,
    "disks": disks,
}


def drive(how: str, name: str, folder: str, base: str, choice: list[Any], report: str) -> None:
    """Sweep one case in a forked child; the result is in the file `report`.

    choice: ["some", count] for drawn points, ["block", number, of], or ["random", count, seed] for drawn
    moments and drawn times.
    """
    kind, *numbers = choice

    def choose(points: int) -> Iterable[Point]:
        if kind == "block":
            return ((point,) for point in range(numbers[0], points, numbers[1]))
        if kind == "some":
            count = min(numbers[0], points)
            return ((n,) for n in levels.rng(f"{how} {name}").sample(range(points), count))
        draw = random.Random(f"{numbers[1]} {name}")
        return _random_points(draw, points, numbers[0])

    found = SWEEPS[how](World(Path(folder), Path(base), cases()[name]), choose)
    Path(report).write_text(json.dumps(found))


def _random_points(draw: random.Random, moments: int, count: int) -> Iterator[Point]:
    """Kills at moments and at times; every fourth command is killed once more when it is repeated."""
    for _ in range(count if moments else 0):
        repeated = 1 + (draw.random() < 0.25)
        yield [draw.choice((draw.randrange(moments), draw.random())) for _ in range(repeated)]


def read_report(path: Path) -> Swept:
    """The result that `drive` wrote."""
    return Swept(*json.loads(path.read_text()))


# --- from a shell ---------------------------------------------------------------------------------


def main_line(how: str, prefix: str = "", count: str = "", seed: str = "0") -> None:
    """Sweep the cases with a prefix: all points, or `count` of each.

    `kills 1000 SEED` is a number of random kills of all cases.
    """
    from tests.forkserver import everything, preload

    preload([*everything(), "lmkcli.plugins.analysis.plots"])
    chosen = [case for case in cases() if prefix.isdigit() or case.startswith(prefix)]
    if how == "disks":
        chosen = [case for case in chosen if not case.endswith(".overwrite")]
    choices: dict[str, list[Any]] = dict.fromkeys(
        chosen, ["some", int(count)] if count else ["block", 0, 1]
    )
    if prefix.isdigit():
        choices = _spread(int(prefix), chosen, int(count or 0))
    with tempfile.TemporaryDirectory(prefix="lmk-sweep-") as name:
        root = Path(name)
        for call in (
            lambda: tiny.save(root / "bert", "bert"),
            lambda: make_base(root / "base", root / "bert"),
        ):
            child = os.fork()
            if child == 0:
                _quietly(call, root / "error")
            if os.waitpid(child, 0)[1]:
                raise SystemExit((root / "error").read_text())
        table: dict[str, Counter[str]] = {}
        broken = 0  # cases
        begun = time.monotonic()
        for done, (case, swept, error) in enumerate(_parallel(how, choices, root), 1):
            row = table.setdefault(case.partition(".")[0], Counter())
            extra = sum("extra" in text or "twice" in text for text in swept.wrong.values())
            row.update(points=swept.tried, extra=extra, lost=len(swept.wrong) - extra)
            minutes = (time.monotonic() - begun) / 60
            print(
                f"{done}/{len(choices)}, {minutes:.0f} min: {case}: {swept.points} points, "
                f"{swept.tried} tried {error}",
                flush=True,
            )
            for point, text in swept.wrong.items():
                print(f"    {case} {point}: {text[-800:]}", flush=True)
            broken += bool(error or swept.wrong)
    total = sum(table.values(), Counter())
    print(f"\n{'command':10} {how:>8} {'completed':>10} {'lost':>6} {'doubled':>8}")
    for verb, row in [*table.items(), ("all", total)]:
        completed = row["points"] - row["lost"] - row["extra"]
        print(f"{verb:10} {row['points']:8} {completed:10} {row['lost']:6} {row['extra']:8}")
    if broken:
        raise SystemExit(f"{broken} cases failed")


def _spread(total: int, names: list[str], seed: int) -> dict[str, list[Any]]:
    """A number of random kills, spread over the cases; at most FEW for those that take long."""
    names = [name for name in names if name not in READ_ONLY]
    random.Random(seed).shuffle(names)
    counts: Counter[str] = Counter()
    while total > counts.total():
        chosen = [name for name in names if name not in SLOW or counts[name] < FEW]
        counts.update(chosen[: total - counts.total()])
    return {name: ["random", count, seed] for name, count in counts.items()}


def _parallel(
    how: str, choices: dict[str, list[Any]], root: Path
) -> Iterator[tuple[str, Swept, str]]:
    """Sweep cases in two processes; the results as they come."""
    waiting, running = list(choices), {}
    while waiting or running:
        while waiting and len(running) < WORKERS:
            name = waiting.pop(0)
            paths = [root / f"{name}{suffix}" for suffix in ("", ".json", ".error")]
            child = os.fork()
            if child == 0:
                words = (str(paths[0]), str(root / "base"), choices[name], str(paths[1]))
                _quietly(partial(drive, how, name, *words), paths[2])
            running[child] = (name, *paths)
        child, status = os.wait()
        name, folder, report, error = running.pop(child)
        if status:
            yield name, Swept(0, 0, {}), error.read_text()[-2000:]
        else:
            yield name, read_report(report), ""
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    from tests import sweeps

    sweeps.main_line(*sys.argv[1:])
