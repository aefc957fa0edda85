"""lmk search: queries to ranked documents."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from lmkcli.cli import answers, completion, console, recording
from lmkcli.cli.flags import Given, Subset, with_flags
from lmkcli.cli.groups import note_differences, over_groups
from lmkcli.cli.options import MapIds, NewOutput, no_effect, with_fields
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.settings import Flag, OpenSettings, RerankSettings, parse_bytes

if TYPE_CHECKING:
    from lmkcli.data.collection import Collection, Query
    from lmkcli.manifest import Manifest
    from lmkcli.retrieval.index import Index
    from lmkcli.retrieval.pipeline import Stages
    from lmkcli.retrieval.room import Room
    from lmkcli.retrieval.searching import Written
    from lmkcli.retrieval.sharding import ShardedSearch

_IN_RUN, _SHOWN = 1000, 10  # documents a query


@dataclass(frozen=True)
class QueryOptions:
    """What is asked, and how much is answered."""

    panel: ClassVar[str] = "Queries and their run"
    question: Annotated[
        str | None,
        Flag("One question; prints its documents.", short="-q", long="--query", often=True),
    ] = None
    interactive: Annotated[bool, Flag("Ask question after question.", short="-i", often=True)] = (
        False
    )
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
    tag: Annotated[str | None, Flag("The run's last column.")] = None
    map_ids: MapIds = False
    max_memory: Annotated[
        int,
        Flag(
            "Hold no more than this, such as 4GB: fewer queries are searched at once.",
            metavar="SIZE",
            shown="no limit",
            parse=parse_bytes,
        ),
    ] = 0
    shard: Annotated[
        str,
        Flag(
            "Search slice i/n of the vectors, such as $SLURM_ARRAY_TASK_ID/16; the same command without "
            "--shard joins the slices."
        ),
    ] = ""

    @property
    def room(self) -> "Room | None":
        """The limit of memory, where one is set."""
        from lmkcli.retrieval.room import Room

        return Room(self.max_memory) if self.max_memory else None

    def check(self, queries: str | None, output: NewOutput) -> None:
        """UsageError where not exactly one thing is asked, or a flag belongs to another."""
        if [queries is not None, self.question is not None, self.interactive].count(True) != 1:
            raise UsageError("give a collection of queries, or one question with -q, or -i")
        if queries is not None:
            output.path("run.trec")
        elif output.output is not None or any(
            (self.all_queries, self.tag, self.max_memory, self.shard)
        ):
            raise UsageError(
                "--output, --all-queries, --tag, --max-memory and --shard belong to a collection of "
                "queries, not to -q or -i"
            )
        if self.shard:
            _check_shard(self.shard, output)


def _check_shard(shard: str, output: NewOutput) -> None:
    """UsageError for a shard that is none, or whose run would not be kept."""
    from lmkcli.data.collection import Shard

    if str(output.path("run.trec", Shard.parse(shard).count)) == "-":
        raise UsageError(
            "--shard needs a file: its slices are kept beside it until they are joined"
        )


@dataclass(frozen=True)
class StageOptions:
    """What is searched beside the index, and what follows."""

    panel: ClassVar[str] = "After the first search"
    others: Annotated[
        list[Path] | None,
        Flag("Another index or run to fuse; repeat it.", long="--with", often=True),
    ] = None
    fuse: Annotated[str | None, Flag("rrf, rrf:60, linear or linear:0.3,0.7.", often=True)] = None
    fuse_scale: Annotated[
        Literal["minmax", "zscore", "none"] | None,
        Flag("How linear scales scores per query.", shown="minmax"),
    ] = None
    rerank: Annotated[
        Path | None, Flag("Rerank the top documents with these vectors.", often=True)
    ] = None
    rerank_model: Annotated[
        str | None, Flag("Rerank the top documents with this cross-encoder.")
    ] = None
    rerank_depth: Annotated[int, Flag("How many documents are reranked.", min=1)] = (
        RerankSettings.depth
    )
    interpolate: Annotated[
        float | None, Flag("Weight of the new score; the old one gets the rest.", min=0, max=1)
    ] = RerankSettings.interpolate

    def check(self, given: Given, asked: QueryOptions) -> None:
        """UsageError for flags that contradict each other or have no effect."""
        if not self.others:
            no_effect(given, ("fuse", "fuse_scale"), "a single index (add others by --with)")
        elif self.fuse is None:
            raise UsageError("--with needs --fuse rrf or --fuse linear")
        elif self.fuse.startswith("rrf"):
            no_effect(given, ("fuse_scale",), "--fuse rrf, which sees ranks alone")
        if self.rerank is None and self.rerank_model is None:
            unused = "a search without --rerank or --rerank-model"
            no_effect(given, ("rerank_depth", "interpolate"), unused)
        elif self.rerank is not None and self.rerank_model is not None:
            raise UsageError("give --rerank or --rerank-model, not both")
        elif asked.k and asked.k > self.rerank_depth:
            raise UsageError(
                f"-k {asked.k}: only {self.rerank_depth} documents are scored again; raise "
                "--rerank-depth"
            )
        if asked.shard:
            alone = "--shard: search, then fuse or rerank"
            no_effect(given, ("others", "rerank", "rerank_model"), alone)

    def of(self, index: Path) -> "Stages":
        """The stages of a search that begins with `index`."""
        from lmkcli.retrieval.fusion import Fusion
        from lmkcli.retrieval.pipeline import Stages

        paths = [index, *(self.others or [])]
        fusion = Fusion.parse(self.fuse, self.fuse_scale or Fusion.scale) if self.fuse else None
        reranking = RerankSettings(self.rerank_depth, self.interpolate)
        return Stages(paths, fusion, self.rerank, self.rerank_model, reranking)


@over_groups("queries", ".trec")
@with_flags
def search(  # noqa: PLR0913 - a group of flags each
    index: Annotated[
        Path,
        typer.Argument(metavar="INDEX", help="An index folder, vectors (exact search), or a run."),
    ],
    queries: Annotated[
        str | None,
        typer.Argument(
            metavar="[COLLECTION]",
            help="Where the queries come from.",
            autocompletion=completion.collections,
        ),
    ],
    asked: QueryOptions,
    stages: Annotated[StageOptions, Subset(conditional=True)],
    opening: OpenSettings,
    output: NewOutput,
    given: Given,
) -> None:
    """The top-k documents of each query as a TREC run, or of one question on the screen.

    INDEX may also be a TREC run. --with and --fuse join several of them; --rerank scores the top again.

    The index knows how its queries must be encoded. Equal scores go by document id, descending, as
    trec_eval sorts them.
    """
    asked.check(queries, output)
    stages.check(given, asked)
    if queries is None:
        _check_accepts_question([index, *(stages.others or [])])
    spelling = with_fields(queries or "", "", asked.map_ids)
    opened = _opened(stages.of(index), opening, spelling)
    if queries is not None:
        return _write_run(opened, spelling, asked, output)
    if asked.question is not None:
        return answers.answer(opened, asked.question, asked.k or _SHOWN, output.json)
    answers.prompt(opened, asked.k or _SHOWN, output.json)


def _check_accepts_question(paths: list[Path]) -> None:
    """UsageError for a question to a run."""
    for path in paths:
        if path.is_file():
            raise UsageError(
                f"{path} is a run, which answers the queries that it has and no other: give their "
                "collection in the place of -q or -i"
            )


def _opened(stages: "Stages", opening: OpenSettings, spelling: str) -> "Index":
    """What is searched, with all its stages; what there is to know of it is said."""
    from lmkcli.retrieval.pipeline import open_pipeline

    opened = open_pipeline(stages, opening, _texts(stages, spelling))
    for note in opened.info.notes:
        console.note(note)
    return opened


def _texts(stages: "Stages", spelling: str) -> "Collection | None":
    """What a cross-encoder reads where runs alone are reranked: the collection of their queries."""
    from lmkcli.data.collection import open_collection

    if stages.rerank_model is None or not all(path.is_file() for path in stages.paths):
        return None
    return open_collection(spelling)


def _write_run(opened: "Index", spelling: str, asked: QueryOptions, output: NewOutput) -> None:
    """Search for all queries of the collection, or join what shards found, unless the run is there."""
    from lmkcli.retrieval import searching
    from lmkcli.store.shards import Shards

    queries = _queries(spelling, asked.all_queries)
    k = asked.k or _IN_RUN
    described = searching.run_manifest(opened, spelling, queries, k, recording.call())
    begun = Shards.find(output.path("run.trec"), described.identity)
    if begun and not asked.shard:
        begun.check_whole()  # before an older run gives way
    path = output.file("run.trec")
    if searching.is_done(path, described):
        return console.note(
            f"{path} is this very run already; --if-exists overwrite makes it again"
        )
    if asked.shard:
        return _search_shard(_divided(opened, queries, k), path, described, asked, output)
    tag, room = asked.tag or opened.info.kind, asked.room
    with console.progress("search") as progress:
        if begun:
            report = Report(progress, note=console.note)
            runs = _divided(opened, queries, k).joined(tag, begun, report, room)
        else:
            runs = searching.search(opened, queries, k, tag, progress, room)
        written = searching.write(path, runs, described)
    if begun:
        begun.remove()
    _summary(path, written, output.json)


def _divided(opened: "Index", queries: "list[Query]", k: int) -> "ShardedSearch":
    from lmkcli.retrieval.sharding import ShardedSearch  # here, since it brings torch

    return ShardedSearch(opened, queries, k)


def _search_shard(
    search: "ShardedSearch",
    path: Path,
    described: "Manifest",
    asked: QueryOptions,
    output: NewOutput,
) -> None:
    """Search one slice, and say which are to come."""
    from lmkcli.data.collection import Shard

    shard = Shard.parse(asked.shard)
    shards = search.claim(path, described.identity, shard.count, recording.call())
    with console.progress("search") as progress:
        search.search(shard, shards, Report(progress, note=console.note), asked.room)
    console.shard_done(asked.shard, shards.folder, shards.unfinished(), output.json)


def _queries(spelling: str, all_queries: bool) -> "list[Query]":
    from lmkcli.retrieval import searching

    asked, left_out = searching.queries_of(spelling, all_queries)
    if left_out:
        console.note(
            f"{console.number(left_out)} queries that the split does not judge are left out "
            "(--all-queries)"
        )
    note_differences(spelling, queries=None if all_queries else len(asked))
    return asked


def _summary(path: Path, run: "Written", json: bool) -> None:
    if run.unscored:
        console.note(
            f"{console.number(run.unscored)} documents could not be scored again (no vector, or no "
            "text) and stand at the end"
        )
    if not path.is_file():
        return None  # written to stdout or a pipe: nothing may follow it
    if json:
        return console.plain_json(
            {"output": str(path), "queries": run.queries, "lines": run.lines, "silent": run.silent}
        )
    found_nothing = f"; {run.silent} queries found nothing" if run.silent else ""
    console.say(
        f"{path}: {console.number(run.queries)} queries, {console.number(run.lines)} lines{found_nothing}"
    )
