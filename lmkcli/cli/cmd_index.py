"""lmk index: vectors or a collection to something that is quick to search."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli import catalog
from lmkcli.cli import console, options
from lmkcli.cli.flags import with_flags
from lmkcli.cli.groups import note_differences, over_groups
from lmkcli.cli.options import IfExistsUpdate
from lmkcli.errors import UsageError
from lmkcli.settings import AnnSettings, Bm25Settings, Offline

if TYPE_CHECKING:
    from lmkcli.store.vectors import Vectors

_SHOWN = ("factory", "documents", "rows", "vocabulary", "postings", "training_rows", "bytes")


@over_groups("source")
@with_flags
def index(
    source: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="A vectors folder; for bm25 and lucene a collection."),
    ],
    output: options.Output = None,
    kind: Annotated[
        str,
        typer.Option(
            help="hnsw, ivf, a FAISS factory string such as OPQ64,IVF4096,PQ64; bm25 or lucene."
        ),
    ] = "hnsw",
    ef_construction: Annotated[
        int | None, typer.Option(min=1, help="hnsw: breadth while building.")
    ] = None,
    m: Annotated[int | None, typer.Option(min=2, help="hnsw: links of a vector.")] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="Refuse to build beyond this, such as 16GB.")
    ] = None,
    k1: Annotated[float | None, typer.Option(min=0, help="bm25, lucene: term saturation.")] = None,
    b: Annotated[
        float | None, typer.Option(min=0, max=1, help="bm25, lucene: length normalisation.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="bm25, lucene: stemmer and stop words, such as en, de, hi.")
    ] = None,
    stemmer: Annotated[
        str | None,
        typer.Option(
            help="Another than the language's, or none. bm25: Snowball's, such as porter; lucene: "
            "porter or krovetz."
        ),
    ] = None,
    stopwords: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="bm25, lucene: other stop words, one a line; or none."),
    ] = None,
    fields: options.Fields = "",
    map_ids: options.MapIds = False,
    offline: Offline = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete",
            help="Index what there is of vectors whose shards are not all done.",
        ),
    ] = False,
    if_exists: options.IfExistsUpdateOption = IfExistsUpdate.resume,
    json: options.Json = False,
) -> None:
    """Vectors to a FAISS index, or a collection to a BM25 index. Exact search needs no index."""
    folder = options.need(output, "-o/--output", "index/")
    terms = {"k1": k1, "b": b, "language": language, "stemmer": stemmer, "stopwords": stopwords}
    lexical = {**terms, "fields": fields or None, "map_ids": map_ids or None}
    dense = {
        "m": m,
        "ef_construction": ef_construction,
        "max_memory": max_memory,
        "allow_incomplete": allow_incomplete or None,
    }
    if kind == "exact":
        raise UsageError(f"exact search needs no index: lmk search {source} compares every vector")
    options.prepare_output(folder, if_exists)
    update = if_exists is IfExistsUpdate.update
    if kind in catalog.LEXICAL:
        options.no_effect_old(dense, f"--kind {kind}")
        spelling = options.with_fields(source, fields, map_ids)
        facts = _lexical(spelling, folder, kind, _bm25(terms), update)
        note_differences(spelling, docs=facts["documents"])
    else:
        options.no_effect_old(lexical, f"--kind {kind}")
        del dense["allow_incomplete"]
        chosen: dict[str, Any] = {key: value for key, value in dense.items() if value is not None}
        if max_memory is not None:
            chosen["max_memory"] = options.parse_bytes(max_memory)
        vectors = _open(Path(source), allow_incomplete)
        facts = _dense(vectors, folder, AnnSettings(kind=kind, **chosen), update)
    if json:
        del facts["of"]
        return console.plain_json({"output": str(folder), **facts})
    shown = [f"{key} {_shown(facts[key])}" for key in _SHOWN if key in facts]
    print(f"{folder}: {', '.join(shown)}")


def _shown(value: Any) -> str:
    return console.number(value) if isinstance(value, int) else str(value)


def _bm25(given: dict[str, Any]) -> Bm25Settings:
    """The settings from their flags; stop words are read from their file here."""
    from lmkcli.text.analysis import NONE, read_stopwords

    chosen = {key: value for key, value in given.items() if value is not None}
    words = chosen.get("stopwords")
    if words is not None:
        chosen["stopwords"] = "" if words == NONE else read_stopwords(Path(words))
    return Bm25Settings(**chosen)


def _lexical(
    spelling: str, folder: Path, kind: str, settings: Bm25Settings, update: bool
) -> dict[str, Any]:
    from lmkcli import manifest
    from lmkcli.data.collection import open_collection
    from lmkcli.retrieval.indexing import build_lexical
    from lmkcli.retrieval.refreshing import refresh_lexical

    if (Path(spelling) / manifest.NAME).is_file():
        raise UsageError(f"{spelling} is made by lmk; --kind {kind} takes the collection itself")
    collection = open_collection(spelling)
    with console.progress("index") as progress:
        if not update:
            return build_lexical(collection, folder, kind, settings, progress)
        made = refresh_lexical(collection, folder, kind, settings, progress)
    console.note(f"{folder}: {made.how}")
    return made.facts


def _open(source: Path, allow_incomplete: bool) -> "Vectors":
    from lmkcli import manifest
    from lmkcli.store.vectors import Vectors

    if not (source / manifest.NAME).is_file():
        raise UsageError(
            f"{source} is no vectors folder; make one with lmk encode (a collection goes with --kind bm25)"
        )
    if not allow_incomplete:
        return Vectors(source)
    vectors = Vectors.so_far(source)
    if vectors.unfinished:
        numbers = ", ".join(map(str, vectors.unfinished))
        console.note(
            f"left out: what the unfinished shards {numbers} of {source} lack; "
            f"{console.number(vectors.rows)} documents are there"
        )
    return vectors


def _dense(vectors: "Vectors", folder: Path, settings: AnnSettings, update: bool) -> dict[str, Any]:
    from lmkcli.retrieval.index import family_of
    from lmkcli.retrieval.indexing import build_dense, memory_of
    from lmkcli.retrieval.refreshing import refresh_dense

    needed = console.size(memory_of(vectors, settings))
    console.note(
        f"{settings.kind} over {console.number(vectors.total)} x {vectors.dim}: about {needed} to build"
    )
    with console.progress("index") as progress:
        if not update:
            return build_dense(vectors, folder, family_of(settings.kind), settings, progress)
        made = refresh_dense(vectors, folder, family_of(settings.kind), settings, progress)
    console.note(f"{folder}: {made.how}")
    return made.facts
