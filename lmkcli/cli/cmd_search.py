"""lmk search: queries to ranked documents."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmkcli.cli import answers, console, options
from lmkcli.cli.flags import with_flags
from lmkcli.cli.groups import note_differences, over_groups
from lmkcli.cli.options import IfExists
from lmkcli.errors import UsageError
from lmkcli.settings import OpenSettings

if TYPE_CHECKING:
    from lmkcli.data.collection import Collection, Query
    from lmkcli.data.run import Run
    from lmkcli.retrieval.fusion import Fusion
    from lmkcli.retrieval.reranking import RerankSettings

_HITS = 1000  # documents a query, in a run
_SHOWN = 10
_STAGES = "After the first search"


class ScaleName(StrEnum):
    """How scores are scaled, per query, before they are added."""

    minmax = "minmax"
    zscore = "zscore"
    none = "none"


@over_groups("queries", ".trec")
@with_flags
def search(
    index: Annotated[
        Path,
        typer.Argument(metavar="INDEX", help="An index folder, vectors (exact search), or a run."),
    ],
    opening: OpenSettings,
    queries: Annotated[
        str | None, typer.Argument(metavar="[COLLECTION]", help="Where the queries come from.")
    ] = None,
    output: options.Output = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--query", "-q", envvar="LMK_SEARCH_QUERY", help="One question; prints its documents."
        ),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask question after question.")
    ] = False,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--hits",
            min=1,
            envvar="LMK_SEARCH_HITS",
            help=f"Documents a query ({_HITS}; {_SHOWN} when shown).",
        ),
    ] = None,
    all_queries: Annotated[
        bool, typer.Option("--all-queries", help="Also queries that the split does not judge.")
    ] = False,
    tag: Annotated[str | None, typer.Option(help="The run's last column.")] = None,
    rerank: Annotated[
        Path | None,
        typer.Option(help="Score the top again with these vectors.", rich_help_panel=_STAGES),
    ] = None,
    rerank_model: Annotated[
        str | None,
        typer.Option(help="Score the top again with this cross-encoder.", rich_help_panel=_STAGES),
    ] = None,
    rerank_depth: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many documents are scored again (100).", rich_help_panel=_STAGES
        ),
    ] = None,
    interpolate: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Weight of the new score beside the old one.",
            rich_help_panel=_STAGES,
        ),
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            envvar="LMK_SEARCH_WITH",
            help="Another index or run to fuse; repeat it.",
            rich_help_panel=_STAGES,
        ),
    ] = None,
    fuse: Annotated[
        str | None,
        typer.Option(help="rrf, rrf:60, linear or linear:0.3,0.7.", rich_help_panel=_STAGES),
    ] = None,
    fuse_scale: Annotated[
        ScaleName | None,
        typer.Option(help="How linear scales scores per query (minmax).", rich_help_panel=_STAGES),
    ] = None,
    map_ids: options.MapIds = False,
    if_exists: options.IfExistsOption = IfExists.resume,
    json: options.Json = False,
) -> None:
    """Queries to the k best documents each, as a TREC run, or shown for one question.

    INDEX may also be a TREC run. --with and --fuse join several of them; --rerank scores the top again.

    The index knows how its queries must be encoded. Equal scores go by document id, descending, as
    trec_eval sorts them.
    """
    from lmkcli.retrieval import searching
    from lmkcli.retrieval.pipeline import Stages, open_pipeline

    if [queries is not None, question is not None, interactive].count(True) != 1:
        raise UsageError("give a collection of queries, or one question with -q, or -i")
    paths = [index, *(others or [])]
    _check_accepts_question(paths, queries)
    fusion = _fusion(paths, fuse, fuse_scale)
    reranking = _reranking(rerank, rerank_model, rerank_depth, interpolate, k)
    spelling = options.with_fields(queries or "", "", map_ids)
    texts = _texts(paths, spelling, rerank_model)
    opened = open_pipeline(Stages(paths, fusion, rerank, rerank_model, reranking), opening, texts)
    for note in opened.info.notes:
        console.note(note)
    if queries is not None:
        asked = _queries(spelling, all_queries)
        path = options.need(output, "-o/--output", "run.trec")
        path = Path("/dev/stdout") if str(path) == "-" else path
        if path.is_dir():
            raise UsageError(f"-o {path} is a folder; name a file for the run, such as run.trec")
        options.prepare_output(path, if_exists)
        described = searching.run_manifest(opened, spelling, asked, k or _HITS)
        if searching.is_done(path, described):
            return console.note(
                f"{path} is this very run already; --if-exists overwrite makes it again"
            )
        with console.progress("search") as progress:
            run = searching.search(opened, asked, k or _HITS, tag or opened.info.kind, progress)
        searching.write(path, run, described)
        if run.unscored:
            console.note(
                f"{console.number(run.unscored)} documents could not be scored again (no vector, or no "
                "text) and stand at the end"
            )
        return _summary(path, run, json)
    if output is not None or all_queries or tag:
        raise UsageError(
            "--output, --all-queries and --tag belong to a collection of queries, not to -q or -i"
        )
    if question is not None:
        return answers.answer(opened, question, k or _SHOWN, json)
    answers.prompt(opened, k or _SHOWN, json)


def _check_accepts_question(paths: list[Path], queries: str | None) -> None:
    """UsageError for a question to a run."""
    for path in paths:
        if queries is None and path.is_file():
            raise UsageError(
                f"{path} is a run, which answers the queries that it has and no other: give their "
                "collection in the place of -q or -i"
            )


def _texts(paths: list[Path], spelling: str, rerank_model: str | None) -> "Collection | None":
    """What a cross-encoder reads where runs alone are reranked: the collection of their queries."""
    from lmkcli.data.collection import open_collection

    if rerank_model is None or not all(path.is_file() for path in paths):
        return None
    return open_collection(spelling)


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


def _fusion(paths: list[Path], fuse: str | None, scale: ScaleName | None) -> "Fusion | None":
    from lmkcli.retrieval.fusion import Fusion
    from lmkcli.retrieval.pipeline import check_distinct

    if len(paths) == 1:
        options.no_effect_old(
            {"fuse": fuse, "fuse_scale": scale}, "a single index (add others by --with)"
        )
        return None
    if fuse is None:
        raise UsageError("--with needs --fuse rrf or --fuse linear")
    fusion = Fusion.parse(fuse, scale.value if scale else "minmax")
    if fusion.method == "rrf":
        options.no_effect_old({"fuse_scale": scale}, "--fuse rrf, which sees ranks alone")
    check_distinct(paths)
    return fusion


def _reranking(
    rerank: Path | None,
    rerank_model: str | None,
    depth: int | None,
    interpolate: float | None,
    k: int | None,
) -> "RerankSettings":
    from lmkcli.retrieval.reranking import RerankSettings

    if rerank is None and rerank_model is None:
        options.no_effect_old(
            {"rerank_depth": depth, "interpolate": interpolate},
            "a search without --rerank or --rerank-model",
        )
        return RerankSettings()
    if rerank is not None and rerank_model is not None:
        raise UsageError("give --rerank or --rerank-model, not both")
    settings = RerankSettings(depth or RerankSettings().depth, interpolate)
    if k and k > settings.depth:
        raise UsageError(
            f"-k {k}: only {settings.depth} documents are scored again; raise --rerank-depth"
        )
    return settings


def _summary(path: Path, run: "Run", json: bool) -> None:
    lines = sum(len(ranking.doc_ids) for ranking in run.rankings.values())
    silent = sum(not ranking.doc_ids for ranking in run.rankings.values())
    if not path.resolve().is_file():
        return None  # written to stdout or a pipe: nothing may follow it
    if json:
        return console.plain_json(
            {"output": str(path), "queries": len(run.rankings), "lines": lines, "silent": silent}
        )
    found_nothing = f"; {silent} queries found nothing" if silent else ""
    console.say(
        f"{path}: {console.number(len(run.rankings))} queries, {console.number(lines)} lines{found_nothing}"
    )
