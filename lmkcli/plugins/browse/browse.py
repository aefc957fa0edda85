"""Browse: write one HTML page to explore one run or to compare several."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import DataError, LmkError, UsageError
from lmkcli.operations.eval import ScoreOptions
from lmkcli.operations.options import check_file, output_flag
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation, operation_kind
from lmkcli.spec.option import options
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, Settings
from lmkcli.text.formatting import counted, size

if TYPE_CHECKING:
    from lmkcli.data.collection import Collection
    from lmkcli.evaluation.results import ScoredRun
    from lmkcli.evaluation.scoring import QrelSet
    from lmkcli.plugins.browse.browsing import Rankings
    from lmkcli.plugins.browse.evidence import Passages
    from lmkcli.retrieval.index import Index

_SUFFIXES = (".html", ".htm")
_DEPTH, _QUERIES = 20, 1000  # the defaults of plugins/browse/browsing.py


@dataclass(frozen=True)
class Browsing(Result):
    """The page, and its counts."""

    output: Path
    runs: int
    queries: int
    """Number of queries on the page."""
    judged: int
    """Number of judged queries. The page may have a sample of them."""
    documents: int
    """Number of different documents on the page."""
    excerpt: int
    """Number of characters of a text that the page shows at most."""
    bytes: int

    def blocks(self) -> Iterator[Table | str]:
        """Yield the page and its counts."""
        queries = counted(self.queries, "query", "queries")
        if self.queries < self.judged:
            queries = f"a sample of {queries} of {self.judged:,}"
        runs, documents = counted(self.runs, "run"), counted(self.documents, "document")
        yield f"{self.output}: {runs}, {queries}, {documents}, {size(self.bytes)}"


@dataclass(frozen=True, kw_only=True)
class PageOptions(Settings):
    """The content of the page."""

    panel: ClassVar[str] = "Page"

    collection: Annotated[
        str | None,
        Flag(
            "The collection with the texts of queries and documents. Default: the index of each run, "
            "and the collection recorded with the runs.",
            often=True,
            role="collection",
            suggest_for="--corpus --texts --topics --queries",
        ),
    ] = None
    name: Annotated[
        list[str] | None,
        Flag("Name of a run, once per run in their order; repeatable.", role="layout"),
    ] = None
    k: Annotated[
        int,
        Flag(
            "Number of documents of each ranking.",
            short="-k",
            long="--hits",
            min=1,
            often=True,
            aliases="--top-k --topk",
            suggest_for="--depth --num-hits --limit -n",
        ),
    ] = _DEPTH
    sample: Annotated[
        int | None,
        Flag(
            "Show at most this many queries, drawn at random.",
            min=1,
            shown=f"{_QUERIES}; fewer for many runs",
            often=True,
            suggest_for="--max-queries --num-queries",
        ),
    ] = None
    passages: Annotated[
        bool,
        Flag(
            "Mark the passage that decided, for runs over chunks. Vectors need their model for this.",
            suggest_for="--highlight",
        ),
    ] = True


@dataclass(frozen=True)
class Browse(Operation[Browsing], PageOptions, ScoreOptions):
    """Write one HTML file to explore one run, or to compare several runs of the same queries.

    The page lists the queries by the difference of a measure, and shows rankings next to each other, judged
    documents, and passages. It needs no other file and no network. The measures are those of lmk eval.

    Texts come from the index that the manifest of a run names, and from the collection of the queries. Runs
    of other tools need --collection, and --qrels if the collection has no judgements.
    """

    verb: ClassVar[str] = "browse"
    unused: ClassVar[tuple[str, ...]] = ("strict",)

    runs: Annotated[
        list[Path],
        Flag(
            "TREC runs, or folders of runs made by lmk; qrels may come first, as in trec_eval.",
            argument=True,
            metavar="RUN...",
            role="run",
        ),
    ] = field()
    output: Annotated[Path | None, output_flag("File for the page (.html).")] = field(
        default=None, kw_only=True
    )

    def check(self) -> None:
        """Raise UsageError for a missing output, or one with another suffix."""
        if self.output is None:
            raise UsageError("-o/--output is missing; for instance -o report.html")
        check_file("-o", self.output, "report.html")
        if self.output.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"-o {self.output}: the page is HTML; write for instance -o report.html"
            )

    def execute(self, report: Report) -> Browsing:
        """Score the runs, collect their evidence, and write the page."""
        from lmkcli.artifact.outputs import sidecar
        from lmkcli.evaluation import scoring
        from lmkcli.plugins.browse import browse_page, browsing

        assert self.output is not None
        browse_page.check_replaceable(self.output)
        paths, spellings = scoring.runs_and_qrels(self.runs, self.qrels or [])
        if self.name and len(self.name) != len(paths):
            raise UsageError(
                f"{len(self.name)} --name for {len(paths)} runs; give one per run, in their order"
            )
        if not (spellings or all(sidecar(path).is_file() for path in paths)) and self.collection:
            spellings = [self.collection]  # runs of other tools name no collection
        qrel_sets = scoring.qrel_sets(paths, spellings)
        results = self._scored(paths, qrel_sets)
        judged, notes = qrel_sets[0], list[str]()
        collection = self._collection(paths, judged, notes)
        texts = _query_texts(collection, notes)
        rankings = browsing.read_rankings(results, texts, self.k, self.sample)
        with report.step("reading texts and passages") as job:
            sources = self._sources(paths, rankings, judged, collection, notes, job)
            browsed = browsing.collect(results, rankings, judged.qrels, judged.rel, sources)
        for note in browsed.overview.notes:
            report.note(note)
        written = browse_page.write(self.output, browsed)
        return Browsing(
            self.output,
            len(results),
            len(rankings.queries),
            browsed.overview.judged,
            browsed.documents,
            browsed.excerpt,
            written,
        )

    def _scored(self, paths: list[Path], qrel_sets: "list[QrelSet]") -> "list[ScoredRun]":
        from lmkcli.evaluation import scoring
        from lmkcli.evaluation.results import collections_of

        measures = self.measure or scoring.default_measures(qrel_sets)
        drops_self = {"yes": True, "no": False}.get(self.drop_self)
        results = scoring.score_all(paths, qrel_sets, measures, drops_self)
        if len(several := collections_of(results)) > 1:
            raise UsageError(
                f"a page compares runs of the same queries, but these are judged by {' and '.join(several)}; "
                "write one page for each"
            )
        return scoring.named_rows(results, self.name, False)

    def _collection(
        self, paths: Sequence[Path], judged: "QrelSet", notes: list[str]
    ) -> "Collection | None":
        """Return the collection of the texts: --collection, or that of the judgements or of a run."""
        from lmkcli.data.collection import open_collection
        from lmkcli.evaluation.scoring import recorded_collection

        if self.collection is not None:
            return open_collection(self.collection)
        if judged.collection is not None:
            return judged.collection
        try:
            spelling = next(filter(None, map(recorded_collection, paths)), "")
            if spelling:
                return open_collection(spelling)
            notes.append("no run names its collection; give the texts of queries with --collection")
        except LmkError as error:
            notes.append(f"no texts of the collection ({error}); name it with --collection")
        return None

    def _sources(  # noqa: PLR0913 - everything that is read
        self,
        paths: Sequence[Path],
        rankings: "Rankings",
        judged: "QrelSet",
        collection: "Collection | None",
        notes: list[str],
        report: Report,
    ) -> Any:
        from lmkcli.plugins.browse import browsing, evidence

        indexes: list[evidence.StoredIndex] = []
        passages: list[Passages] = []
        for number, path in enumerate(paths):
            found: Passages = {}
            ids = rankings.firsts(number)
            try:
                index = _open_index(path)
                if index is not None:
                    ranked = {name for names in ids.values() for name in names}
                    indexes.append(evidence.StoredIndex(index, ranked))
                    if self.passages:
                        found = evidence.passages_of(index, rankings.queries, ids, report.progress)
            except (LmkError, OSError) as error:
                notes.append(f"{path}: no passages, because its index cannot be used: {error}")
            passages.append(found)
        wanted = browsing.wanted(rankings, judged.qrels, judged.rel)
        docs = evidence.texts_of(wanted, indexes, collection, report.progress)
        return browsing.Sources(docs, passages, collection, notes)


def _query_texts(collection: "Collection | None", notes: list[str]) -> dict[str, str]:
    try:
        return {query.id: query.text for query in collection.queries()} if collection else {}
    except DataError as error:
        notes.append(f"no texts of queries: {error}")
        return {}


def _open_index(run: Path) -> "Index | None":
    """Return the index of a run, opened as in the search that wrote the run, without a cross-encoder.

    None if the run names no index. DataError if the index is missing.
    """
    from lmkcli.artifact.outputs import sidecar
    from lmkcli.retrieval.fusion import Fusion
    from lmkcli.retrieval.open_settings import OpenSettings
    from lmkcli.retrieval.pipeline import open_index
    from lmkcli.retrieval.searching import read_manifest

    if not sidecar(run).is_file():
        return None
    stored = read_manifest(run)
    facts = stored.facts
    record = facts.operation
    if record.get("operation") == "search":
        kind = operation_kind(record)
        kept = ("index", "others", "rerank", "aggregate", "level", "vectors", "model")
        settings = {name: record[name] for name in kept if record.get(name)}
        if identity := stored.identity.search.get("fuse"):  # development queries may have chosen it
            fusion = Fusion.from_identity(identity)
            settings |= {"fuse": str(fusion)}
            settings |= {"fuse_scale": fusion.scale} if fusion.method == "linear" else {}
        for option in options(kind):
            if option.name in settings and option.flag.role in ("artifact", "model"):
                settings[option.name] = _resolved(settings[option.name], facts.directory)
        search: Any = kind.from_json(
            {"operation": "search", "version": record.get("version"), **settings}, interactive=True
        )
        if not search.index.exists():
            raise DataError(f"{search.index} is missing")
        opened: Index = search.open()
        return opened
    # a Python function wrote the run
    return open_index(Path(facts.index), OpenSettings()) if facts.index else None


def _resolved(value: Any, directory: str) -> Any:
    """Return a recorded path, relative to the working directory of the command that used it."""
    if isinstance(value, list):
        return [_resolved(each, directory) for each in value]
    path = os.path.join(directory, str(value))
    return path if os.path.exists(path) else value
