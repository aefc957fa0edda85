"""Indexes of the tests, built as `lmk index` builds them."""

from pathlib import Path
from typing import Any

from lmkcli.artifact.shards import Shards
from lmkcli.data.collection import Collection, Shard
from lmkcli.progress import Report
from lmkcli.retrieval.engine import Engine
from lmkcli.retrieval.engines.faiss.faiss_engine import Faiss
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.index_folder import IndexRecord, finished_index
from lmkcli.retrieval.index_input import CollectionInput, VectorsInput
from lmkcli.retrieval.index_job import IndexJob, IndexUpdate
from lmkcli.retrieval.lexical.lexical_settings import LexicalSettings
from lmkcli.retrieval.vectors.vector_engine import NearestEngine
from lmkcli.vectors.stored import Vectors


def record_of(index: Path) -> IndexRecord:
    """What an index records."""
    return finished_index(index).record


def files_of(index: Path) -> Path:
    """The folder with the current files of an index."""
    return finished_index(index).files


def vector_job(
    vectors: Vectors, folder: Path, engine: NearestEngine, **more: bool
) -> IndexJob[VectorsInput[Vectors]]:
    """The job of an engine over dense vectors."""
    return IndexJob(engine, VectorsInput(vectors, engine.by_document), folder, **more)


def build_faiss(
    vectors: Vectors, folder: Path, settings: FaissSettings, report: Report = Report()
) -> IndexRecord:
    """Build an index of FAISS, and return its record."""
    return vector_job(vectors, folder, Faiss(settings)).build(report)


def update_faiss(
    vectors: Vectors, folder: Path, settings: FaissSettings, report: Report = Report()
) -> IndexUpdate:
    """Update an index of FAISS."""
    return vector_job(vectors, folder, Faiss(settings)).update(report)


def build_shard(
    vectors: Vectors, folder: Path, settings: FaissSettings, shard: Shard, report: Report = Report()
) -> Shards:
    """Build one shard of an index of FAISS."""
    shards = vector_job(vectors, folder, Faiss(settings)).build_shard(shard, report)
    assert shards is not None
    return shards


def join_shards(
    vectors: Vectors,
    folder: Path,
    settings: FaissSettings,
    apart: bool = False,
    report: Report = Report(),
) -> IndexRecord:
    """Join the shards of an index of FAISS, and return its record."""
    return vector_job(vectors, folder, Faiss(settings), apart=apart).join(report)


def build_lexical(
    collection: Collection,
    folder: Path,
    engine: type[Engine[Any]],
    settings: LexicalSettings,
    report: Report = Report(),
) -> IndexRecord:
    """Build an index of words, and return its record."""
    return IndexJob(engine(settings), CollectionInput(collection), folder).build(report)


def update_lexical(
    collection: Collection,
    folder: Path,
    engine: type[Engine[Any]],
    settings: LexicalSettings,
    report: Report = Report(),
) -> IndexUpdate:
    """Update an index of words."""
    return IndexJob(engine(settings), CollectionInput(collection), folder).update(report)
