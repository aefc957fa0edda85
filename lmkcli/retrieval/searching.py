"""The search step: queries of a collection through an index to a run with its manifest."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from lmkcli import manifest
from lmkcli.data.collection import Query, open_collection
from lmkcli.data.run import Run, write_runs
from lmkcli.errors import DataError, Mismatch
from lmkcli.manifest import Manifest
from lmkcli.progress import Call, Progress
from lmkcli.retrieval.index import Index
from lmkcli.retrieval.room import Room, parts
from lmkcli.store import outputs
from lmkcli.system.atomic import atomic_file

QUERIES_AT_ONCE = 1024


def queries_of(spelling: str, all_queries: bool) -> tuple[list[Query], int]:
    """The queries to run, and how many were left out because the split does not judge them."""
    collection = open_collection(spelling)
    everything = list(collection.queries())
    if not everything:
        raise DataError(f"{spelling} has no queries")
    repeated = (
        {query.id for query in everything}
        if len({q.id for q in everything}) < len(everything)
        else set()
    )
    if repeated:
        seen: set[str] = set()
        twice = next(q.id for q in everything if q.id in seen or seen.add(q.id))  # type: ignore[func-returns-value]
        raise DataError(f"{spelling}: the query id {twice!r} occurs twice; ids must be unique")
    if all_queries or not collection.has_qrels():
        return everything, 0
    judged = collection.judged_queries()
    if not judged:
        raise DataError(
            f"{spelling}: its qrels judge none of its queries; run all of them with --all-queries"
        )
    return judged, len(everything) - len(judged)


def search(  # noqa: PLR0913 - what is asked, and how it is told
    index: Index,
    queries: list[Query],
    k: int,
    tag: str,
    progress: Progress,
    room: Room | None = None,
) -> Iterator[Run]:
    """The run of all queries in pieces: of QUERIES_AT_ONCE each, or of fewer if there is less room.

    DataError where there is no room for one query.
    """
    for first, asked in batches(queries):
        for part in parts(len(asked), k, room):
            yield replace(index.search(asked[part], k), tag=tag)
            progress(first + part.stop, len(queries), "queries")


def batches(queries: list[Query]) -> Iterator[tuple[int, list[Query]]]:
    """The queries that are searched together if there is room, with the number of their first."""
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        yield first, queries[first : first + QUERIES_AT_ONCE]


def run_manifest(index: Index, spelling: str, queries: list[Query], k: int, call: Call) -> Manifest:
    """What decides a run: the index, the queries and the depth."""
    digest = manifest.digest([[query.id, query.text] for query in queries])
    info = index.info
    identity = {"index": info.digest, "search": info.search, "queries": digest, "k": k}
    facts = {
        **manifest.environment(call),
        "collection": open_collection(spelling).name,
        "index": info.path,
    }
    return Manifest("run", identity, facts=facts)


def is_done(path: Path, wanted: Manifest) -> bool:
    """Whether `path` already holds this very run; Mismatch when it holds another one.

    DataError when the place of its manifest is taken by another file.
    """
    outputs.check_sidecar(path)
    if not (path.is_file() and outputs.sidecar(path).is_file()):
        return False
    lines = manifest.json_differences(read_manifest(path).identity, wanted.identity)
    if lines:
        raise Mismatch(
            f"{path} is another run (there | asked for):\n  "
            + "\n  ".join(lines)
            + "\nchoose another output, or --if-exists overwrite"
        )
    return True


def read_manifest(path: Path) -> Manifest:
    """The manifest of a run; DataError when there is none."""
    beside = outputs.sidecar(path)
    try:
        described = manifest.read_file(beside)
    except FileNotFoundError:
        raise DataError(f"{path} has no manifest {beside.name} beside it") from None
    if described.kind != "run":
        raise DataError(f"{beside} is the manifest of {described.kind}, not of a run; search again")
    return described


class Written(NamedTuple):
    """What a run holds: its queries, lines, queries without a document, and documents without a score."""

    queries: int = 0
    lines: int = 0
    silent: int = 0
    unscored: int = 0

    def and_of(self, run: Run) -> "Written":
        """With one piece more."""
        found = [len(ranking.doc_ids) for ranking in run.rankings.values()]
        more = Written(len(found), sum(found), found.count(0), run.unscored)
        return Written(*map(sum, zip(self, more, strict=True)))


def write(path: Path, runs: Iterable[Run], described: Manifest) -> Written:
    """Write the run that the pieces make, which are found one by one, and its manifest before it appears.

    A manifest without a run is nothing, and both are made again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    outputs.check_sidecar(path)
    written = Written()

    def counted() -> Iterator[Run]:
        nonlocal written
        for run in runs:
            yield run
            written = written.and_of(run)
        if path.is_file() or not path.exists():
            _write_manifest(path, described)

    write_runs(path, counted())
    return written


def _write_manifest(path: Path, described: Manifest) -> None:
    with atomic_file(outputs.sidecar(path)) as temporary:
        text = json.dumps(asdict(described), indent=1, ensure_ascii=False)
        temporary.write_text(text, "utf-8", "surrogatepass")
