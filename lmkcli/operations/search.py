"""Search: queries to ranked documents."""

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, overload

from lmkcli.errors import UsageError
from lmkcli.operations.index import ShardDone
from lmkcli.operations.options import Destination, MapIds, NewOutput, note_differences, with_fields
from lmkcli.progress import SILENT, Report
from lmkcli.settings import Flag, OpenSettings, RerankSettings, Settings, parse_bytes
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result

if TYPE_CHECKING:
    from lmkcli.data.collection import Collection, Doc, Query
    from lmkcli.data.run import Run
    from lmkcli.manifest import Manifest
    from lmkcli.retrieval.index import Index, IndexInfo, Passage
    from lmkcli.retrieval.pipeline import Stages
    from lmkcli.retrieval.room import Room
    from lmkcli.retrieval.sharding import ShardedSearch

_IN_RUN, _SHOWN = 1000, 10  # documents per query
_SNIPPET, _PASSAGE = 240, 1000  # characters
_WIDEST = 100
_INDENT = " " * 5


@dataclass(frozen=True)
class Hit:
    """One document for a question: its rank from 1, score, id, title, text, and best passage.

    `passage` is None unless chunks have vectors of their own.
    """

    rank: int
    score: float
    id: str
    title: str
    text: str
    passage: "Passage | None" = None


@dataclass(frozen=True)
class Hits(Result):
    """The best documents for one question, best first. A sequence of Hit."""

    question: str
    hits: tuple[Hit, ...]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, rank: int) -> Hit:
        return self.hits[rank]

    def as_json(self) -> Any:
        """A list of the hits, each with a snippet of its text or with its best passage."""
        return [
            {
                "rank": hit.rank,
                "score": hit.score,
                "id": hit.id,
                "title": hit.title,
                **self._shown(hit),
            }
            for hit in self.hits
        ]

    def _shown(self, hit: Hit) -> dict[str, Any]:
        passage = hit.passage
        if passage is None:
            return {"text": snippet(hit.text, self.question)}
        return {
            "chunk": passage.chunk,
            "chunks": passage.chunks,
            "begin": passage.begin,
            "end": passage.end,
            "passage": passage.text,
        }

    def __repr__(self) -> str:
        few = ", ".join(f"{hit.id} {hit.score:.4f}" for hit in self.hits[:3])
        return f"<Hits for {self.question!r}: {few}{', …' if len(self) > 3 else ''}>"

    def __str__(self) -> str:
        lines = []
        for hit in self.hits:
            lines.append(f"{hit.rank:>3}  {hit.score:.4f}  {hit.id}  {hit.title}".rstrip())
            text = snippet(hit.text, self.question)
            if hit.passage is not None:
                lines.append(f"{_INDENT}{_place(hit.passage)}")
                text = snippet(hit.passage.text, self.question, _PASSAGE)
            if text or hit.passage is not None:
                lines.append(_wrapped(text))
        return "\n".join(lines) or "no document found"


def _wrapped(text: str) -> str:
    """The text in lines of at most 100 columns, indented, broken between words."""
    return textwrap.fill(
        text,
        min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns),
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _place(passage: "Passage") -> str:
    which = f"chunk {passage.chunk + 1} of {passage.chunks}"
    if passage.begin == passage.end:  # an empty chunk, or no stored offsets
        return which
    return f"{which}, characters {passage.begin:,}\u2013{passage.end:,}"


def snippet(text: str, question: str, size: int = _SNIPPET) -> str:
    """About `size` characters of `text` around most of the question's words, on one line."""
    words = {word for word in re.findall(r"\w+", question.lower()) if len(word) > 2}
    places = [m.start() for m in re.finditer(r"\w+", text) if m.group().lower() in words]
    best = max(places, key=lambda p: sum(p <= q < p + size for q in places), default=0)
    start = max(0, best - 40) if len(text) > size else 0
    cut = text[start : start + size]
    more = start + size < len(text)
    if start and " " in cut:
        cut = cut[cut.index(" ") + 1 :]
    if more and " " in cut and text[start + size] != " ":
        cut = cut[: cut.rindex(" ")]
    shown = " ".join(cut.split())
    return ("… " if start else "") + shown + (" …" if more else "")


def find(index: "Index", question: str, k: int = _SHOWN) -> Hits:
    """The k best documents of an open index for one question, with texts and best passages."""
    from lmkcli.data.collection import Query

    query = Query("q", question)
    ranking = index.search([query], k).rankings["q"]
    docs = index.texts(ranking.doc_ids)
    passages = index.passages(query, ranking.doc_ids)
    found = zip(ranking.doc_ids, ranking.scores, strict=True)
    hits = (
        Hit(rank, float(score), name, docs[name].title, docs[name].text, passages.get(name))
        for rank, (name, score) in enumerate(found, 1)
    )
    return Hits(question, tuple(hits))


@dataclass(frozen=True)
class Session(Result):
    """An open index that answers questions: `session.ask("…")` returns Hits."""

    index: "Index"
    k: int

    def ask(self, question: str) -> Hits:
        """The best documents for one question."""
        return find(self.index, question, self.k)


@dataclass(frozen=True)
class Searched(Result):
    """A run file and its counts. `silent` is the number of queries without any hit."""

    output: Path
    queries: int
    lines: int
    silent: int

    def __str__(self) -> str:
        if not self.output.is_file():
            return ""  # written to stdout or a pipe: nothing may follow the run
        silent = f"; {self.silent} queries found nothing" if self.silent else ""
        return f"{self.output}: {self.queries:,} queries, {self.lines:,} lines{silent}"


@dataclass(frozen=True, kw_only=True)
class QueryOptions(Settings):
    """Query options: which queries to run and how many hits to return."""

    panel: ClassVar[str] = "Queries and their run"
    question: Annotated[
        str | None,
        Flag("One question; prints its documents.", short="-q", long="--query", often=True),
    ] = None
    interactive: Annotated[
        bool, Flag("Ask question after question.", short="-i", often=True, role="mode")
    ] = False
    k: Annotated[
        int | None,
        Flag(
            "Documents per query (top-k).",
            short="-k",
            long="--hits",
            min=1,
            shown=f"{_IN_RUN}; {_SHOWN} when shown",
            often=True,
        ),
    ] = None
    all_queries: Annotated[bool, Flag("Run queries without judgements in the split, too.")] = False
    tag: Annotated[str | None, Flag("The run's last column.", role="layout")] = None
    map_ids: MapIds = False
    max_memory: Annotated[
        int,
        Flag(
            "Hold no more than this, such as 4GB: fewer queries are searched at once.",
            metavar="SIZE",
            shown="no limit",
            parse=parse_bytes,
            role="mode",
        ),
    ] = 0
    shard: Annotated[
        str,
        Flag(
            "Search slice i/n of the vectors, such as $SLURM_ARRAY_TASK_ID/16; the same command without "
            "--shard joins the slices.",
            role="mode",
        ),
    ] = ""


def _of_fusion(search: "Search") -> str:
    return "" if search.others else "a single index (add others by --with)"


def _of_scores(search: "Search") -> str:
    if (search.fuse or "").startswith("rrf"):
        return _of_fusion(search) or "--fuse rrf, which uses ranks only"
    return _of_fusion(search)


def _of_reranking(search: "Search") -> str:
    reranked = search.rerank is not None or search.rerank_model is not None
    return "" if reranked else "a search without --rerank or --rerank-model"


def _of_whole(search: "Search") -> str:
    return "--shard: search, then fuse or rerank" if search.shard else ""


@dataclass(frozen=True, kw_only=True)
class StageOptions(Settings):
    """Further indexes to fuse, and reranking."""

    panel: ClassVar[str] = "After the first search"
    others: Annotated[
        list[Path] | None,
        Flag(
            "Another index or run to fuse; repeat it.",
            long="--with",
            often=True,
            role="artifact",
            ineffective=_of_whole,
        ),
    ] = None
    fuse: Annotated[
        str | None,
        Flag("rrf, rrf:60, linear or linear:0.3,0.7.", often=True, ineffective=_of_fusion),
    ] = None
    fuse_scale: Annotated[
        Literal["minmax", "zscore", "none"] | None,
        Flag("How linear scales scores per query.", shown="minmax", ineffective=_of_scores),
    ] = None
    rerank: Annotated[
        Path | None,
        Flag(
            "Rerank the top documents with these vectors.",
            often=True,
            role="artifact",
            ineffective=_of_whole,
        ),
    ] = None
    rerank_model: Annotated[
        str | None,
        Flag(
            "Rerank the top documents with this cross-encoder.",
            role="model",
            ineffective=_of_whole,
        ),
    ] = None
    rerank_depth: Annotated[
        int, Flag("How many documents are reranked.", min=1, ineffective=_of_reranking)
    ] = RerankSettings.depth
    interpolate: Annotated[
        float | None,
        Flag(
            "Weight of the new score; the old one gets the rest.",
            min=0,
            max=1,
            ineffective=_of_reranking,
        ),
    ] = RerankSettings.interpolate


@dataclass(frozen=True)
class Search(
    Operation[Searched | Hits | Session | ShardDone | None],
    NewOutput,
    OpenSettings,
    StageOptions,
    QueryOptions,
):
    """The top-k documents of each query as a TREC run, or of one question on the screen.

    INDEX may also be a TREC run. --with and --fuse join several of them; --rerank scores the top again.

    The index knows how its queries must be encoded. Equal scores go by document id, descending, as
    trec_eval sorts them.
    """

    verb: ClassVar[str] = "search"
    example: ClassVar[str] = "run.trec"
    per_member: ClassVar[tuple[str, str]] = ("queries", ".trec")

    index: Annotated[
        Path,
        Flag(
            "An index folder, vectors (exact search), or a run.",
            argument=True,
            metavar="INDEX",
            role="artifact",
        ),
    ]
    queries: Annotated[
        str | None,
        Flag(
            "Where the queries come from.",
            argument=True,
            metavar="[COLLECTION]",
            role="collection",
        ),
    ] = field(default=None)

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        asked = [self.queries is not None, self.question is not None, self.interactive]
        if asked.count(True) != 1:
            raise UsageError("give a collection of queries, or one question with -q, or -i")
        if self.queries is None and (
            self.output is not None
            or any((self.all_queries, self.tag, self.max_memory, self.shard))
        ):
            raise UsageError(
                "--output, --all-queries, --tag, --max-memory and --shard belong to a collection of "
                "queries, not to -q or -i"
            )
        if self.others and self.fuse is None and not self.shard:
            raise UsageError("--with needs --fuse rrf or --fuse linear")
        if self.rerank is not None and self.rerank_model is not None:
            raise UsageError("give --rerank or --rerank-model, not both")
        reranked = self.rerank is not None or self.rerank_model is not None
        if reranked and self.k and self.k > self.rerank_depth:
            raise UsageError(
                f"-k {self.k}: only {self.rerank_depth} documents are scored again; raise --rerank-depth"
            )

    def execute(self, report: Report) -> Searched | Hits | Session | ShardDone | None:
        """Search for all queries, or for one question."""
        place = None
        if self.queries is not None:
            place = Destination(self, self._shards)
            if self.shard and place.stdout:
                raise UsageError(
                    "--shard needs a file: its slices are kept next to it until they are joined"
                )
        else:
            for path in [self.index, *(self.others or [])]:
                if path.is_file():
                    raise UsageError(
                        f"{path} is a run, which answers only its own queries: give their collection instead "
                        "of -q or -i"
                    )
        spelling = with_fields(self.queries or "", "", self.map_ids)
        opened = self.open(report, spelling)
        if place is not None:
            return self._write_run(opened, spelling, place, report)
        if self.question is not None:
            return find(opened, self.question, self.k or _SHOWN)
        return Session(opened, self.k or _SHOWN)

    @property
    def _shards(self) -> int:
        from lmkcli.data.collection import Shard

        return Shard.parse(self.shard or "0/1").count

    @property
    def _room(self) -> "Room | None":
        from lmkcli.retrieval.room import Room

        return Room(self.max_memory) if self.max_memory else None

    def stages(self) -> "Stages":
        """The indexes, their fusion and the reranking."""
        from lmkcli.retrieval.fusion import Fusion
        from lmkcli.retrieval.pipeline import Stages

        paths = [self.index, *(self.others or [])]
        scale = self.fuse_scale or Fusion.scale
        fusion = Fusion.parse(self.fuse, scale) if self.fuse else None
        reranking = RerankSettings(self.rerank_depth, self.interpolate)
        return Stages(paths, fusion, self.rerank, self.rerank_model, reranking)

    def open(self, report: Report = SILENT, spelling: str = "") -> "Index":
        """The index with all its stages; its notes go to the report."""
        from lmkcli.data.collection import open_collection
        from lmkcli.retrieval.pipeline import open_pipeline

        stages = self.stages()
        texts: Collection | None = None
        if stages.rerank_model is not None and all(path.is_file() for path in stages.paths):
            texts = open_collection(spelling)  # runs contain no texts for the cross-encoder
        opened = open_pipeline(stages, self.part(OpenSettings), texts)
        for note in opened.info.notes:
            report.note(note)
        return opened

    def _write_run(
        self, opened: "Index", spelling: str, place: Destination, report: Report
    ) -> Searched | ShardDone | None:
        """Search for all queries of the collection, or join the shards, unless the run exists."""
        from lmkcli.retrieval import searching
        from lmkcli.store.shards import Shards

        queries = self._queries(spelling, report)
        k = self.k or _IN_RUN
        described = searching.run_manifest(opened, spelling, queries, k, report.call)
        begun = Shards.find(place.path, described.identity)
        if begun and not self.shard:
            begun.check_whole()  # before an older run is removed
        path = place.prepare(report)
        if searching.is_done(path, described):
            report.note(f"{path} is this very run already; --if-exists overwrite makes it again")
            return None
        if self.shard:
            return self._search_shard(_sharded(opened, queries, k), path, described, report)
        tag, room = self.tag or opened.info.kind, self._room
        with report.step("search") as job:
            if begun:
                runs = _sharded(opened, queries, k).joined(tag, begun, job, room)
            else:
                runs = searching.search(opened, queries, k, tag, job.progress, room)
            written = searching.write(path, runs, described)
        if begun:
            begun.remove()
        if written.unscored:
            report.note(
                f"{written.unscored:,} documents could not be reranked (no vector, or no text) and are at "
                "the end"
            )
        return Searched(path, written.queries, written.lines, written.silent)

    def _search_shard(
        self, search: "ShardedSearch", path: Path, described: "Manifest", report: Report
    ) -> ShardDone:
        from lmkcli.data.collection import Shard

        shard = Shard.parse(self.shard)
        shards = search.claim(path, described.identity, shard.count, report.call)
        with report.step("search") as job:
            search.search(shard, shards, job, self._room)
        return ShardDone(shards.folder, self.shard, shards.unfinished())

    def _queries(self, spelling: str, report: Report) -> "list[Query]":
        from lmkcli.retrieval import searching

        asked, left_out = searching.queries_of(spelling, self.all_queries)
        if left_out:
            report.note(
                f"{left_out:,} queries that the split does not judge are left out (--all-queries)"
            )
        note_differences(report, spelling, queries=None if self.all_queries else len(asked))
        return asked


def _sharded(opened: "Index", queries: "list[Query]", k: int) -> "ShardedSearch":
    from lmkcli.retrieval.sharding import ShardedSearch  # imports torch

    return ShardedSearch(opened, queries, k)


class OpenIndex:
    """An open index that answers questions and collections of queries. `open_index` makes it.

    It implements the protocol `Index`, so that it can be passed wherever one is expected.
    """

    def __init__(self, index: "Index", name: str) -> None:
        self._index, self._name = index, name

    @property
    def info(self) -> "IndexInfo":
        """The kind of index and its settings."""
        return self._index.info

    @overload
    def search(self, queries: str, k: int = _SHOWN) -> Hits: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, queries: "Sequence[Query]", k: int = _SHOWN) -> "Run": ...
    @overload
    def search(self, queries: Sequence[str], k: int = _SHOWN) -> list[Hits]: ...
    def search(self, queries: Any, k: int = _SHOWN) -> Any:
        """The k best documents.

        One question: its Hits, with titles, texts and best passages. A list of questions: a list of Hits.
        A list of Query: a Run, which can be evaluated and written as a TREC run.
        """
        if isinstance(queries, str):
            return find(self._index, queries, k)
        queries = list(queries)
        if any(isinstance(query, str) for query in queries):
            return [find(self._index, query, k) for query in queries]
        return self._index.search(queries, k)

    def texts(self, ids: list[str]) -> "dict[str, Doc]":
        """The stored documents of these ids; ids without a text are left out."""
        return self._index.texts(ids)

    def passages(self, query: "Query", ids: list[str]) -> "dict[str, Passage]":
        """The best passage of each document for a query, if chunks have vectors of their own."""
        return self._index.passages(query, ids)

    def __repr__(self) -> str:
        return f"<OpenIndex {self._name} ({self.info.kind})>"


def open_index(index: str | Path, *others: str | Path, **settings: Any) -> OpenIndex:
    """Open a folder of vectors or an index for searching.

    `others` are indexes to fuse with it (`fuse="rrf"`); further settings are the fields of `Search`, such
    as `rerank_model`, `device` and `aggregate`. DataError if a folder cannot be searched, UsageError for
    settings that contradict each other.
    """
    asked = Search(Path(index), others=[*map(Path, others)] or None, interactive=True, **settings)
    return OpenIndex(asked.open(), " + ".join(map(str, [index, *others])))


def search(index: str | Path, question: str, k: int = _SHOWN, **settings: Any) -> Hits:
    """The k best documents for one question; `settings` as in `open_index`.

    The index is opened for this call: use `open_index` to ask several questions.
    """
    others = settings.pop("others", None) or []
    return open_index(index, *others, **settings).search(question, k)
