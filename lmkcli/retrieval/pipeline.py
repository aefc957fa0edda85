"""The pipeline of one search: open indexes and runs, fuse them, and rerank the first documents."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.artifact.artifact import Artifact, open_artifact
from lmkcli.artifact.kinds import IndexManifest, Manifest, VectorsManifest, recorded_recipe
from lmkcli.data.collection import Collection, Doc, Query
from lmkcli.data.run import Run, RunSubset, ranked, read_run
from lmkcli.errors import DataError, UsageError
from lmkcli.retrieval.engine import engine_of
from lmkcli.retrieval.engines.index_settings import engine_options
from lmkcli.retrieval.filtering import filtered, other_files
from lmkcli.retrieval.fusion import FusedIndex
from lmkcli.retrieval.index import (
    DENSE_FIELDS,
    FEEDBACK_FIELDS,
    QUERY_FIELDS,
    SEARCH_FIELDS,
    SEVERAL_FIELDS,
    Index,
    IndexInfo,
    Passage,
)
from lmkcli.retrieval.index_folder import (
    BuiltIndex,
    check_built,
    check_files,
    finished_index,
    read_record,
)
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.reranking import ModelReranker, RerankedIndex, Reranker
from lmkcli.retrieval.stages import Stages


def open_pipeline(stages: Stages, settings: OpenSettings, texts: Collection | None = None) -> Index:
    """Open the stages as one index. `texts` provides the documents of runs, which a cross-encoder reads."""
    parts = open_all(stages, settings, texts)
    named = {str(path): artifact for path, artifact in stages.artifacts.items()}
    note = other_files(named, settings.vectors)
    index: Index = FusedIndex(parts, stages.fusion, note) if stages.fusion else parts[0]
    if stages.where:
        index = filtered(index, stages.where, stages, settings)
    if stages.rerank is not None:
        reranker = _open_reranker(stages.opened(stages.rerank), settings)
        return RerankedIndex(index, reranker, stages.reranking, "" if stages.fusion else note)
    if stages.rerank_model is not None:
        if texts is None and all(path.is_file() for path in stages.paths):
            raise UsageError(
                f"{stages.paths[0]} is a run and holds no texts for --rerank-model; "
                "rerank the index that it came from"
            )
        model = ModelReranker(index, stages.rerank_model, settings)
        return RerankedIndex(index, model, stages.reranking)
    return index


def _open_reranker(vectors: Path | Artifact[Manifest], settings: OpenSettings) -> Reranker:
    """Open vectors that rerank."""
    from lmkcli.retrieval.vectors.vector_reranker import VectorReranker  # imports torch

    return VectorReranker(open_artifact(vectors, VectorsManifest), settings)


def open_all(
    stages: Stages, settings: OpenSettings, texts: Collection | None = None
) -> list[Index]:
    """Open each index with the settings that have an effect on it.

    Raises UsageError for a setting without an effect on any of them, and for an index that is named twice.
    """
    _check_distinct(stages.paths)
    names = [_setting_names(path, stages) for path in stages.paths]
    only_chunks = len(names) == 1 or all("level" in own for own in names)
    if settings.level == "chunk" and (stages.rerank or not only_chunks):
        raise UsageError(
            f"--level {settings.level} works only with vectors of unit chunk, or indexes of them: rankings "
            "of documents cannot be fused with chunks, nor rerank them"
        )
    # If a setting has an effect on some stages, reset it for the others, because they would refuse it.
    # If it has no effect on any stage, keep it, so that opening an index raises UsageError.
    used = set().union(*names, _reranker_setting_names(stages))
    defaults: dict[str, Any] = {name: getattr(OpenSettings(), name) for name in used}
    return [
        _open(
            stages.opened(path),
            replace(settings, **{name: defaults[name] for name in used - own}),
            texts,
        )
        for path, own in zip(stages.paths, names, strict=True)
    ]


def _reranker_setting_names(stages: Stages) -> set[str]:
    """Return the settings that have an effect on the reranker."""
    if stages.rerank_model is not None:
        return {"trust_remote_code", "dtype"}
    if stages.rerank is None:
        return set()
    return _setting_names(stages.rerank, stages).difference(SEARCH_FIELDS)


def _setting_names(path: Path, stages: Stages) -> set[str]:
    """Return the settings that have an effect on the index or run at `path`."""
    if path not in stages.artifacts:
        return set(FEEDBACK_FIELDS) if foreign_engine(path) else set()
    described = stages.artifacts[path].manifest
    if isinstance(described, IndexManifest) and described.identity.recipe is None:
        chunked = described.identity.settings.get("unit") == "chunk"
        return {"level"} if chunked else set(FEEDBACK_FIELDS)
    recipe = recorded_recipe(described)
    several = SEVERAL_FIELDS if recipe and recipe.doc.unit != "doc" else ()
    if not isinstance(described, IndexManifest):
        return {*QUERY_FIELDS, *several}
    common = {*SEARCH_FIELDS} - {*engine_options()}
    return {*QUERY_FIELDS, *several, *common, *engine_options(described.identity.family)}


def _open(
    path: Path | Artifact[Manifest], settings: OpenSettings, texts: Collection | None
) -> Index:
    if isinstance(path, Artifact) or not path.is_file():
        return open_index(path, settings)
    settings.refuse("a run", *DENSE_FIELDS, *FEEDBACK_FIELDS)
    settings.refuse_others("a run", "")
    return RunIndex(path, texts)


def _check_distinct(paths: Sequence[Path]) -> None:
    """Raise UsageError if an index would be fused with itself."""
    resolved = [os.path.realpath(path) for path in paths]
    if len(set(resolved)) < len(resolved):
        raise UsageError("--with names an index twice; a fusion needs different indexes")


def open_index(given: Path | Artifact[Manifest], settings: OpenSettings) -> Index:
    """Open an index, vectors (exact search), or the index of another tool.

    Raises DataError for anything else.
    """
    if isinstance(given, Path) and (engine := foreign_engine(given)):
        foreign: Index = catalog.ENGINES.load(engine).open_foreign(given, settings)
        return foreign
    opened: Artifact[Manifest] = open_artifact(given, VectorsManifest, IndexManifest)
    if not isinstance(opened.manifest, IndexManifest):
        settings.refuse("vectors", *SEARCH_FIELDS, *FEEDBACK_FIELDS)
        settings.refuse_others("vectors", "")
        vectors = open_artifact(opened, VectorsManifest)
        from lmkcli.retrieval.vectors.vector_index import open_vectors  # imports torch

        return open_vectors(vectors, settings)
    index = finished_index(open_artifact(opened, IndexManifest))
    try:
        return _open_built(index, settings)
    except DataError:
        if read_record(index.folder, index.described) == index.record:
            raise
        return open_index(index.folder, settings)  # an update replaced the files just now


def _open_built(index: BuiltIndex, settings: OpenSettings) -> Index:
    """Open an index that `lmk index` built, with the settings that it records."""
    family = index.described.identity.family
    settings.refuse_others(f"an index of kind {family}", family)
    engine = engine_of(family)
    (check_files if engine.digests_on_open else check_built)(index)
    recorded = engine.recorded(index.described.identity.settings, index.folder)
    return recorded.open_index(index, settings)


def foreign_engine(folder: Path) -> str:
    """Return the engine whose library made the index in a folder without a manifest; empty if none did."""
    if (folder / manifest.NAME).is_file():
        return ""
    rows = catalog.ENGINES.items()
    return next((name for name, row in rows if row.foreign and any(folder.glob(row.foreign))), "")


class RunIndex:
    """The run in a TREC file, with the texts of its documents if `texts` is given.

    Raises DataError if the file is not a run, or if `texts` has none of its documents.
    """

    def __init__(self, path: Path, texts: Collection | None = None) -> None:
        self._run = read_run(path)
        self._docs = {doc.id: doc for doc in RunSubset(texts, path).docs()} if texts else {}
        if texts and not self._docs:
            raise DataError(f"{texts.name} has none of the documents of {path}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        contents = sorted((doc.id, doc.content) for doc in self._docs.values())
        search = {"texts": manifest.digest(contents)} if contents else {}
        self.info = IndexInfo(str(path.absolute()), self._run.tag, digest, search)

    def search(self, queries: list[Query], k: int) -> Run:
        """Return the first k documents of each query.

        A query that is missing from the run has no documents.
        """
        empty = ranked([], np.zeros(0, np.float32))
        return Run({q.id: self._run.rankings.get(q.id, empty).cut(k) for q in queries})

    def texts(self, ids: list[str]) -> dict[str, Doc]:
        """Return documents of `texts`. If `texts` is None, documents have no text."""
        return {name: self._docs.get(name, Doc(name, "")) for name in ids}

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage]:
        """Return nothing, because a run has no chunks."""
        return {}
