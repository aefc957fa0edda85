"""Search: rank documents for queries."""

import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from operator import index as index_number
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, overload

from lmkcli import catalog
from lmkcli.data.metadata import Condition
from lmkcli.errors import UsageError
from lmkcli.operations.index import ShardDone
from lmkcli.operations.options import (
    Destination,
    MapIds,
    NewOutput,
    note_differences,
    output_flag,
    with_fields,
)
from lmkcli.progress import SILENT, Report
from lmkcli.retrieval.open_settings import OpenSettings, RerankSettings
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table, columns_of, html_of
from lmkcli.spec.settings import Flag, Settings, composed, declared_groups
from lmkcli.spec.signature import with_settings
from lmkcli.spec.values import NO_LIMIT, Shard, Size, check_utf8
from lmkcli.system.output_streams import is_stream
from lmkcli.text.formatting import counted
from lmkcli.text.query_words import SNIPPET, QueryWords

if TYPE_CHECKING:
    from lmkcli.artifact.kinds import RunManifest
    from lmkcli.data.collection import ArrowTable, Collection, Doc, Query
    from lmkcli.data.run import Run
    from lmkcli.retrieval.filtering import OpenedCollections
    from lmkcli.retrieval.fusion import Fusion
    from lmkcli.retrieval.index import Index, IndexInfo, Passage
    from lmkcli.retrieval.searching import MemoryBudget
    from lmkcli.retrieval.sharding import ShardedSearch
    from lmkcli.retrieval.stages import Stages

_IN_RUN, _SHOWN = 1000, 10  # documents per query
_TUNE = "tune:"  # the start of a fusion that is chosen on development queries
_FUSION = "rrf"  # of the indexes of a searchable
_PASSAGE = 1000  # characters
NO_GOOD_MATCH = "no good match: the question may have no answer here"
_WIDEST = 100
_INDENT = " " * 5
_REPR = 60  # characters of a text in a repr


@dataclass(frozen=True, repr=False)
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

    @property
    def heading(self) -> str | None:
        """The headings above the passage; empty if there are none, None if they are unknown."""
        return self.passage.heading if self.passage else None

    @property
    def path(self) -> str:
        """The file that contains the document, below the searched folder; empty if there is none."""
        return self.passage.path if self.passage else ""

    @property
    def page(self) -> int | None:
        """The page of the passage in a PDF file."""
        return self.passage.page if self.passage else None

    @property
    def lines(self) -> tuple[int, int] | None:
        """The first and last line of the passage in a text file."""
        return self.passage.lines if self.passage else None

    @property
    def content(self) -> str:
        """The title and the text, joined by a space: `begin` and `end` of a passage count its characters."""
        return f"{self.title} {self.text}" if self.title else self.text

    def __repr__(self) -> str:
        text = self.title or " ".join((self.passage.text if self.passage else self.text).split())
        shown = text if len(text) <= _REPR else f"{text[:_REPR]}…"
        return f"<Hit {self.rank}. {self.id} {self.score:.4f}: {shown}>"


class Searched(Result):
    """The result of a search: a run file (`SearchedRun`), or the answer to one question (`Hits`).

    A run file has `output` and the counts; an answer has `hits`.
    """

    output: Path
    queries: int
    lines: int
    without_hits: int
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class Hits(Searched):
    """The best documents for one question, best first. A sequence of Hit."""

    question: str
    hits: tuple[Hit, ...]
    cut: bool = False
    """Whether a model read only the start of the question, because it is too long."""
    cut_pairs: int = 0
    """How many documents a cross-encoder read only in part."""
    meaning: str = ""
    """What a score is, such as 'BM25 score'."""
    answered: bool | None = None
    """Whether the best hit probably answers the question; None if that is unknown."""
    words: "QueryWords | None" = field(default=None, compare=False)
    """The words of the question that matter, for snippets."""

    def notes(self) -> Iterator[str]:
        """Notes on a question and on documents that were cut, and on hits that are no good match."""
        from lmkcli.retrieval.searching import cut_note, cut_pairs_note

        if self.cut:
            yield cut_note(1, 1)
        if self.cut_pairs:
            yield cut_pairs_note(self.cut_pairs)
        if self.hits and self.answered is not None:
            yield f"score: {self.meaning}" if self.answered else NO_GOOD_MATCH

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @overload
    def __getitem__(self, rank: int) -> Hit: ...
    @overload
    def __getitem__(self, rank: slice) -> "Hits": ...
    def __getitem__(self, rank: int | slice) -> "Hit | Hits":
        chosen = self.hits[rank]
        return replace(self, hits=chosen) if isinstance(chosen, tuple) else chosen

    def as_json(self) -> Any:
        """Return a list of the hits, each with a snippet of its text or with its best
        passage and its place.
        """
        return [
            {
                "rank": hit.rank,
                "score": hit.score,
                **({"meaning": self.meaning} if self.meaning else {}),
                **({} if self.answered is None else {"answered": self.answered}),
                "id": hit.id,
                "title": hit.title,
                **self._shown(hit),
            }
            for hit in self.hits
        ]

    def as_columns(self) -> Mapping[str, Any]:
        """Return the columns of `as_json`, but with the whole texts. They exist without hits, too."""
        if not self.hits:
            return {name: [] for name in ("rank", "score", "meaning", "id", "title", "text")}
        return columns_of(
            [{**row, "text": hit.text} for row, hit in zip(self.as_json(), self.hits, strict=True)]
        )

    def _repr_html_(self) -> str:
        columns = columns_of(self.as_json())
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        return html_of([Table([*columns], rows, self.question) if rows else str(self)])

    def _shown(self, hit: Hit) -> dict[str, Any]:
        passage = hit.passage
        if passage is None:
            return {"text": self._snippet(hit.text)}
        lines = {"lines": list(passage.lines)} if passage.lines else {}
        return {
            **({} if passage.heading is None else {"heading": passage.heading}),
            **({"path": passage.path} if passage.path else {}),
            **({"page": passage.page} if passage.page else {}),
            **lines,
            "chunk": passage.chunk,
            "chunks": passage.chunks,
            "begin": passage.begin,
            "end": passage.end,
            "passage": passage.text,
        }

    def _snippet(self, text: str, size: int = SNIPPET) -> str:
        return (self.words or QueryWords(self.question)).snippet(text, size)

    def __repr__(self) -> str:
        few = ", ".join(f"{hit.id} {hit.score:.4f}" for hit in self.hits[:3])
        return f"<Hits for {self.question!r}: {few or 'none'}{', …' if len(self) > 3 else ''}>"

    def blocks(self) -> Iterator[Table | str]:
        """Yield the hits, each with its text or its best passage."""
        lines = []
        for hit in self.hits:
            score = f"{hit.score:.2f}" if self.answered is not None else f"{hit.score:.4f}"
            lines.append(f"{hit.rank:>3}  {score}  {hit.id}  {hit.title}".rstrip())
            text = self._snippet(hit.text)
            if hit.passage is not None:
                lines.append(f"{_INDENT}{_place(hit.passage)}")
                text = self._snippet(hit.passage.text, _PASSAGE)
            if text or hit.passage is not None:
                lines.append(_wrapped(text))
        yield "\n".join(lines) or "no document found"


def _wrapped(text: str) -> str:
    """Return the text in lines of at most 100 columns, indented, broken between words."""
    return textwrap.fill(
        text,
        min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns),
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _place(passage: "Passage") -> str:
    """Return the place of a passage: headings, and its page, lines or characters."""
    where = f"page {passage.page}" if passage.page else ""
    if passage.lines:
        first, last = passage.lines
        where = f"line {first}" if first == last else f"lines {first:,}\u2013{last:,}"
    if where:
        return f"{passage.heading}: {where}" if passage.heading else where
    which = f"chunk {passage.chunk + 1} of {passage.chunks}"
    which = f"{passage.heading}: {which}" if passage.heading else which
    if passage.begin == passage.end:  # an empty chunk, or no stored offsets
        return which
    return f"{which}, characters {passage.begin:,}\u2013{passage.end:,}"


def find(index: "Index", question: str, k: int = _SHOWN) -> Hits:
    """Return the k best documents of an open index for one question, with texts and best passages.

    Raises UsageError for a question without a word or a sign.
    """
    from lmkcli.data.collection import Query
    from lmkcli.retrieval.index import Judges, query_words

    check_utf8(question, "the question")
    if not question.strip():
        raise UsageError("the question is empty; write one, such as 'stop the turbine'")
    query = Query("q", question)
    run = index.search([query], k)
    ranking = run.rankings["q"]
    docs = index.texts(ranking.doc_ids)
    passages = index.passages(query, ranking.doc_ids)
    hits = []
    for rank, (name, score) in enumerate(zip(ranking.doc_ids, ranking.scores, strict=True), 1):
        doc = docs[name]
        hits.append(Hit(rank, float(score), name, doc.title, doc.text, passages.get(name)))
    answered = index.is_answered(query, ranking) if isinstance(index, Judges) else None
    words = query_words(index, question)
    cut_pairs = sum(run.cut_pairs.values())
    meaning = index.info.meaning
    return Hits(question, tuple(hits), bool(run.cut), cut_pairs, meaning, answered, words)


@dataclass(frozen=True)
class Session(Searched):
    """An open index that answers questions: `session.ask("…")` returns Hits."""

    index: "Index"
    k: int

    def ask(self, question: str) -> Hits:
        """Return the best documents for one question."""
        return find(self.index, question, self.k)


@dataclass(frozen=True)
class SearchedRun(Searched):
    """A run file and its counts.

    `without_hits` is the number of queries without any hit. A model read only a part of `cut` queries, and a
    cross-encoder of `cut_pairs` pairs of a query and a document. The index cannot return `unfindable` of the
    relevant documents or chunks.
    """

    output: Path
    queries: int
    lines: int
    without_hits: int
    cut: int = 0
    cut_pairs: int = 0
    unfindable: int = 0

    def as_json(self) -> Any:
        """Return the path and the counts; the key `silent` is the number of queries without any hit."""
        values = super().as_json()
        values["silent"] = values.pop("without_hits")
        return values

    def notes(self) -> Iterator[str]:
        """Notes on queries and pairs that were cut."""
        from lmkcli.retrieval.searching import cut_note, cut_pairs_note

        if self.cut:
            yield cut_note(self.cut, self.queries)
        if self.cut_pairs:
            yield cut_pairs_note(self.cut_pairs)

    def blocks(self) -> Iterator[Table | str]:
        """Yield the counts."""
        if is_stream(self.output):
            return  # nothing may follow a run on standard output
        queries, lines = counted(self.queries, "query", "queries"), counted(self.lines, "line")
        text = f"{self.output}: {queries}, {lines}"
        if self.without_hits:
            text += f"; {counted(self.without_hits, 'query', 'queries')} without hits"
        yield text


@dataclass(frozen=True)
class SearchedShard(ShardDone, Searched):
    """One shard of a run, which is not written before all shards are joined."""


@dataclass(frozen=True, kw_only=True)
class QueryOptions(Settings):
    """Query options: which queries to run and how many hits to return."""

    panel: ClassVar[str] = "Queries and results"
    question: Annotated[
        str | None,
        Flag(
            "Search for one question and print its hits.",
            short="-q",
            long="--query",
            often=True,
            aliases="--question",
            suggest_for="--text --ask",
        ),
    ] = None
    interactive: Annotated[
        bool,
        Flag(
            "Read questions from standard input and answer each.",
            short="-i",
            often=True,
            role="mode",
        ),
    ] = False
    k: Annotated[
        int | None,
        Flag(
            "Number of documents per query.",
            short="-k",
            long="--hits",
            min=1,
            shown=f"{_IN_RUN}; {_SHOWN} with -q",
            often=True,
            aliases="--top-k --topk",
            suggest_for="--depth --num-hits --limit -n",
        ),
    ] = None
    where: Annotated[
        list[str] | None,
        Flag(
            "Filter, such as type=pdf or date>=2026; repeatable.",
            metavar="CONDITION",
            often=True,
            suggest_for="--filter --type --glob --since",
        ),
    ] = None
    all_queries: Annotated[bool, Flag("Also run queries without judgements in the split.")] = False
    tag: Annotated[
        str | None,
        Flag(
            "Name of the run (its last column).",
            role="layout",
            aliases="--run-name",
            suggest_for="--runtag",
        ),
    ] = None
    map_ids: MapIds = False
    max_memory: Annotated[
        Size,
        Flag(
            "Memory limit, such as 4GB; a lower limit means fewer queries at a time.",
            metavar="SIZE",
            shown="no limit",
            role="mode",
        ),
    ] = NO_LIMIT
    shard: Annotated[
        Shard | None,
        Flag(
            "Search shard i/n of the vectors, such as $SLURM_ARRAY_TASK_ID/16; the same command "
            "without --shard joins the shards.",
            role="mode",
        ),
    ] = None


def _of_fusion(search: "Search") -> str:
    fused = search.others or search.several
    return "" if fused else "a single index (add others by --with)"


def _of_scores(search: "Search") -> str:
    if (search.fuse or "").startswith(_TUNE):
        return "--fuse tune, which chooses the scale"
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

    panel: ClassVar[str] = "Fusion and reranking"
    others: Annotated[
        list[Path] | None,
        Flag(
            "Another index or run to fuse; repeatable.",
            long="--with",
            often=True,
            role="artifact",
            ineffective=_of_whole,
            suggest_for="--hybrid --fuse-with --and",
        ),
    ] = None
    fuse: Annotated[
        str | None,
        Flag(
            "Fusion: rrf, rrf:60, linear, linear:0.3,0.7; tune:dev chooses it on split dev.",
            often=True,
            ineffective=_of_fusion,
            aliases="--fusion",
            suggest_for="--rrf --fusion-method",
        ),
    ] = None
    fuse_scale: Annotated[
        Literal["minmax", "zscore", "bounds", "none"] | None,
        Flag(
            "How linear fusion scales the scores of each query.",
            shown="minmax",
            ineffective=_of_scores,
        ),
    ] = None
    rerank: Annotated[
        Path | None,
        Flag(
            "Rerank the top documents with the vectors in this folder.",
            often=True,
            role="artifact",
            ineffective=_of_whole,
        ),
    ] = None
    rerank_model: Annotated[
        str | None,
        Flag(
            "Rerank the top documents with this cross-encoder.",
            often=True,
            role="model",
            ineffective=_of_whole,
            aliases="--reranker --cross-encoder",
            suggest_for="--rerank-with",
        ),
    ] = None
    rerank_depth: Annotated[
        int,
        Flag(
            "Number of documents to rerank.",
            min=1,
            ineffective=_of_reranking,
            aliases="--rerank-k --rerank-top-k",
            suggest_for="--rerank-hits",
        ),
    ] = RerankSettings.depth
    interpolate: Annotated[
        float | None,
        Flag(
            "Weight of the reranking score, from 0 to 1; the first score gets the rest.",
            min=0,
            max=1,
            ineffective=_of_reranking,
            suggest_for="--alpha",
        ),
    ] = RerankSettings.interpolate


class Searchable(Protocol):
    """Something that `lmk search` can search in addition to indexes and runs (a row of SEARCHABLES).

    `several` tells whether it consists of several indexes, which are fused, and whose flags therefore have
    an effect. Such a search may also read its questions from standard input without -i.
    """

    several: bool

    def claims(self, search: "Search") -> bool:
        """Return whether the arguments name such a thing."""

    def check(self, search: "Search") -> None:
        """Raise UsageError for settings without effect on it."""

    def open(self, search: "Search", report: Report) -> "Index":
        """Open it, if it claims the arguments."""

    def answers(self, search: "Search", report: Report) -> "Index | None":
        """Return an open index that answers the question of a search faster, if there is one."""


def searchables() -> "list[Searchable]":
    """Return all of them; first those that a flag selects."""
    rows = sorted(catalog.SEARCHABLES.values(), key=lambda row: not row.by_flag)
    return [catalog.SEARCHABLES.load(row.name) for row in rows]


if TYPE_CHECKING:

    class SearchableOptions(Settings):
        """The settings of all searchables."""

else:
    SearchableOptions = composed(
        "SearchableOptions", *declared_groups(catalog.SEARCHABLES).values()
    )


@dataclass(frozen=True, kw_only=True)
class RunOutput(NewOutput):
    """The output of a search."""

    output: Annotated[Path | None, output_flag("File for the run.")] = None


@dataclass(frozen=True)
class Search(
    Operation[Searched],
    RunOutput,
    SearchableOptions,
    OpenSettings,
    StageOptions,
    QueryOptions,
):
    """Search for the queries of a collection and write a TREC run, or print the hits of one question.

    INDEX may also be a folder or file of documents: lmk keeps vectors and a BM25 index of it in the user's
    cache, updates them if files have changed, and answers -q or -i.

    INDEX may also be a TREC run. --with and --fuse combine several indexes or runs; --rerank scores the top
    documents again.

    The index stores the settings for encoding queries. Equal scores are sorted by document id, descending, as
    in trec_eval.
    """

    verb: ClassVar[str] = "search"
    example: ClassVar[str] = "run.trec"
    per_member: ClassVar[tuple[str, str]] = ("queries", ".trec")

    index: Annotated[
        Path,
        Flag(
            "An index, a vectors folder (exact search), or a run; with -q or -i also a folder or file of "
            "documents.",
            argument=True,
            metavar="INDEX",
            role="artifact",
            suggest_for="--index --vectors-folder --retriever",
        ),
    ]
    queries: Annotated[
        str | None,
        Flag(
            "The collection that provides the queries.",
            argument=True,
            metavar="[COLLECTION]",
            role="collection",
            suggest_for="--queries --topics --dataset",
        ),
    ] = field(default=None)
    model: Annotated[
        str,
        Flag(
            "The model for documents without an index; or the new location of an index's model, if it was "
            "moved.",
            short="-m",
            shown="mean-minilm; that of the index",
            role="model",
            only="queries",
            aliases="--encoder --model-name --model-name-or-path",
        ),
    ] = field(default="", kw_only=True)

    @property
    def searchable(self) -> Searchable | None:
        """What the arguments name instead of an index or a run; None for those."""
        return next((each for each in searchables() if each.claims(self)), None)

    @property
    def several(self) -> bool:
        """Whether the arguments name something that consists of several indexes."""
        return bool(self.searchable and self.searchable.several)

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        sources = [self.queries is not None, self.question is not None, self.interactive]
        if sources.count(True) > 1 or not (any(sources) or self.several):
            raise UsageError("give a collection of queries, or one question with -q, or -i")
        if self.question is not None and not self.question.strip():
            raise UsageError('-q is empty; write a question, such as -q "stop the turbine"')
        if self.queries is None and (
            self.output is not None
            or any((self.all_queries, self.tag, self.max_memory, self.shard))
        ):
            raise UsageError(
                "--output, --all-queries, --tag, --max-memory and --shard belong to a collection of "
                "queries, not to -q or -i"
            )
        if self.others and self.fuse is None and not self.shard and not self.several:
            raise UsageError("--with needs --fuse rrf or --fuse linear")
        if self.fuse is not None and not self.fuse.startswith(_TUNE):
            from lmkcli.retrieval.fusion import Fusion

            Fusion.parse(self.fuse)
        if self.rerank is not None and self.rerank_model is not None:
            raise UsageError("give --rerank or --rerank-model, not both")
        if self.rerank_stage and self.k and self.k > self.rerank_depth:
            raise UsageError(
                f"-k {self.k}: only {self.rerank_depth} documents are scored again; raise --rerank-depth"
            )
        self._check_where()
        if self.searchable:
            self.searchable.check(self)

    def _check_where(self) -> None:
        for condition in self.where or ():
            Condition.parse(condition)
        if self.where and (self.shard or self.device.several):
            raise UsageError(
                "--where filters whole rankings; drop --shard, and name one device with --device"
            )

    def execute(self, report: Report) -> Searched:
        """Search for all queries, or for one question."""
        place = None
        if self.queries is not None:
            place = Destination(self, self.shard.count if self.shard else 1)
            if self.shard and place.stream:
                raise UsageError(
                    "--shard needs an output file: the shards are kept next to it until they are joined"
                )
        else:
            from lmkcli.data.run import is_run

            for path in [*([] if self.searchable else [self.index]), *(self.others or [])]:
                if path.is_file() and not is_run(path):
                    raise UsageError(
                        f"{path} is neither an index nor a document that lmk reads; lmk show readers lists "
                        "the kinds of files that it reads"
                    )
                if path.is_file():
                    raise UsageError(
                        f"{path} is a run, which answers only its own queries: give their collection instead "
                        "of -q or -i"
                    )
        if self.device.several:
            return self._on_devices(place, report)
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as for `lmk encode`
        spelling = with_fields(self.queries or "", "", self.map_ids)
        opened = self.open(report, spelling)
        if place is not None:
            return self._write_run(opened, spelling, place, report)
        if self.question is not None:
            return find(opened, self.question, self.k or _SHOWN)
        return Session(opened, self.k or _SHOWN)

    def _on_devices(self, place: Destination | None, report: Report) -> Searched:
        """Search a shard of the vectors on each device, and join the shards."""
        if place is None or place.stream or self.shard or self.others or self.rerank_stage:
            raise UsageError(
                f"--device {self.device} searches a shard of the vectors on each device: give queries and "
                "-o, without --shard, --with and reranking"
            )
        from lmkcli.models.devices import devices_of
        from lmkcli.operations.device_tasks import run_tasks

        devices = devices_of(self.device)
        place.prepare(report)
        shared = replace(self, if_exists="resume")
        tasks = [
            replace(shared, device=device, shard=Shard(number, len(devices)))
            for number, device in enumerate(devices)
        ]
        if len(tasks) > 1:
            with report.job("search") as running:
                run_tasks(tasks, running)
        return replace(shared, device=devices[0]).execute(report)

    @property
    def rerank_stage(self) -> bool:
        """Whether the hits are reranked."""
        return self.rerank is not None or self.rerank_model is not None

    @property
    def _room(self) -> "MemoryBudget | None":
        from lmkcli.retrieval.searching import MemoryBudget

        return MemoryBudget(self.max_memory) if self.max_memory else None

    def stages(self, indexes: Sequence[Path] = ()) -> "Stages":
        """Return the indexes, their fusion and the reranking. `indexes` replace INDEX; they are fused by
        default.
        """
        from lmkcli.retrieval.fusion import Fusion
        from lmkcli.retrieval.stages import Stages

        paths = [*(indexes or [self.index]), *(self.others or [])]
        scale = self.fuse_scale or Fusion.scale
        method = self.fuse or _FUSION * bool(indexes)
        parsed = method and len(paths) > 1 and not method.startswith(_TUNE)
        fusion = Fusion.parse(method, scale) if parsed else None
        reranking = RerankSettings(self.rerank_depth, self.interpolate)
        where = tuple(self.where or ())
        return Stages(paths, fusion, self.rerank, self.rerank_model, reranking, where)

    def open(self, report: Report = SILENT, spelling: str = "") -> "Index":
        """Open the index with all stages, and report its notes."""
        if self.rerank_model is not None:  # check it before torch is imported
            from lmkcli.models.lookup import check_cross_encoder

            check_cross_encoder(self.rerank_model, self.offline)
        from lmkcli.data.collection import open_collection

        faster = (each.answers(self, report) for each in searchables())
        if opened := next(filter(None, faster), None):
            return opened
        if self.searchable:
            return self.searchable.open(self, report)
        from lmkcli.retrieval.pipeline import open_pipeline  # imports pyarrow

        stages = self.stages()
        if (self.fuse or "").startswith(_TUNE):
            stages = replace(stages, fusion=self._tuned(stages, spelling, report))
        texts: Collection | None = None
        if stages.rerank_model is not None and all(path.is_file() for path in stages.paths):
            texts = open_collection(spelling)  # runs contain no texts for the cross-encoder
        opened = open_pipeline(stages, self.part(OpenSettings), texts)
        for note in opened.info.notes:
            report.note(note)
        return opened

    def _tuned(self, stages: "Stages", spelling: str, report: Report) -> "Fusion":
        """Choose a fusion on development queries, and report its scores."""
        from lmkcli.data.collection import open_collection
        from lmkcli.evaluation.fusion_tuning import MEASURE, tune
        from lmkcli.retrieval.fusion import DEPTH, shares_of
        from lmkcli.retrieval.pipeline import open_all

        name = (self.fuse or "").removeprefix(_TUNE)
        dev = open_collection(_development(name, spelling))
        queries = dev.judged_queries()
        searched = {*open_collection(spelling).judged_queries()} if spelling else set()
        if same := searched & {*queries}:
            raise UsageError(
                f"--fuse {self.fuse}: {len(same):,} of these queries are queries of the search; choose a "
                "fusion on others"
            )
        parts = open_all(replace(stages, rerank=None, rerank_model=None), self.part(OpenSettings))
        with report.step("tuning the fusion"):
            runs = [index.search(queries, DEPTH) for index in parts]
            try:
                shares = [shares_of(i, r, queries) for i, r in zip(parts, runs, strict=True)]
            except UsageError:  # an index has no greatest score
                shares = None
            tuned = tune(runs, shares, dev.qrels())
        scale = f", --fuse-scale {tuned.fusion.scale}" if tuned.fusion.method == "linear" else ""
        report.note(
            f"--fuse {tuned.fusion}{scale}: {MEASURE} {tuned.score:.4f} on {tuned.queries:,} queries of "
            f"{dev.name}, {tuned.held_out:.4f} held out; rrf {tuned.rrf:.4f}, best single index "
            f"{tuned.single:.4f}"
        )
        return tuned.fusion

    def _write_run(
        self, opened: "Index", spelling: str, place: Destination, report: Report
    ) -> Searched:
        """Search for all queries of the collection, or join the shards, unless the run exists."""
        from lmkcli.artifact.shards import Shards
        from lmkcli.retrieval import searching

        queries = self._queries(spelling, report)
        k = self.k or _IN_RUN
        relevant = searching.Relevant()
        if not self.shard:
            relevant = searching.relevant(opened, spelling, queries)
        if line := relevant.note(opened.info.path):
            report.note(line)
        lacking = len(relevant.unfindable)
        described = searching.run_manifest(opened, spelling, queries, k, report.call, lacking)
        with nullcontext() if self.shard else place.exclusive():
            whole = self.shard is not None or place.stream
            shards = None if whole else Shards.find(place.path, described.identity)
            if self.if_exists != "overwrite" and searching.is_done(place.path, described):
                if shards:
                    shards.remove()  # a killed process has joined them
                report.note(
                    f"{place.path} is up to date; use --if-exists overwrite to search again"
                )
                done = searching.counts_of(place.path, len(queries))
                return SearchedRun(
                    place.path,
                    done.queries,
                    done.lines,
                    done.without_hits,
                    done.cut,
                    done.cut_pairs,
                    lacking,
                )
            if shards:
                shards.check_whole()  # before an older run is removed
            path = place.prepare(report)
            if self.shard:
                sharded = _sharded(opened, queries, k)
                return self._search_shard(self.shard, sharded, path, described, report)
            tag, room = self.tag or opened.info.kind, self._room
            with report.step("search") as job:
                if shards:
                    runs = _sharded(opened, queries, k).joined(tag, shards, job, room)
                else:
                    runs = searching.search(opened, queries, k, tag, job.progress, room)
                written = searching.write(path, runs, described)
            if shards:
                shards.remove()
        if written.unscored:
            report.note(
                f"{counted(written.unscored, 'document')} not reranked (no vector, or no text); they are at "
                "the end"
            )
        return SearchedRun(
            path,
            written.queries,
            written.lines,
            written.without_hits,
            written.cut,
            written.cut_pairs,
            lacking,
        )

    def _search_shard(
        self,
        shard: Shard,
        search: "ShardedSearch[Any]",
        path: Path,
        described: "RunManifest",
        report: Report,
    ) -> SearchedShard:
        shards = search.claim(path, described.identity, shard.count, report.call)
        with report.step("search") as job:
            search.search(shard, shards, job, self._room)
        return SearchedShard(shards.folder, shard, shards.unfinished())

    def _queries(self, spelling: str, report: Report) -> "list[Query]":
        from lmkcli.retrieval import searching

        queries, left_out = searching.queries_of(spelling, self.all_queries, report.note)
        if left_out:
            skipped = counted(left_out, "query", "queries")
            report.note(f"skipped {skipped} without judgements in the split (see --all-queries)")
        note_differences(report, spelling, queries=None if self.all_queries else len(queries))
        return queries


def _development(name: str, spelling: str) -> str:
    """Return the collection of development queries: a split of the searched collection, or the name of
    another.
    """
    if not name:
        raise UsageError("--fuse tune: name a split or a collection, such as tune:dev")
    from lmkcli.data.collection import divided

    head = divided(spelling)[0]
    folder = head.rpartition(":")[0] or head
    if "/" in name or "." in name:
        return name
    if not head:
        raise UsageError(
            f"--fuse tune:{name}: a split of which collection? One question has none; name it, such as "
            f"tune:./folder:{name}"
        )
    if os.path.isdir(os.path.expanduser(folder)):
        return f"{folder}:{name}"
    start = head.rpartition("/")[0]
    return f"{start}/{name}" if start else name


def _sharded(opened: "Index", queries: "list[Query]", k: int) -> "ShardedSearch[Any]":
    from lmkcli.retrieval.sharding import sharded_search  # imports torch

    return sharded_search(opened, queries, k)


def _as_list(queries: Any) -> "list[str] | list[Query]":
    """Return several questions, or the queries of a table, a dictionary or a collection."""
    from lmkcli.data.collection import Collection, Query, open_collection

    if isinstance(queries, Query):  # a named tuple, and no list of texts
        return [queries]
    table = hasattr(queries, "__arrow_c_stream__") and not hasattr(queries, "to_frame")
    if table or isinstance(queries, Mapping | Collection) or hasattr(queries, "column_names"):
        return list(open_collection(queries).queries())
    try:
        found = list(queries)
    except TypeError:
        found = [queries]
    if all(isinstance(query, str) for query in found):
        return list(map(str, found))  # those of NumPy, too
    if all(isinstance(query, Query) for query in found):
        return found
    if all(isinstance(query, Mapping) for query in found):
        return list(open_collection(found).queries())
    kinds = sorted({type(query).__name__ for query in found})
    raise UsageError(
        f"values of the type {' and '.join(kinds)} cannot be searched; give a question, a list of questions, "
        "or queries with their ids: a dictionary, dictionaries, a table or Query objects"
    )


class OpenIndex:
    """An open index that answers questions and collections of queries. `open_index` creates it.

    It implements the protocol `Index`, so all functions that expect an `Index` accept it.
    """

    def __init__(self, search: Search, name: str, rows: str = "") -> None:
        """`search` has the index and its settings; `rows` names documents in memory, which must be kept."""
        self._search, self._name, self._rows = search, name, rows
        self._index = search.open()
        self._last: tuple[tuple[str, ...], Index] | None = (
            None  # the last conditions on rows in memory
        )
        self._collections: OpenedCollections | None = None  # of conditions

    def __reduce__(self) -> Any:  # another process opens the index again
        return OpenIndex, (self._search, self._name, self._rows)

    @property
    def info(self) -> "IndexInfo":
        """The kind of index and its settings."""
        return self._index.info

    @overload
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = _SHOWN, where: str | Sequence[str] = ()
    ) -> Hits: ...
    @overload
    def search(
        self,
        queries: "Sequence[Query | Mapping[str, Any]] | Mapping[str, str] | Collection | ArrowTable",
        k: int = _SHOWN,
        where: str | Sequence[str] = (),
    ) -> "Run": ...
    @overload
    def search(
        self, queries: Sequence[str], k: int = _SHOWN, where: str | Sequence[str] = ()
    ) -> list[Hits]: ...
    def search(self, queries: Any, k: int = _SHOWN, where: str | Sequence[str] = ()) -> Any:
        """Return the k best documents that fulfil all conditions in `where`, such as "year>2000".

        For one question, returns its Hits, with titles, texts and best passages. For a list of questions,
        returns a list of Hits. For Query objects, a dictionary of questions by their ids, dictionaries with
        an id and a text, or a table or collection of queries, returns a Run, which can be evaluated and
        written as a TREC run. Raises UsageError for a condition that cannot be read or compared, and for
        other queries or numbers.
        """
        try:
            k = index_number(k)
        except TypeError:
            k = 0
        if k < 1:
            raise UsageError("k is the number of documents: a whole number from 1")
        from lmkcli.retrieval.searching import repeated_id

        index = self._narrowed((where,) if isinstance(where, str) else tuple(where))
        if isinstance(queries, str):
            return find(index, str(queries), k)
        asked: Any = _as_list(queries)
        if asked and all(isinstance(query, str) for query in asked):
            return [find(index, query, k) for query in asked]
        if repeated := repeated_id(asked):
            raise UsageError(
                f"the query id {repeated!r} occurs twice; ids must be unique, because a run has one ranking "
                "for each"
            )
        return index.search(asked, k)

    def _narrowed(self, where: tuple[str, ...]) -> "Index":
        """Return the index without the documents that do not fulfil all conditions."""
        if not where:
            return self._index
        if self._search.rerank_stage or self._search.searchable:
            raise UsageError(
                "where: give the conditions to open_index, which filters the documents of a folder or a "
                "server, and those that a reranker reads"
            )
        if self._rows and self._last and self._last[0] == where:
            return self._last[1]
        from lmkcli.retrieval.filtering import OpenedCollections, filtered

        self._collections = self._collections or OpenedCollections()
        settings, stages = self._search.part(OpenSettings), self._search.stages()
        index: Index = filtered(self._index, where, stages, settings, self._collections)
        self._last = (where, index)
        return index

    def texts(self, ids: list[str]) -> "dict[str, Doc]":
        """Return the stored documents with these ids. Documents without a stored text are left out."""
        return self._index.texts(ids)

    def passages(self, query: "Query", ids: list[str]) -> "dict[str, Passage]":
        """Return the best passage of each document for a query, if chunks have vectors of their own."""
        return self._index.passages(query, ids)

    def __repr__(self) -> str:
        return f"<OpenIndex {self._name} ({self.info.kind})>"


def open_index(index: str | Path, *others: str | Path, **settings: Any) -> OpenIndex:
    """Open a folder of vectors or an index for searching.

    `others` are indexes to fuse with it (`fuse="rrf"`); further settings are the fields of `Search`, such as
    `rerank_model`, `device` and `aggregate`. Raises DataError if a folder cannot be searched, and UsageError
    for settings that contradict each other.
    """
    search = Search(Path(index), others=[*map(Path, others)] or None, interactive=True, **settings)
    return OpenIndex(search, " + ".join(map(str, [index, *others])))


def search(index: str | Path, question: str, k: int = _SHOWN, **settings: Any) -> Hits:
    """Return the k best documents for one question; `settings` as in `open_index`.

    This opens the index for one call. For several questions, use `open_index`.
    """
    others = settings.pop("others", None) or []
    return open_index(index, *others, **settings).search(question, k)


_OF_RUNS = (
    "queries question interactive k output if_exists all_queries tag max_memory shard map_ids"
)
open_index.__signature__ = with_settings(  # type: ignore[attr-defined]
    open_index, Search, without=f"{_OF_RUNS} others"
)
search.__signature__ = with_settings(search, Search, without=_OF_RUNS)  # type: ignore[attr-defined]
