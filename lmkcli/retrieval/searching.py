"""The search step: search the queries of a collection, and write the run with its manifest."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import RunFacts, RunIdentity, RunManifest
from lmkcli.data.byte_streams import open_stream
from lmkcli.data.collection import Query, open_collection
from lmkcli.data.run import Run, write_runs
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import Call, Note, Progress, mute
from lmkcli.retrieval.index import Index, unfindable
from lmkcli.system.atomic import atomic_file, make_folder
from lmkcli.system.hardware import anonymous_memory, release_memory
from lmkcli.system.output_streams import is_stream
from lmkcli.text.formatting import counted

QUERIES_AT_ONCE = 1024  # queries of one piece of a run

# Memory of exact search. A query has a buffer of 2k + SPARE candidates, see engines/exact/topk.py.
SPARE = 8192  # candidates: two blocks of 4096 rows
FIRST = 32  # queries of the first batch
WORK = 160_000_000  # bytes of a block of vectors, its scores and intermediates (measured with 384 dimensions)
# Bytes of a candidate: its row number (8), its score (4), masks and copies while a block is added and sorted.
# A search with k 1,000 and a limit of 845 MB used at most 697 MB, and up to 854 MB with 18 here.
_CANDIDATE = 30
_LINE = 200  # bytes of a hit in the run: its id, its score, and the line that is written


@dataclass
class MemoryBudget:
    """A limit, in bytes, for the anonymous memory of this process."""

    limit: int
    first: int = FIRST
    """The most queries of the first batch, before the model and the index have allocated their memory."""
    _batches: int = 0
    _proven: int = 0  # queries of a small batch that has fitted into memory

    def queries(self, k: int) -> int:
        """Return how many queries fit now. Raises DataError if not even one fits."""
        per_query = _CANDIDATE * (2 * k + SPARE) + _LINE * k
        release_memory()
        used = anonymous_memory()
        fit = (self.limit - used - WORK) // per_query
        # Earlier batches have freed memory that the allocator kept. A batch as small as one of them fits
        # into it, so a search that has started does not fail for lack of memory.
        fit = max(fit, self._proven)
        if fit < 1:
            raise DataError(
                f"a search of one query needs about {_mb(WORK + per_query)}; the program, the model and the "
                f"index use {_mb(used)} already, and --max-memory allows {_mb(self.limit)} in total; raise "
                "it, or lower -k"
            )
        self._batches += 1
        if self._batches == 1:
            return min(fit, self.first)
        self._proven = self._proven or min(fit, self.first)
        return fit


def parts(count: int, k: int, budget: MemoryBudget | None) -> Iterator[slice]:
    """Divide queries 0 … count - 1 into consecutive parts that fit in memory; one part without a budget."""
    done = 0
    while done < count:
        fit = count if budget is None else budget.queries(k)
        yield slice(done, min(done + fit, count))
        done += fit


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def repeated_id(queries: list[Query]) -> str:
    """Return the first id that several queries have; '' if none does."""
    numbers = Counter(query.id for query in queries)
    return next((name for name, times in numbers.items() if times > 1), "")


def queries_of(spelling: str, all_queries: bool, note: Note = mute) -> tuple[list[Query], int]:
    """Return the queries to run, and the number of queries that are left out because they have no
    judgements.

    Raises DataError for a collection without queries, or with a repeated query id.
    """
    collection = open_collection(spelling)
    everything = list(collection.queries())
    for line in collection.notes():
        note(line)
    if not everything:
        raise DataError(f"{spelling} has no queries")
    if repeated := repeated_id(everything):
        raise DataError(f"{spelling}: the query id {repeated!r} occurs twice; ids must be unique")
    if all_queries or not collection.has_qrels():
        return everything, 0
    judged = collection.judged_queries()
    if not judged:
        raise DataError(
            f"{spelling}: its qrels judge none of its queries; run all of them with --all-queries"
        )
    return judged, len(everything) - len(judged)


class Relevant(NamedTuple):
    """The relevant documents or chunks of the queries: their number, and those that cannot be found."""

    total: int = 0
    unfindable: tuple[str, ...] = ()

    def note(self, path: str) -> str:
        """Return a line about those that cannot be found; empty if there are none."""
        if not self.unfindable:
            return ""
        return (
            f"{len(self.unfindable):,} of {self.total:,} relevant chunks or documents cannot be found: "
            f"{path} does not contain {self.unfindable[0]}"
            f"{' and others' if len(self.unfindable) > 1 else ''}; use an index of the same "
            "collection with whole documents, and rank chunks (--level chunk) if chunks are judged"
        )


def relevant(index: Index, spelling: str, queries: list[Query]) -> Relevant:
    """Look for the relevant documents or chunks of the queries in the index.

    An encoding that is cut, or of another collection, lacks some of them, and no measure shows that.
    """
    collection = open_collection(spelling)
    if not collection.has_qrels():
        return Relevant()
    asked = {query.id for query in queries}
    named = (qrel for qrel in collection.qrels() if qrel.grade > 0 and qrel.query_id in asked)
    try:
        ids = [*dict.fromkeys(qrel.doc_id for qrel in named)]
    except DataError:  # a search of all queries needs no judgements, and lmk eval tells their fault
        return Relevant()
    return Relevant(len(ids), tuple(unfindable(index, ids)))


def search(  # noqa: PLR0913 - the search, and its reports
    index: Index,
    queries: list[Query],
    k: int,
    tag: str,
    progress: Progress,
    budget: MemoryBudget | None = None,
) -> Iterator[Run]:
    """Search all queries, and yield the run in pieces of QUERIES_AT_ONCE queries, or fewer for a budget.

    Raises DataError if not even one query fits in memory.
    """
    for first, batch in batches(queries):
        for part in parts(len(batch), k, budget):
            yield replace(index.search(batch[part], k), tag=tag)
            progress(first + part.stop, len(queries), "queries")


def batches(queries: list[Query]) -> Iterator[tuple[int, list[Query]]]:
    """Divide queries into batches of QUERIES_AT_ONCE, each with the number of its first query."""
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        yield first, queries[first : first + QUERIES_AT_ONCE]


def run_manifest(  # noqa: PLR0913 - the inputs of a run
    index: Index, spelling: str, queries: list[Query], k: int, call: Call, lacking: int = 0
) -> RunManifest:
    """Return the manifest of a run. Its identity is the index, the queries and the depth `k`."""
    digest = manifest.digest([[query.id, query.text] for query in queries])
    info = index.info
    return RunManifest(
        identity=RunIdentity(index=info.digest, search=info.search, queries=digest, k=k),
        facts=RunFacts(
            **manifest.environment(call),
            collection=open_collection(spelling).name,
            index=info.path,
            unfindable=lacking,
        ),
    )


def is_done(path: Path, wanted: RunManifest) -> bool:
    """Return whether `path` is already this run; a stream never is.

    Raises Mismatch if the file is another run, and DataError if the name of its manifest is taken by another
    file.
    """
    if is_stream(path):
        return False
    outputs.check_sidecar(path)
    if not (path.is_file() and outputs.sidecar(path).is_file()):
        return False
    lines = manifest.json_differences(read_manifest(path).identity, wanted.identity)
    if lines:
        raise Mismatch(
            f"{path} is a run with other settings (existing | requested):\n  "
            + "\n  ".join(lines)
            + "\nchoose another output, or --if-exists overwrite"
        )
    return True


def read_manifest(path: Path) -> RunManifest:
    """Read the manifest of a run. Raises DataError if it is missing or of another kind."""
    sidecar = outputs.sidecar(path)
    try:
        return manifest.read_file(sidecar, RunManifest)
    except FileNotFoundError:
        raise DataError(f"{path} has no manifest {sidecar.name} next to it") from None


def cut_note(cut: int, queries: int) -> str:
    """Return a line about queries that a model read only in part."""
    return (
        f"{cut:,} of {counted(queries, 'query', 'queries')} cut: longer than the limit for queries "
        "(--query-max-length of lmk encode)"
    )


def cut_pairs_note(cut: int) -> str:
    """Return a line about documents that a cross-encoder read only in part."""
    return (
        f"{counted(cut, 'pair')} of a query and a document cut: longer together than the limit of the "
        "cross-encoder"
    )


class RunCounts(NamedTuple):
    """Counts of a run: queries, lines, queries without a hit, documents without a score, and what was cut.

    cut: queries. cut_pairs: pairs of a query and a document.
    """

    queries: int = 0
    lines: int = 0
    without_hits: int = 0
    unscored: int = 0
    cut: int = 0
    cut_pairs: int = 0

    def add(self, run: Run) -> "RunCounts":
        """Return the sums of these counts and the counts of another piece."""
        hits = [len(ranking.doc_ids) for ranking in run.rankings.values()]
        cut_pairs = sum(run.cut_pairs.values())
        piece = RunCounts(
            len(hits), sum(hits), hits.count(0), run.unscored, len(run.cut), cut_pairs
        )
        return RunCounts(*map(sum, zip(self, piece, strict=True)))


def counts_of(path: Path, queries: int) -> RunCounts:
    """Count the lines of a run that `write` wrote for so many queries."""
    lines, answered = 0, set()
    with open_stream(path) as stream:
        for line in stream.file:
            lines += 1
            answered.add(line.partition(b" ")[0])
    facts = read_manifest(path).facts
    cut, cut_pairs = facts.cut_queries or 0, facts.cut_pairs or 0
    return RunCounts(queries, lines, queries - len(answered), cut=cut, cut_pairs=cut_pairs)


def write(path: Path, runs: Iterable[Run], described: RunManifest) -> RunCounts:
    """Write a run, piece by piece, and return its counts.

    The manifest, with the numbers of queries and pairs that were cut, is written just before the run gets its
    name. An interrupted process may leave a manifest without a run. Then the next search starts again. A run
    on a stream has no manifest.
    """
    stream = is_stream(path)
    if not stream:
        make_folder(path.parent)
        outputs.check_sidecar(path)
    counts = RunCounts()

    def counting() -> Iterator[Run]:
        nonlocal counts
        for run in runs:
            yield run
            counts = counts.add(run)
        if not stream:
            facts = structs.replace(
                described.facts, cut_queries=counts.cut, cut_pairs=counts.cut_pairs
            )
            with atomic_file(outputs.sidecar(path)) as temporary:
                text = manifest.as_text(structs.replace(described, facts=facts))
                temporary.write_text(text, "utf-8", "surrogatepass")

    write_runs(path, counting())
    return counts
