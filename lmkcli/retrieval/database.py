"""Database: vectors to a collection of a vector database, kept up to date there, and opened for searching.

The index folder holds its manifest and `built.json` alone. What the database keeps of a vector is found by
its number; documents, ties and exact scores come from the vectors folder, as with any index.
"""

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.errors import DataError, Mismatch
from lmkcli.manifest import Manifest
from lmkcli.progress import Report
from lmkcli.reading import checked
from lmkcli.retrieval.approximate import Numbering
from lmkcli.retrieval.building import built_from, built_of, claim_vectors
from lmkcli.retrieval.index_folder import read_built, write_built
from lmkcli.retrieval.kinds import DatabaseKind, Mark, StoredVector, check_finite, database_kind
from lmkcli.retrieval.numbering import NumberedPart, number, read_numbering
from lmkcli.retrieval.updating import Updated, new_parts, other_vectors
from lmkcli.settings import MilvusSettings, OpenSettings
from lmkcli.store.outputs import rollback_on_error
from lmkcli.store.vectors import Vectors
from lmkcli.system import locking, network

FAMILY, TOKEN = "milvus", "LMK_MILVUS_TOKEN"
NUMBERS = 1 << 20  # that are looked through at a time


def is_local(uri: str) -> bool:
    """Whether a Milvus is a file, or a server on this machine."""
    host = urlsplit(uri).hostname or ""
    if "://" not in uri or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reserve(vectors: Vectors, settings: MilvusSettings, replaces: bool) -> DatabaseKind:
    """The collection to write to, reached, and free or lmk's own; nothing is changed.

    Mismatch when it holds another index, unless that is to be replaced.
    """
    database = _connect(settings, os.environ.get(TOKEN, ""))
    mark = database.mark()
    if mark and not replaces and mark.made != _made(vectors, settings):
        raise Mismatch(_taken(settings, "vectors that were made or indexed in another way"))
    return database


def _connect(settings: MilvusSettings, token: str) -> DatabaseKind:
    if network.forbidden() and not is_local(settings.uri):
        raise DataError(
            f"{settings.uri} is not on this machine, and the network is not to be used; drop --offline"
        )
    local = "://" not in settings.uri
    absolute = replace(settings, uri=os.path.abspath(settings.uri)) if local else settings
    return database_kind(FAMILY).connect(absolute, "" if local else token)


def _made(vectors: Vectors, settings: MilvusSettings) -> str:
    """A digest of how the vectors of a collection are made and indexed, wherever it is."""
    how = {key: value for key, value in _recorded(settings).items() if key not in _PLACE}
    return manifest.digest({**how, "recipe": vectors.recipe.identity(), "dim": vectors.dim})


_PLACE = ("uri", "collection")


def _recorded(settings: MilvusSettings) -> dict[str, Any]:
    """The settings as an index records them; those of HNSW where they mean something."""
    values = {"kind": FAMILY, **asdict(settings)}
    hnsw = settings.index_type == "HNSW"
    return {k: v for k, v in values.items() if hnsw or k not in ("m", "ef_construction")}


def _taken(settings: MilvusSettings, by: str) -> str:
    return (
        f"{settings.uri}: the collection {settings.collection} holds {by}; choose another --collection, or "
        "replace it with --if-exists overwrite"
    )


def build_database(
    vectors: Vectors, folder: Path, settings: MilvusSettings, report: Report = Report()
) -> dict[str, Any]:
    """Bring all vectors into a collection, and go on where an earlier life stopped; returns facts.

    Mismatch when the folder or the collection is of other vectors.
    """
    with rollback_on_error(folder):
        database = reserve(vectors, settings, replaces=False)
        _claim(vectors, folder, settings, report)
        if built := built_from(vectors, folder):
            _check_held(database, folder, vectors, settings)
            return built
        mark = database.mark()
        if mark and vectors.digest() not in (mark.holds, mark.becomes):
            raise Mismatch(_taken(settings, f"other vectors than {vectors.folder}"))
        return _fill(database, vectors, folder, settings, report)


def _claim(vectors: Vectors, folder: Path, settings: MilvusSettings, report: Report) -> None:
    if "://" not in settings.uri:
        settings = replace(settings, uri=os.path.relpath(settings.uri, folder))
    claim_vectors(vectors, folder, FAMILY, _recorded(settings), report.call)


def _fill(
    database: DatabaseKind,
    vectors: Vectors,
    folder: Path,
    settings: MilvusSettings,
    report: Report,
) -> dict[str, Any]:
    """Write all vectors that the collection lacks, and say that the index is whole."""
    made, wanted = _made(vectors, settings), vectors.digest()
    mark = database.mark()
    if mark is None:
        database.create(vectors.dim, mark := Mark(made, "", wanted))
    if not _is_whole(database, mark, vectors):
        _write(database, vectors, 0, report)
        database.write_mark(Mark(made, wanted, ""))
    facts = {"rows": vectors.total, "dim": vectors.dim}
    return write_built(folder, facts, built_of(vectors, number(vectors)), "")


def _write(database: DatabaseKind, vectors: Vectors, first: int, report: Report) -> None:
    """Write vectors, numbered from `first`; all of them again where some in between are missing."""

    def progress(done: int) -> None:
        report.progress(done, vectors.total, "vectors")

    database.write(stored(vectors, first), first, progress)
    if database.count(first) != vectors.total:
        database.delete_from(first)
        database.write(stored(vectors, first), first, progress)
    if (there := database.count(first)) != vectors.total:
        raise DataError(
            f"{vectors.total} vectors were written, and the collection says that it holds {there} of them; "
            "somebody else writes to it: run the same command again when nobody does"
        )


def stored(vectors: Vectors, first: int) -> Iterator[StoredVector]:
    """All vectors of a folder in its order, numbered from `first`.

    `text` is the chunk's own for unit chunk, the document's for unit doc, and empty for tokens.
    """
    unit, at = vectors.recipe.doc.unit, first
    spans = (array for _, array in vectors.stored("spans")) if unit == "chunk" else repeat(None)
    for (docs, block), ends in zip(vectors.decoded(), spans, strict=False):
        begin = 0
        check_finite(float(np.abs(block).max(initial=0)))
        for row in docs:
            title, text = row.doc.title, "" if unit == "token" else row.doc.text
            for chunk in range(1 if vectors.single else row.vectors):
                span = None if ends is None else (int(ends[begin][0]), int(ends[begin][1]))
                own = text if span is None or not text else row.doc.content[slice(*span)]
                yield StoredVector(at, block[begin], row.doc.id, chunk, span, title, own)
                at, begin = at + 1, begin + 1


def update_database(
    vectors: Vectors, folder: Path, settings: MilvusSettings, report: Report = Report()
) -> Updated:
    """Write what is new, let it count, then remove what is gone; goes on where an earlier life stopped.

    Mismatch when the collection is not as this index left it, Stopped when another process updates it.
    """
    database = reserve(vectors, settings, replaces=False)
    _claim(vectors, folder, settings, report)
    with locking.locked(folder):
        built, wanted, mark = read_built(folder), vectors.digest(), database.mark()
        if not built:
            return Updated(build_database(vectors, folder, settings, report), "built")
        known = (wanted, built["of"]["vectors"])
        if mark and mark.holds and mark.holds not in known and mark.becomes != wanted:
            raise Mismatch(_taken(settings, f"other vectors than {folder} was built from"))
        if built["of"]["vectors"] == wanted and _is_whole(database, mark, vectors):
            return Updated(built, "it is up to date already")
        if reason := _obstacle(database, mark, built, vectors):
            if mark and (mark.holds or mark.becomes != wanted):
                database.drop()
            facts = _fill(database, vectors, folder, settings, report)
            return Updated(facts, f"built again: {reason}")
        return _extend(database, built, vectors, folder, report)


def _is_whole(database: DatabaseKind, mark: Mark | None, vectors: Vectors) -> bool:
    return mark is not None and mark.holds == vectors.digest() and database.count() == vectors.total


def _obstacle(
    database: DatabaseKind, mark: Mark | None, built: dict[str, Any], vectors: Vectors
) -> str:
    """Why a collection cannot be brought to `vectors` as it is; empty if it can."""
    if mark is None or not mark.holds:
        return "the collection was not there, or not complete"
    if mark.holds == built["of"]["vectors"] == vectors.digest():
        return "vectors were missing from the collection"
    return "these are other vectors" if other_vectors(built["of"], vectors) else ""


def _extend(
    database: DatabaseKind, built: dict[str, Any], vectors: Vectors, folder: Path, report: Report
) -> Updated:
    """The parts that the collection lacks behind those that it has; what is deleted leaves it."""
    mark, wanted = database.mark(), vectors.digest()
    assert mark is not None
    numbered = read_numbering(built["of"])
    first, fresh = sum(part.vectors for part in numbered), new_parts(numbered, vectors)
    if mark.holds != wanted:
        if mark.becomes != wanted:
            database.delete_from(first)  # of an update that was given up
            database.write_mark(mark._replace(becomes=wanted))
        _write(database, fresh, first, report)
    numbered += number(fresh)
    facts = {"rows": sum(part.vectors for part in numbered), "dim": vectors.dim}
    built = write_built(folder, facts, built_of(vectors, numbered), "")
    gone = _deleted(vectors, numbered)
    database.delete(gone)
    database.write_mark(Mark(mark.made, wanted, ""))
    return Updated(built, f"{fresh.total} vectors written, {len(gone)} are deleted")


def _deleted(vectors: Vectors, numbered: list[NumberedPart]) -> NDArray[np.int64]:
    """The numbers whose document is not live."""
    numbering, total = Numbering(vectors, numbered), sum(part.vectors for part in numbered)
    blocks = (np.arange(at, min(at + NUMBERS, total)) for at in range(0, total, NUMBERS))
    gone = [block[numbering.docs(block) < 0] for block in blocks]
    return np.concatenate([np.zeros(0, np.int64), *gone])


def open_database(
    folder: Path, described: Manifest, vectors: Vectors, rows: int, settings: OpenSettings
) -> DatabaseKind:
    """The collection of an index of `vectors` with numbers below `rows`, to be searched.

    DataError when it cannot, or must not, be asked; Mismatch when it holds other vectors.

    A server that is not on this machine is asked only where `settings` name it, and only a server that
    they name is given the token.
    """
    values = {k: v for k, v in described.identity["settings"].items() if k != "kind"}
    checked(values, MilvusSettings, f"the settings of {folder}", "build the index again")
    recorded = MilvusSettings(**values)
    settings.refuse("a collection in Milvus", "nprobe")
    if recorded.index_type != "HNSW":
        settings.refuse(f"a collection with {recorded.index_type}", "ef_search")
    place = replace(recorded, uri=settings.uri or _place(folder, recorded.uri))
    database = _connect(place, os.environ.get(TOKEN, "") if settings.uri else "")
    _check_held(database, folder, vectors, place)
    database.open(rows, settings.ef_search)
    return database


def _place(folder: Path, uri: str) -> str:
    """Where an index says that its collection is; DataError for one elsewhere, or a file that is gone."""
    if not is_local(uri):
        raise DataError(
            f"{folder} says that its vectors are on the server {uri}, and no server elsewhere is asked "
            f"because an index names it; if you trust it, add --uri {uri}"
        )
    if "://" in uri:
        return uri
    path = folder / uri
    if not path.exists():
        raise DataError(f"the vectors of {folder} are not at {path}; say where with --uri")
    return str(path)


def _check_held(
    database: DatabaseKind, folder: Path, vectors: Vectors, place: MilvusSettings
) -> None:
    """Mismatch when a collection is not there, or does not hold what was written of `vectors`."""
    mark, wanted = database.mark(), vectors.digest()
    where = f"{place.uri}: the collection {place.collection}"
    again = f"bring {folder} up to date with its index command and --if-exists update"
    if mark is None:
        raise Mismatch(f"{where} is not there; {again}")
    if wanted not in (mark.holds, mark.becomes):
        raise Mismatch(f"{where} does not hold the vectors that {folder} was built from; {again}")
    if (there := database.count()) < vectors.total:
        raise Mismatch(f"{where} holds {there} of {vectors.total} vectors; {again}")
