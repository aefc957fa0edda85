"""lmk index: vectors or a collection to something that is quick to search."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lmkcli import catalog
from lmkcli.cli import console, options
from lmkcli.cli.options import IfExists
from lmkcli.errors import UsageError
from lmkcli.recipe import AnnSettings, Bm25Settings

_SHOWN = ("factory", "documents", "rows", "vocabulary", "postings", "training_rows", "bytes")


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
    fields: options.Fields = "",
    map_ids: options.MapIds = False,
    if_exists: options.IfExistsOption = IfExists.resume,
    json: options.Json = False,
) -> None:
    """Vectors to a FAISS index, or a collection to a BM25 index. Exact search needs no index."""
    folder = options.need(output, "-o/--output", "index/")
    lexical = {
        "k1": k1,
        "b": b,
        "language": language,
        "fields": fields or None,
        "map_ids": map_ids or None,
    }
    dense = {"m": m, "ef_construction": ef_construction, "max_memory": max_memory}
    options.prepare_output(folder, if_exists)
    if kind in catalog.LEXICAL:
        options.no_effect(dense, f"--kind {kind}")
        chosen: dict[str, Any] = {
            key: value
            for key, value in (("k1", k1), ("b", b), ("language", language))
            if value is not None
        }
        facts = _lexical(
            options.with_fields(source, fields, map_ids), folder, kind, Bm25Settings(**chosen)
        )
    else:
        options.no_effect(lexical, f"--kind {kind}")
        chosen = {key: value for key, value in dense.items() if value is not None}
        if max_memory is not None:
            chosen["max_memory"] = options.parse_bytes(max_memory)
        facts = _dense(Path(source), folder, AnnSettings(kind=kind, **chosen))
    if json:
        return console.plain_json({"output": str(folder), **facts})
    shown = [f"{key} {_shown(facts[key])}" for key in _SHOWN if key in facts]
    print(f"{folder}: {', '.join(shown)}")


def _shown(value: Any) -> str:
    return console.number(value) if isinstance(value, int) else str(value)


def _lexical(spelling: str, folder: Path, kind: str, settings: Bm25Settings) -> dict[str, Any]:
    from lmkcli.collection import open_collection
    from lmkcli.index import build_lexical

    with console.progress("index") as progress:
        return build_lexical(open_collection(spelling), folder, kind, settings, progress)


def _dense(source: Path, folder: Path, settings: AnnSettings) -> dict[str, Any]:
    from lmkcli import manifest
    from lmkcli.index import build_dense, family
    from lmkcli.vectors import Vectors

    if not (source / manifest.NAME).is_file():
        raise UsageError(
            f"{source} is no vectors folder; make one with lmk encode (a collection goes with --kind bm25)"
        )
    with console.progress("index") as progress:
        return build_dense(Vectors(source), folder, family(settings.kind), settings, progress)
