"""Record what `lmk` command lines do, and compare a later state of the code with the record.

    python tests/golden.py record FILE.json            # before a refactoring
    python tests/golden.py compare FILE.json           # after it; exit code 1 if anything differs
    python tests/golden.py compare FILE.json NEW.json  # two records, without running anything
    python tests/golden.py list

`--only PATTERN` selects cases by name, in which `*` matches anything. `--no-stderr` ignores wording: stderr
and stdout that is not JSON. The cases are in golden_cases.py.

Every command line runs in a forked child of one process that has imported everything, in a folder of
its own with the same small inputs. Recorded are the exit code, stdout, stderr, the files written, and
the contents of the files: vectors, runs, manifests and logs. Of an index, the hits of a search are recorded.
"""

import argparse
import difflib
import fcntl
import fnmatch
import hashlib
import importlib
import json
import os
import pkgutil
import re
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # this checkout's lmkcli, and tests as a package

from tests.golden_cases import GROUPS, INPUTS, SETTINGS, Case, make_sources  # noqa: E402

Json = Any
SHOWN = 24  # lines of a difference that are printed
STAMP = 1_700_000_000  # seconds; when all sources were changed, as far as commands can see


# --- running command lines ------------------------------------------------------------------------


class Done(NamedTuple):
    """The exit code and the output of one command line."""

    code: int
    out: str
    err: str


class Sandbox:
    """A temporary folder: `work` is where commands run, `saved` a copy of the inputs, `home` the caches."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.saved = root, root / "work", root / "saved"
        self.home, self.tmp = root / "home", root / "tmp"

    def reset(self) -> None:
        """Give the next case the inputs and empty caches. Times of files stay the same."""
        for folder in (self.work, self.home, self.tmp):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        if self.saved.exists():
            shutil.copytree(self.saved, self.work, dirs_exist_ok=True, symlinks=True)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """The variables of every command: nothing of the user's own, one thread, no network."""
        return {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "HF_HOME": str(self.home / "cache" / "huggingface"),
            "IR_DATASETS_HOME": str(self.home / "ir_datasets"),
            "TMPDIR": str(self.tmp),
            **SETTINGS,
            **more,
        }

    def lmk(self, case: Case) -> Done:
        """Run the command line of a case in a forked child."""
        code, out, err = self.fork(lambda: _main(case.line), case.env, case.stdin)
        return Done(code, out, err)

    def fork(self, call: Callable[[], None], env: dict[str, str], stdin: str = "") -> Done:
        """Run `call` in a child with its own streams, folder and environment."""
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin.encode())
            given.seek(0)
            child = os.fork()
            if child == 0:
                for number, file in enumerate((given, out, err)):
                    os.dup2(file.fileno(), number)
                os.chdir(self.work)
                variables = self.environment(env)
                os.environ.clear()
                os.environ.update(variables)
                tempfile.tempdir = None  # TMPDIR is read again
                _leave(call)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
            return Done(code, *texts)


def _main(line: str) -> None:
    from lmkcli.cli import main

    sys.argv = ["lmk", *shlex.split(line)]
    main.main()


def _leave(call: Callable[[], None]) -> None:
    """Run `call` and end this process with its exit code."""
    code: Any = 0
    try:
        call()
    except SystemExit as left:
        code = left.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def preload() -> None:
    """Import everything that commands import, so that a forked child starts at once."""
    import lmkcli

    names = [
        found.name for found in pkgutil.walk_packages(lmkcli.__path__, "lmkcli.", lambda _: None)
    ]
    names += [
        "bm25s",
        "faiss",
        "matplotlib.pyplot",
        "peft",
        "pydantic",
        "pytrec_eval",
        "scipy.stats",
        "typer._adapters",
    ]
    names += [
        f"transformers.models.{name}.modeling_{name}"
        for name in ("bert", "modernbert", "xlm_roberta", "qwen2")
    ]
    sys.modules["jnius"] = None  # type: ignore[assignment]  # importing it starts Java, which no fork survives
    for name in names:
        if name != "lmkcli.irds":  # importing it registers names with ir_datasets
            with suppress(ImportError):
                importlib.import_module(name)
    del sys.modules["jnius"]
    with suppress(
        ImportError, AttributeError
    ):  # a table that transformers makes for its first model, in 0.7 s
        importlib.import_module(
            "transformers.conversion_mapping"
        ).get_checkpoint_conversion_mapping("bert")


def prepare(sandbox: Sandbox) -> None:
    """Make the inputs of all cases: models, collections and files, then artifacts by command lines."""
    sandbox.reset()
    done = sandbox.fork(make_sources, {})
    if done.code:
        sys.exit(f"the sources cannot be made:\n{done.err}")
    stamp(sandbox.work, {}, STAMP)
    for line in INPUTS:
        done = sandbox.lmk(Case(line))
        if done.code:
            sys.exit(f"lmk {line}: exit code {done.code}\n{done.out}{done.err}")
    shutil.copytree(sandbox.work, sandbox.saved, symlinks=True)


# --- recording ------------------------------------------------------------------------------------


def record(only: list[str]) -> dict[str, Json]:
    """Run the selected cases; returns what each did, by name."""
    wanted = [(name, case) for name, case in cases() if selected(name, only)]
    if not wanted:
        sys.exit("no case has such a name")
    start = time.monotonic()
    os.environ.update(SETTINGS)
    with exclusive(Path(tempfile.gettempdir()).resolve() / "lmk-golden") as root:
        sandbox = Sandbox(root)
        os.environ.update(MPLCONFIGDIR=str(root / "matplotlib"))
        preload()
        prepare(sandbox)
        ready = time.monotonic()
        print(f"inputs made in {ready - start:.0f} s", file=sys.stderr)
        records = {}
        for name, case in wanted:
            begun = time.monotonic()
            records[name] = run(sandbox, case)
            if failed := records[name]["before"]:
                print(f"{name}: a step before it failed: {failed[0]}", file=sys.stderr)
            taken = time.monotonic() - begun
            if taken > 3 or "-v" in sys.argv:
                print(f"{name}: {taken:.1f} s", file=sys.stderr)
    print(f"{len(records)} command lines in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return records


@contextmanager
def exclusive(root: Path) -> Iterator[Path]:
    """An empty folder that one recording uses at a time: some digests depend on its name."""
    with open(f"{root}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another recording uses {root}; waiting", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)


def run(sandbox: Sandbox, case: Case) -> Json:
    """Run one case after its preparation; returns its record."""
    plain = Plain(sandbox.root)
    sandbox.reset()
    failed = []
    for step in case.before:
        if isinstance(step, str):
            done = sandbox.lmk(Case(step, env=case.env))
            if done.code:
                failed.append(f"lmk {step}: exit code {done.code}: {plain.text(done.err)}")
        else:
            earlier = snapshot(sandbox.work)
            step(sandbox.work)
            stamp(sandbox.work, earlier, STAMP + 1)
    before = snapshot(sandbox.work)
    done = sandbox.lmk(case)
    after = snapshot(sandbox.work)
    files = {
        "new": sorted(after.keys() - before.keys()),
        "changed": sorted(
            name for name in after.keys() & before.keys() if after[name] != before[name]
        ),
        "removed": sorted(before.keys() - after.keys()),
    }
    return {
        "command": f"lmk {case.line}",
        "before": failed,
        "code": done.code,
        "stdout": _stdout(done.out, plain),
        "stderr": plain.text(done.err).splitlines(),
        "files": {
            key: [plain.name(name) for name in names] for key, names in files.items() if names
        },
        "digests": digests(sandbox, [*files["new"], *files["changed"]], case, plain),
    }


def _stdout(text: str, plain: "Plain") -> Json:
    """The parsed value if the text is JSON, else its lines."""
    try:
        return {"json": plain.value(json.loads(text))}
    except ValueError:
        return {"text": plain.text(text).splitlines()}


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Each file below `folder` by its relative name, with values that change when it is written."""
    files: dict[str, tuple[int, int, int]] = {}
    for path in folder.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            facts = path.lstat()
            files[str(path.relative_to(folder))] = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
    return files


def stamp(folder: Path, earlier: dict[str, tuple[int, int, int]], time: int) -> None:
    """Set the time of new and changed files: artifacts record it of their collections."""
    for name, facts in snapshot(folder).items():
        if earlier.get(name) != facts:
            os.utime(folder / name, (time, time))


class Plain:
    """Removes from output what differs between two runs: folders, times, rates, process ids."""

    WORDS = (
        (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?"), "<time>"),
        (re.compile(r"(?<![\w.])\d[\d,.]*( ?k| ?M)? \w+/s\b"), "<rate>"),
        (re.compile(r"(?<![\w.])\d[\d,.]* ?(ms|s|seconds|min|minutes|h|hours)(?![\w/])"), "<duration>"),
        (re.compile(r"\[\d+, \d{19}\]"), "<stamp>"),
        (re.compile(r"\b(process|pid|PID) \d+"), r"\1 <number>"),
        (re.compile(r"lmk-[a-z]+-[a-z0-9_]{8}\b"), "<folder>"),
        (re.compile(r"\d[\d.,]* [kMGT]?B free"), "<size> free"),
        (re.compile(r"tmp[a-z0-9_]{8}\b"), "<tmp>"),
        (re.compile(r"(tokens_per_second:|memory:?) +[\d.]+( [kMG]?B)?"), r"\1 <varies>"),
    )  # fmt: skip
    VARY = re.compile(
        r"seconds|per.second|/s$|memory|"
        r"^(time|made|lmk|python|packages|versions|machine|system|pid|stamp|free|faiss)$"
    )
    BOX = re.compile("[\u2500-\u257f]+")

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def text(self, text: str) -> str:
        """Normalise text; frames around messages and the lines of a traceback are left out."""
        text = (
            text.replace(f"{self.root}/work", "<work>")
            .replace(self.root, "<root>")
            .replace(str(ROOT), "<lmk>")
        )
        text = self.BOX.sub(" ", text)
        text = re.sub(r'(?m)^ +File ".*\n(^ {4,}.*\n)*', "", text)
        for pattern, instead in self.WORDS:
            text = pattern.sub(instead, text)
        lines = (re.sub(r"  +", "  ", line).rstrip() for line in text.splitlines())
        return "\n".join(line for line in lines if line)

    def name(self, name: str) -> str:
        """Normalise the name of a file."""
        return re.sub(r"lmk-[a-z]+-[a-z0-9_]{8}\b", "<folder>", name)

    def value(self, value: Json, digits: int = 4) -> Json:
        """Normalise a JSON value: floats are rounded, values that vary are left out."""
        if isinstance(value, dict):
            return {
                self.text(key): "<varies>" if self.VARY.search(key) else self.value(each, digits)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self.value(each, digits) for each in value]
        if isinstance(value, float):
            return _rounded(value, digits)
        return self.text(value) if isinstance(value, str) else value


def _rounded(value: float, digits: int = 4) -> float | str:
    """A float that JSON can hold; values far from 1 keep as many significant digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return (
        float(f"{value:.{digits}g}")
        if abs(value) < 0.01 or abs(value) >= 1000
        else round(value, digits)
    )


# --- digests of files -----------------------------------------------------------------------------


def digests(sandbox: Sandbox, names: list[str], case: Case, plain: Plain) -> dict[str, Json]:
    """The contents of the written files in a form that two equal runs share, by name."""
    found: dict[str, Json] = {}
    for name in names:
        with suppress(OSError, ValueError):  # a damaged file has no digest; its name is recorded
            digest = _digest(sandbox.work / name, plain)
            if digest is not None:
                found[plain.name(name)] = digest
    for folder in _indexes(sandbox.work, names):
        if case.probe:
            found[f"{folder}: hits"] = _hits(sandbox, folder, case)
    return found


def _digest(path: Path, plain: Plain) -> Json:
    """What is recorded of one file; None for files that are recorded by name only."""
    kind = path.suffix
    if path.name == "manifest.json" or path.name.endswith((".trec.json", ".svg.json", ".png.json")):
        return _manifest(path, plain)
    if path.name == "docs.parquet":
        return _table(path)
    if kind == ".npy":
        return _array(path)
    if kind == ".safetensors":
        return _weights(path)
    if path.name.endswith((".trec", ".trec.gz")):
        return _run(path)
    if kind == ".jsonl":
        return [_entry(json.loads(line), plain) for line in path.read_text().splitlines()]
    if path.name in ("generation.json", "training.json"):
        return plain.value(json.loads(path.read_text()))
    if path.name == "log.txt":  # wording: what a step of a grid printed
        return None
    if path.name.endswith((".csv", ".tex", ".md", ".yml", ".txt", ".tsv")):
        return hashlib.sha256(plain.text(path.read_text()).encode()).hexdigest()[:16]
    return None


def _manifest(path: Path, plain: Plain) -> Json:
    """Its kind, its identity, and the recorded operation."""
    read = json.loads(path.read_text())
    operation = read.get("facts", {}).get("operation")
    return plain.value(
        {"kind": read.get("kind"), "identity": read.get("identity"), "operation": operation}, 6
    )


def _entry(entry: Json, plain: Plain) -> Json:
    """A line of a log. Of a score log only the run, scores and coverage."""
    if isinstance(entry, dict) and "lineage" in entry:
        kept = ("run", "run_sha256", "qrels", "qrels_digest", "scores", "intervals", "coverage")
        entry = {key: entry.get(key) for key in kept}
    return plain.value(entry)


def _table(path: Path) -> Json:
    """The number of rows, the columns, and a digest of ids and counts."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    columns = [
        name
        for name in ("id", "tokens", "lost", "vectors", "hash", "title", "text")
        if name in table.column_names
    ]
    rows = table.select(columns).to_pylist()
    return {
        "rows": table.num_rows,
        "columns": sorted(table.column_names),
        "sha256": _sha(repr(rows).encode()),
    }


def _array(path: Path) -> Json:
    """Shape, dtype and a digest of the values; floats are rounded to 1e-4."""
    import numpy as np

    array = np.load(path, allow_pickle=False)
    facts = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype.kind == "f":
        array = np.round(array.astype(np.float64), 4) + 0.0  # + 0.0 removes the sign of zero
        facts["first"] = [float(value) for value in array.ravel()[:3]]
    return {**facts, "sha256": _sha(np.ascontiguousarray(array).tobytes())}


def _weights(path: Path) -> Json:
    """The norm of each tensor of a model."""
    from safetensors.numpy import load_file

    tensors = load_file(path)
    return {
        name: round(float((value.astype("float64") ** 2).sum() ** 0.5), 4)
        for name, value in sorted(tensors.items())
    }


def _run(path: Path) -> list[str]:
    """The first five columns of each line; scores are rounded to 4 decimals."""
    import gzip

    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = []
    for line in data.decode().splitlines():
        query, zero, document, rank, score, *_ = line.split()
        lines.append(f"{query} {zero} {document} {rank} {float(score) + 0.0:.4f}")
    return lines


def _indexes(work: Path, names: list[str]) -> list[str]:
    """The folders of the indexes among the written files."""
    folders = {name.rpartition("/")[0] for name in names if name.endswith("built.json")}
    return sorted(folder for folder in folders if (work / folder / "manifest.json").exists())


def _hits(sandbox: Sandbox, folder: str, case: Case) -> Json:
    """The three best documents of each query of `small`."""
    run = sandbox.root / "probe.trec"
    for path in (run, run.with_name("probe.trec.json")):
        path.unlink(missing_ok=True)
    done = sandbox.lmk(Case(f"-q search {shlex.quote(folder)} {case.probe} -k 3 -o {run}"))
    return _run(run) if done.code == 0 else f"exit code {done.code}"


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# --- comparing ------------------------------------------------------------------------------------


def compare(old: dict[str, Json], new: dict[str, Json], wording: bool) -> int:
    """Print the differences of each command; returns how many commands differ."""
    differ = 0
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            print(f"== {name}: only in the {'new' if name in new else 'old'} record\n")
            differ += 1
            continue
        lines = list(differences(old[name], new[name], wording))
        if lines:
            differ += 1
            print(f"== {name}\n   {new[name]['command']}")
            print("\n".join(f"   {line}" for line in lines), end="\n\n")
    print(f"{differ} of {len(old.keys() | new.keys())} command lines differ")
    return differ


def differences(old: Json, new: Json, wording: bool) -> Iterator[str]:
    """The lines that describe how two records of a command differ."""
    for part in ("command", "before", "code", "stdout", "stderr", "files", "digests"):
        one, other = old[part], new[part]
        if not wording:
            if part == "stderr":
                continue
            if part == "stdout" and "text" in one and "text" in other:
                continue
        if one == other:
            continue
        lines = list(_lines(one, other))
        yield f"{part}:"
        yield from (f"  {line}" for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"  … and {len(lines) - SHOWN} lines more"


def _lines(one: Json, other: Json) -> Iterator[str]:
    """Removed lines with `-`, added ones with `+`, each with its place in the JSON value."""
    before, after = list(_flat(one)), list(_flat(other))
    for line in difflib.unified_diff(before, after, lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _flat(value: Json, place: str = "") -> Iterator[str]:
    """Each leaf of a JSON value as `place: value`; the lines of a text as they are."""
    if isinstance(value, dict) and value:
        for key, each in sorted(value.items()):
            yield from _flat(each, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and value:
        for each in value:
            yield from _flat(each, f"{place}[]")
    else:
        yield f"{place}: {json.dumps(value, ensure_ascii=False)}"


# --- the command line of this script --------------------------------------------------------------


def cases() -> Iterator[tuple[str, Case]]:
    """All cases with their names, such as `encode/resume`."""
    for group, members in GROUPS.items():
        for name, case in members.items():
            yield f"{group}/{name}", case if isinstance(case, Case) else Case(case)


def selected(name: str, only: list[str]) -> bool:
    """Whether a name matches one of the patterns, or there are none."""
    return not only or any(fnmatch.fnmatch(name, pattern) for pattern in only)


def main() -> None:
    """Parse the arguments and do what they ask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare", "list"))
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.json")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="cases of this name; repeat it",
    )
    parser.add_argument(
        "--no-stderr", action="store_true", help="ignore stderr and stdout that is not JSON"
    )
    parser.add_argument("-v", action="store_true", help="print the time of each case")
    given = parser.parse_args()
    if given.action == "list":
        for name, case in cases():
            if selected(name, given.only):
                print(f"{name:32} lmk {case.line}")
        return
    if not given.files:
        parser.error("name a file")
    if given.action == "record":
        given.files[0].write_text(
            json.dumps(record(given.only), indent=1, ensure_ascii=False) + "\n"
        )
        return
    old = {name: each for name, each in _read(given.files[0]).items() if selected(name, given.only)}
    new = _read(given.files[1]) if given.files[1:] else record(given.only)
    new = {name: each for name, each in new.items() if selected(name, given.only)}
    # JSON gives both the same types
    sys.exit(1 if compare(old, json.loads(json.dumps(new)), not given.no_stderr) else 0)


def _read(path: Path) -> dict[str, Json]:
    records: dict[str, Json] = json.loads(path.read_text())
    return records


if __name__ == "__main__":
    main()
