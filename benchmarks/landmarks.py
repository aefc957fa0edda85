"""One vector for a long text: compare landmark models with other poolers, windows, chunks and BM25.

    python benchmarks/landmarks.py path/to/collections -o out --model LMK=lmk-1,lmk-2 CLS=cls-1,cls-2 \\
        --against LMK:CLS

A model is a label and its folder, or the folders of several seeds. Every figure comes from `lmk encode`,
`index`, `search` and `eval`; the script prints these commands. Runs and vectors stay in the output folder,
with a log (scores.jsonl) from which `lmk repro` reproduces them. Existing results are not computed again.
Models are identified by the digest of their weights, so a changed model is evaluated as a new one.
Writes table.md (scores with 95 % bootstrap intervals over queries; for several seeds, the mean for each
query) and an SVG for each long collection: the scores over the evaluated length (extra `plot`).
"""

import argparse
import io
import json
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lmkcli import catalog
from lmkcli.cli import main as command
from lmkcli.evaluation.compare import compare
from lmkcli.models.lookup import read_model

HIDDEN = "haystack,docs=200,distractors=19,from=scifact"
LONG = ("peps", "qmsum:official-test", "squad-articles", "stdlib/modules", HIDDEN)
SHORT = ("scifact", "cranfield", "stdlib/functions", "xquad-en")
MEASURE = "nDCG@10"
POOLERS_OF_CHUNKS = ("lmk", "multicls")
LEXICAL, GRANULARITY = "BM25", "granularity"
FUSIONS = {"rrf": "rrf", "linear": "linear:0.5,0.5"}
PerQuery = dict[str, float]


class System(NamedTuple):
    """One row of a table: a way to make vectors of documents."""

    label: str
    model: str = ""  # empty for BM25
    flags: tuple[str, ...] = ()
    length: int = 0  # evaluated length of a point of a curve; 0 for other rows
    fused: bool = False  # also evaluate the fusion with BM25

    @property
    def folder(self) -> str:
        """Name of the output folder; it changes with the model's weights and the flags."""
        return slug(" ".join([digest(self.model), *self.flags])) if self.model else LEXICAL.lower()


def slug(text: str) -> str:
    """Turn a text into a folder name."""
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())


@cache
def digest(model: str) -> str:
    """Return the model's name with eight digits of the digest of its weights."""
    folder = read_model(model)
    return f"{folder.path.name}-{folder.weights_digest[:8]}"


class Bench:
    """Runs lmk in one folder; skips existing results."""

    def __init__(self, collections: Path, folder: Path) -> None:
        self.collections, self.folder = collections, folder

    def scores(self, system: System, collection: str) -> PerQuery:
        """Map each query to its nDCG@10."""
        return self._scored(self._run(system, collection))

    def fused(self, system: System, collection: str, fusion: str) -> PerQuery:
        """Score the fusion of the system's run with that of BM25."""
        dense, lexical = self._run(system, collection), self._run(System(LEXICAL), collection)
        run = dense.with_suffix(f".{fusion}.trec")
        if not run.exists():
            fuse = ("--with", str(lexical), "--fuse", FUSIONS[fusion], "-k", "100")
            lmk("search", str(dense), self._spelling(collection), *fuse, "-o", str(run))
        return self._scored(run)

    def _run(self, system: System, collection: str) -> Path:
        whole, _, split = collection.partition(":")
        made = self.folder / slug(whole) / system.folder
        run = made.with_name(f"{made.name}.{split}.trec" if split else f"{made.name}.trec")
        if run.exists():
            return run
        spelling = self._spelling(collection)
        if system.model:
            lmk("encode", spelling, "-m", system.model, *system.flags, "-o", str(made))
        else:
            lmk("index", spelling, "--kind", "bm25", "-o", str(made))
        lmk("search", str(made), spelling, "-k", "100", "-o", str(run))
        return run

    def _spelling(self, collection: str) -> str:
        options, source, name = collection.rpartition("from=")
        there = (self.collections / name.partition(":")[0]).is_dir()
        return options + source + (str(self.collections / name) if there else name)

    def _scored(self, run: Path) -> PerQuery:
        kept = run.with_suffix(".json")
        if not kept.exists():
            log = ("--log", str(self.folder / "scores.jsonl"))
            printed = lmk("eval", str(run), "-m", MEASURE, "--per-query", "--json", *log)
            rows = json.loads(printed)
            kept.write_text(json.dumps({row["query"]: row[MEASURE] for row in rows}))
        scores: PerQuery = json.loads(kept.read_text())
        return scores


def lmk(*words: str) -> str:
    """Print one command, run it, and return its output.

    It runs in this process, because a start takes as long as a small step.
    """
    print("$", shlex.join(["lmk", *words]), file=sys.stderr, flush=True)
    sys.argv = ["lmk", "-q", *words]  # manifests record this command line
    with redirect_stdout(io.StringIO()) as printed:
        try:
            command.main()
        except SystemExit as left:
            if left.code:
                raise
    return printed.getvalue()


def baselines(model: str) -> list[System]:
    """Return the systems of the untrained model, without training on landmarks."""
    chunks = ("--unit", "chunk", "--gran", "200", "--window", "chunk", "--max-length", "256")
    landmarks = ("--pool", "lmk", "--gran", "64", "--max-length", "512")
    return [
        System(LEXICAL),
        System("untrained, 256 positions", model, ("--max-length", "256"), 256),
        System("untrained, 512 positions", model, ("--max-length", "512"), 512),
        System("untrained, landmarks every 64, 512 positions", model, landmarks),
        System("untrained, average of windows of 256", model, ("--window", "256"), fused=True),
        System("untrained, average of windows of 512", model, ("--window", "512"), fused=True),
        System("untrained, MaxP over chunks of 200", model, chunks, fused=True),
    ]


def trained(label: str, model: str, args: argparse.Namespace, long: bool) -> list[System]:
    """Return a model at every length and in windows.

    For poolers of chunks, add every granularity at one length and in windows.
    """
    folder = read_model(model)
    # The tokenizer may still have the maximum length of the model before its extension.
    reach = max(folder.positions or 0, folder.max_length or 0)
    fits = [length for length in args.lengths if length <= reach]
    lengths = fits if long and fits else args.lengths[:1]
    made = [
        System(f"{label}, {n}", model, ("--max-length", str(n)), n, n == max(lengths))
        for n in lengths
    ]
    windows = args.windows if long else []
    made += [
        System(f"{label}, windows of {n}", model, ("--window", str(n)), fused=True) for n in windows
    ]
    if folder.pool in POOLERS_OF_CHUNKS:
        longest = max([n for n in lengths if n <= args.grans_at], default=lengths[0])
        for gran in args.grans:
            flags = ("--pool", folder.pool, "--gran", str(gran), "--max-length", str(longest))
            made.append(System(f"{label}, {longest}, {GRANULARITY} {gran}", model, flags))
            for n in windows:
                flags = ("--pool", folder.pool, "--gran", str(gran), "--window", str(n))
                made.append(System(f"{label}, windows of {n}, {GRANULARITY} {gran}", model, flags))
    return made


class Table:
    """Results: row -> collection -> the scores of each query, for every seed."""

    def __init__(self) -> None:
        self._seeds: dict[str, dict[str, list[PerQuery]]] = defaultdict(lambda: defaultdict(list))
        self.curves: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(dict)

    def add(self, row: str, collection: str, scores: PerQuery) -> None:
        """One run."""
        self._seeds[row][collection].append(scores)

    def rows(self) -> list[str]:
        """Return the row names in the order of adding."""
        return list(self._seeds)

    def scores(self, row: str, collection: str) -> PerQuery:
        """Return the mean over the seeds for each query; empty without results."""
        seeds = self._seeds[row].get(collection, [])
        return {q: sum(seed[q] for seed in seeds) / len(seeds) for q in seeds[0]} if seeds else {}

    def spread(self, row: str, collection: str) -> str:
        """Return the scores of the seeds, if there are several."""
        seeds = self._seeds[row].get(collection, [])
        return ", ".join(f"{mean(seed):.3f}" for seed in seeds) if len(seeds) > 1 else ""


def mean(scores: Mapping[str, float]) -> float:
    """Average over the queries."""
    return sum(scores.values()) / len(scores)


def cell(scores: PerQuery) -> str:
    """Format a score and its 95 % interval."""
    if not scores:
        return ""
    low, high = compare(dict.fromkeys(scores, 0.0), scores).interval
    return f"{mean(scores):.3f} [{low:.3f}, {high:.3f}]"


def markdown(table: Table, collections: list[str], rows: list[str]) -> Iterator[str]:
    """Yield the lines of a table of scores, without empty rows."""
    if collections and rows:
        yield f"| {MEASURE} | " + " | ".join(collections) + " |"
        yield "|---|" + "---:|" * len(collections)
    for row in rows:
        cells = [cell(table.scores(row, collection)) for collection in collections]
        if any(cells):
            yield f"| {row} | " + " | ".join(cells) + " |"


def differences(table: Table, collections: list[str], pair: str) -> Iterator[str]:
    """Yield the lines of a table of tests: the first model minus the second, at every common length."""
    first, second = pair.split(":")
    yield f"| {first} minus {second} | difference | 95 % interval | wins/ties/losses | p (t-test) | seeds |"
    yield "|---|---:|---:|---:|---:|---|"
    for collection in collections:
        for row in table.rows():
            label, comma, rest = row.partition(",")
            scores, other = (
                table.scores(row, collection),
                table.scores(second + comma + rest, collection),
            )
            if label != first or not scores or not other:
                continue
            found = compare(other, scores)
            low, high = found.interval
            spreads = [table.spread(each, collection) for each in (row, second + comma + rest)]
            seeds = " / ".join(filter(None, spreads))
            yield (
                f"| {collection},{rest} | {found.difference:+.4f} | [{low:+.4f}, {high:+.4f}] | "
                f"{found.wins}/{found.ties}/{found.losses} | {found.t_test:.4f} | {seeds} |"
            )


def tables(table: Table, args: argparse.Namespace) -> str:
    """Format the scores of long and of short collections, the same by granularity, and the tests."""
    plain = [row for row in table.rows() if GRANULARITY not in row]
    finer = [row for row in table.rows() if GRANULARITY in row]
    long = [collection for collection in args.collections if collection not in SHORT]
    short = [collection for collection in args.collections if collection in SHORT]
    parts = [markdown(table, of, rows) for rows in (plain, finer) for of in (long, short)]
    parts += [differences(table, args.collections, pair) for pair in args.against]
    return "\n\n".join(filter(None, ("\n".join(part) for part in parts))) + "\n"


def measure(bench: Bench, args: argparse.Namespace) -> Table:
    """Run all systems, collection by collection."""
    table = Table()
    models = {label: paths.split(",") for label, _, paths in (m.partition("=") for m in args.model)}
    for collection in args.collections:
        for system in baselines(args.base) if args.base != "none" else []:
            fill(table, bench, system, collection)
        for label, paths in models.items():
            for path in paths:
                for system in trained(label, path, args, collection not in SHORT):
                    fill(table, bench, system, collection)
    return table


def fill(table: Table, bench: Bench, system: System, collection: str) -> None:
    """Add the row of one system, those of its fusions with BM25, and its points on the curve."""
    scores = bench.scores(system, collection)
    table.add(system.label, collection, scores)
    for fusion in FUSIONS if system.fused and collection not in SHORT else ():
        row = f"{system.label} + BM25 ({fusion})"
        table.add(row, collection, bench.fused(system, collection, fusion))
    if system.length:
        points = table.curves[collection].setdefault(system.label.rpartition(",")[0], [])
        points[:] = [point for point in points if point[0] != system.length]
        points.append((system.length, mean(table.scores(system.label, collection))))


def main() -> None:
    """Write the tables and the curves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="the folder of the collections")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", nargs="+", default=[], metavar="LABEL=FOLDER[,FOLDER…]")
    parser.add_argument("--base", default="minilm", help="the untrained model, or none")
    parser.add_argument("--against", nargs="+", default=[], metavar="LABEL:LABEL")
    parser.add_argument("--collections", nargs="+", default=[*LONG, *SHORT])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096])
    parser.add_argument("--windows", nargs="*", type=int, default=[512])
    parser.add_argument("--grans", nargs="*", type=int, default=[32, 64, 128, 256])
    parser.add_argument("--grans-at", type=int, default=2048, metavar="LENGTH")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    table = measure(Bench(args.folder, args.output), args)
    (args.output / "table.md").write_text(tables(table, args))
    print(tables(table, args), end="")
    draw = catalog.PLOTS.load("curve")
    for collection, curves in table.curves.items():
        if any(len(points) > 1 for points in curves.values()):
            file = args.output / f"landmarks-{slug(collection)}.svg"
            draw(curves, "evaluated length (positions)", MEASURE, file)


if __name__ == "__main__":
    main()
