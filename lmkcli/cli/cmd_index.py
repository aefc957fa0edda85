"""lmk index: vectors or a collection to something that is quick to search."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli import catalog
from lmkcli.cli import completion, console, recording
from lmkcli.cli.flags import Given, Subset, with_flags
from lmkcli.cli.groups import note_differences, note_left_out, over_groups
from lmkcli.cli.options import CollectionOptions, OutputOptions, no_effect
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.settings import AnnSettings, Bm25Settings, Flag, MilvusSettings

if TYPE_CHECKING:
    from lmkcli.retrieval.updating import Updated
    from lmkcli.store.vectors import Vectors

_SHOWN = (
    "factory",
    "documents",
    "chunks",
    "rows",
    "vocabulary",
    "postings",
    "training_rows",
    "bytes",
)
_DENSE = ("m", "ef_construction", "max_memory", "allow_incomplete", "shard", "apart")
_LEXICAL = (
    *("k1", "b", "language", "stemmer", "stopwords", "unit", "gran", "context"),
    *("fields", "map_ids"),
)
_MILVUS = ("uri", "collection", "index_type")


@dataclass(frozen=True)
class SourceOptions(CollectionOptions):
    """What is indexed, and how it is read."""

    stopwords: Annotated[
        str | None,
        Flag("bm25, lucene: a file of stop words, one per line; or none.", metavar="FILE"),
    ] = None
    shard: Annotated[
        str,
        Flag(
            "ivf and other lists: build slice i/n of the vectors; the same command without --shard joins "
            "the slices."
        ),
    ] = ""
    apart: Annotated[
        bool,
        Flag("Joining: leave the slices in files of their own, which are searched as one index."),
    ] = False
    allow_incomplete: Annotated[
        bool, Flag("Index vectors of which some shards are unfinished.")
    ] = False


@over_groups("source")
@with_flags
def index(  # noqa: PLR0913 - a group of flags each
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A vectors folder; for bm25 and lucene a collection.",
            autocompletion=completion.collections,
        ),
    ],
    dense: Annotated[AnnSettings, Subset(conditional=True)],
    lexical: Annotated[Bm25Settings, Subset(conditional=True)],
    milvus: Annotated[MilvusSettings, Subset(conditional=True)],
    reading: SourceOptions,
    output: OutputOptions,
    given: Given,
) -> None:
    """Vectors to a FAISS index or into Milvus, or a collection to a BM25 index. Exact search needs none."""
    folder = output.path("index/", reading.shards)
    if dense.kind == "exact":
        raise UsageError(f"exact search needs no index: lmk search {source} compares every vector")
    check(dense, milvus, given)
    if reading.shard and reading.apart:
        raise UsageError(
            "--apart says how slices are joined: give it without --shard, once all are built"
        )
    if reading.shard:
        return _shard(_open(Path(source), reading.allow_incomplete), dense, reading.shard, output)
    if dense.kind in catalog.DATABASES:
        milvus = replace(milvus, m=dense.m, ef_construction=dense.ef_construction)
        facts = _database(_open(Path(source), reading.allow_incomplete), output, milvus)
    elif dense.kind in catalog.LEXICAL:
        spelling = reading.spelling(source)
        settings = _with_stopwords(lexical, reading.stopwords)
        facts = _lexical(spelling, output, dense.kind, settings)
        note_differences(spelling, docs=facts["documents"])
    else:
        facts = _dense(_open(Path(source), reading.allow_incomplete), output, dense, reading.apart)
    if output.json:
        del facts["of"], facts["files"]
        return console.plain_json({"output": str(folder), **facts})
    shown = [f"{key} {_shown(facts[key])}" for key in _SHOWN if key in facts]
    console.say(f"{folder}: {', '.join(shown)}")


def check(dense: AnnSettings, milvus: MilvusSettings, given: Given) -> None:
    """UsageError for flags that mean nothing for this kind of index, and for those that it lacks."""
    if dense.kind not in catalog.DATABASES:
        useless = _DENSE if dense.kind in catalog.LEXICAL else _LEXICAL
        return no_effect(given, (*useless, *_MILVUS), f"--kind {dense.kind}")
    no_effect(given, (*_LEXICAL, "max_memory", "shard", "apart"), f"--kind {dense.kind}")
    if milvus.index_type != "HNSW":
        no_effect(given, ("m", "ef_construction"), f"--index-type {milvus.index_type}")
    if not (milvus.uri and milvus.collection):
        raise UsageError(
            "--kind milvus needs a place and a name, for instance --uri ./milvus.db --collection docs"
        )


def _shown(value: Any) -> str:
    return console.number(value) if isinstance(value, int) else str(value)


def _with_stopwords(settings: Bm25Settings, file: str | None) -> Bm25Settings:
    """The settings with the stop words of a file, or without any."""
    from lmkcli.text.analysis import NONE, read_stopwords

    if file is None:
        return settings
    return replace(settings, stopwords="" if file == NONE else read_stopwords(Path(file)))


def _lexical(
    spelling: str, output: OutputOptions, kind: str, settings: Bm25Settings
) -> dict[str, Any]:
    from lmkcli import manifest
    from lmkcli.data.collection import open_collection
    from lmkcli.data.contexts import field_of
    from lmkcli.retrieval.building import build_lexical, identity_of_lexical
    from lmkcli.retrieval.updating import update_lexical

    if (Path(spelling) / manifest.NAME).is_file():
        raise UsageError(f"{spelling} is made by lmk; --kind {kind} takes the collection itself")
    collection = open_collection(spelling, context=field_of(settings.context))
    if output.replaces:
        identity_of_lexical(collection, kind, settings)  # what cannot be keeps the older index
    folder = output.prepared("index/")
    made = (collection, folder, kind, settings)
    facts = _built(output, folder, partial(build_lexical, *made), partial(update_lexical, *made))
    note_left_out(collection)
    return facts


def _built(
    output: OutputOptions,
    folder: Path,
    build: Callable[[Report], dict[str, Any]],
    update: "Callable[[Report], Updated]",
) -> dict[str, Any]:
    """The facts of an index that is built, or brought up to date where the flags say so."""
    with console.progress("index") as progress:
        report = Report(progress, call=recording.call())
        if output.if_exists != "update":
            return build(report)
        updated = update(report)
    console.note(f"{folder}: {updated.how}")
    return updated.facts


def _open(source: Path, allow_incomplete: bool) -> "Vectors":
    from lmkcli import manifest
    from lmkcli.store.vectors import Vectors

    if not (source / manifest.NAME).is_file():
        raise UsageError(
            f"{source} is no vectors folder; make one with lmk encode (a collection goes with --kind bm25)"
        )
    if not allow_incomplete:
        return Vectors(source)
    vectors = Vectors.open_incomplete(source)
    if vectors.unfinished:
        numbers = ", ".join(map(str, vectors.unfinished))
        console.note(
            f"left out: what the unfinished shards {numbers} of {source} lack; "
            f"{console.number(vectors.rows)} documents are there"
        )
    return vectors


def _database(
    vectors: "Vectors", output: OutputOptions, settings: MilvusSettings
) -> dict[str, Any]:
    from lmkcli.retrieval.database import build_database, reserve, update_database

    replaces = output.if_exists == "overwrite"
    database = reserve(vectors, settings, replaces)  # before anything is removed to make room
    folder = output.prepared("index/")
    if replaces:
        database.drop()
    made = (vectors, folder, settings)
    return _built(output, folder, partial(build_database, *made), partial(update_database, *made))


def _shard(vectors: "Vectors", settings: AnnSettings, slice_: str, output: OutputOptions) -> None:
    from lmkcli.data.collection import Shard
    from lmkcli.retrieval.building import build_dense
    from lmkcli.retrieval.index_folder import read_built
    from lmkcli.retrieval.shard_building import build_shard

    if output.if_exists == "update":
        raise UsageError(
            "--shard builds anew; --if-exists update brings an index up to date as a whole"
        )
    folder = output.path("index/")
    if read_built(folder):
        build_dense(vectors, folder, settings)  # refuses, unless it is this very index
        return console.note(f"{folder} is built already")
    with console.progress("index") as progress:
        report = Report(progress, note=console.note, call=recording.call())
        shards = build_shard(vectors, folder, settings, Shard.parse(slice_), report)
    console.shard_done(slice_, shards.folder, shards.unfinished(), output.json)


def _dense(
    vectors: "Vectors", output: OutputOptions, settings: AnnSettings, apart: bool
) -> dict[str, Any]:
    from lmkcli.retrieval.building import build_dense, check_dense, memory_of
    from lmkcli.retrieval.index_folder import read_built
    from lmkcli.retrieval.shard_building import find_shards, join_shards
    from lmkcli.retrieval.updating import update_dense

    folder = output.path("index/")
    if shards := find_shards(vectors, folder, settings):
        shards.check_whole()  # before an older index gives way
        output.prepared("index/")
        report = Report(call=recording.call())
        return join_shards(vectors, folder, settings, apart, report)

    if apart and not read_built(folder):
        raise UsageError(
            f"--apart joins slices, and {folder} has none: build each with --shard i/n"
        )
    needed = console.size(memory_of(vectors, settings))
    if output.replaces:
        check_dense(vectors, settings)  # what cannot be keeps the older index
    output.prepared("index/")
    console.note(
        f"{settings.kind} over {console.number(vectors.total)} x {vectors.dim}: about {needed} to build"
    )
    made = (vectors, folder, settings)
    return _built(output, folder, partial(build_dense, *made), partial(update_dense, *made))
