"""Dense indexes: vectors that are compared one by one, or an approximate index whose candidates are
scored exactly. Queries are encoded as the vectors' recipe says.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmkcli import catalog, manifest
from lmkcli.data.collection import Doc, Query
from lmkcli.data.run import Run, ranked
from lmkcli.encoding.encoder import Encoder
from lmkcli.encoding.recorded import open_recorded
from lmkcli.errors import DataError, Mismatch
from lmkcli.manifest import Manifest
from lmkcli.models.devices import choose_device, native_dtype
from lmkcli.reading import checked
from lmkcli.retrieval.approximate import ApproximateSearch
from lmkcli.retrieval.database import open_database
from lmkcli.retrieval.index import DATABASE, IndexInfo, Passage
from lmkcli.retrieval.indexes.exact import Exact
from lmkcli.retrieval.kinds import AnnKind, Hits, Matrix, Nearest, VectorSearch, ann_kind
from lmkcli.retrieval.numbering import read_numbering
from lmkcli.retrieval.passages import best_passages, passages_of
from lmkcli.retrieval.views import RankedUnits
from lmkcli.settings import AnnSettings, OpenSettings
from lmkcli.store import parts
from lmkcli.store.parts import PartSlice
from lmkcli.store.ragged import Ragged
from lmkcli.store.vectors import Vectors


def open_vectors(folder: Path, settings: OpenSettings) -> "DenseIndex":
    """Vectors without an index: exact search."""
    units = RankedUnits(Vectors(folder), settings.level or "", settings.aggregate or "")
    info = IndexInfo(str(folder.absolute()), "exact", units.vectors.digest(), units.identity)
    return DenseIndex(info, units, exact_search(units.matrix, settings), settings)


def open_ann(
    folder: Path, described: Manifest, built: dict[str, Any], settings: OpenSettings
) -> "DenseIndex":
    """The index in a folder that `lmk index` made, described by its manifest and built.json."""
    identity = described.identity
    checked(
        described.facts.get("vectors"), str, f"where the vectors of {folder} are", "build it again"
    )
    vectors = _frozen_vectors(folder, described, built["of"], settings)
    how: dict[str, Any] = {"ef_search": settings.ef_search, "nprobe": settings.nprobe}
    notes = [_incomplete(folder, built), _behind(folder, vectors)]
    units = RankedUnits(vectors, settings.level or "", settings.aggregate or "")
    numbered = read_numbering(built["of"])
    if identity["family"] in catalog.DATABASES:
        rows = sum(part.vectors for part in numbered)
        kind: Nearest = open_database(folder, described, vectors, rows, settings)
    else:
        kind = opened = _open_kind(folder, identity, built, settings)
        notes.append(opened.note)
    search = ApproximateSearch(kind, units, numbered, exact_search(units.matrix, settings))
    info = IndexInfo(
        str(folder.absolute()),
        identity["settings"]["kind"],
        built["digest"],
        how | units.identity,
        tuple(filter(None, notes)),
    )
    return DenseIndex(info, units, search, settings)


def _open_kind(
    folder: Path, identity: dict[str, Any], built: dict[str, Any], settings: OpenSettings
) -> AnnKind:
    """The files of an index, to be searched as the settings say."""
    settings.refuse("an index of FAISS", *DATABASE)
    checked(identity["settings"], AnnSettings, f"the settings of {folder}", "build the index again")
    recorded = AnnSettings(**identity["settings"])
    how = replace(recorded, ef_search=settings.ef_search, nprobe=settings.nprobe)
    device = choose_device(settings.device)
    # where nobody names a GPU, a question does not wait for all lists to be copied there
    named = device.type == "cuda" and settings.device != "auto"
    gpu = device.index or 0 if named else None
    return ann_kind(identity["family"]).open(folder / built["at"], how, gpu)


def _frozen_vectors(
    folder: Path, described: Manifest, of: dict[str, Any], settings: OpenSettings
) -> Vectors:
    """The vectors that an index was built from: found beside it or where --vectors says, checked."""
    path = Path(settings.vectors) if settings.vectors else folder / described.facts["vectors"]
    if not (path / manifest.NAME).exists():
        raise DataError(
            f"the vectors of {folder} are not at {path}; say where they are with --vectors"
        )
    slices = [PartSlice.from_json(item) for item in of["parts"]]
    vectors = Vectors(path, slices)
    missing = {piece.name for piece in slices} - set(parts.list_parts(path))
    if missing or vectors.digest() != of["vectors"]:
        raise Mismatch(
            f"{path} are not the vectors that {folder} was built from; build the index again"
        )
    return vectors


def _incomplete(folder: Path, built: dict[str, Any]) -> str:
    """What to say when the index was built before its vectors were complete."""
    shards = built["of"].get("unfinished shards")
    if not shards:
        return ""
    return f"{folder} lacks what the shards {', '.join(map(str, shards))} had not finished."


def _behind(folder: Path, vectors: Vectors) -> str:
    """What to say when the vectors have moved on since the index was built or updated."""
    if Vectors.open_incomplete(vectors.folder).digest() == vectors.digest():
        return ""
    return (
        f"{folder} is behind {os.path.normpath(vectors.folder)}, which was updated since; "
        "it searches what it was built from. Bring it up to date with its index command and "
        "--if-exists update"
    )


def exact_search(matrix: Matrix, settings: OpenSettings) -> Exact:
    """Brute force over vectors, on the device that queries are encoded on."""
    device = choose_device(settings.device)
    # a GPU is quick enough in float32, and cuBLAS may add parts of bfloat16 sums in bfloat16
    low = device.type == "cpu" and native_dtype(device) == "bf16"
    return Exact(matrix, device, torch.bfloat16 if low else torch.float32)


class DenseIndex:
    """Vectors with a way of searching them, and the encoder of their queries."""

    def __init__(
        self,
        info: IndexInfo,
        units: RankedUnits,
        vector_search: VectorSearch,
        settings: OpenSettings,
    ) -> None:
        self.info = info
        self.units, self.vector_search, self.settings = units, vector_search, settings
        self._encoder: Encoder | None = None

    def search(self, queries: list[Query], k: int) -> Run:
        """Queries encoded, searched, and ranked by exact scores, ties by document id."""
        matrix = self.units.matrix
        if not queries or not matrix.rows:
            return Run({query.id: ranked([], np.zeros(0, np.float32)) for query in queries})
        hits = self.vector_search.search(self.encoded(queries), min(k, matrix.rows))
        return self.ranked(queries, hits, k)

    def encoded(self, queries: list[Query]) -> Ragged:
        """The vectors of queries; UsageError when they cannot be searched for as it is asked."""
        encoded = self.encoder().queries(queries)
        self.units.check(encoded)
        return encoded

    def ranked(self, queries: list[Query], hits: Hits, k: int) -> Run:
        """The k best of each query's hits, ties by document id; at least one query."""
        ids = self.units.matrix.ids(np.concatenate(hits.rows))
        starts = np.cumsum([0, *(len(rows) for rows in hits.rows)])
        rankings = {}
        for query, start, stop, scores in zip(
            queries, starts[:-1], starts[1:], hits.scores, strict=True
        ):
            ranking = ranked(ids[start:stop], scores)
            if len(set(ranking.doc_ids)) < len(ranking.doc_ids):
                raise DataError(
                    f"{self.info.path}: a document id occurs in two shards; encode again"
                )
            rankings[query.id] = ranking.cut(k)
        return Run(rankings)

    def encoder(self) -> Encoder:
        """The query side's encoder, loaded when it is first needed."""
        if self._encoder is None:
            self._encoder = open_query_encoder(self.units.vectors, self.settings)
        return self._encoder

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Looks rows up by id; the ids of all parts are read once. The text of a chunk is its own."""
        if self.units.level == "doc":
            return {doc.id: doc for doc in self.units.vectors.by_ids(ids)}
        chunks = passages_of(self.units.vectors, ids)
        return {name: Doc(name, part.text, doc.title) for name, (doc, part) in chunks.items()}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """The best chunk of each document, or the chunks that the ids name."""
        vectors = self.units.vectors
        if self.units.level == "chunk":
            return {name: part for name, (_, part) in passages_of(vectors, ids).items()}
        if vectors.recipe.doc.unit != "chunk":
            return {}
        return best_passages(vectors, self.encoder().queries([query]).vectors, ids)


def open_query_encoder(vectors: Vectors, settings: OpenSettings) -> Encoder:
    """The encoder of the query side of the vectors' recipe."""
    return open_recorded(vectors, True, settings)
