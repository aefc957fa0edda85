"""The pipeline of one search: indexes and runs, fused if there are several, the top scored again."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.data.collection import Collection
from lmkcli.errors import UsageError
from lmkcli.retrieval.fusion import FusedIndex, Fusion
from lmkcli.retrieval.index import DENSE, LEXICAL, QUERIES, SEARCH, SEVERAL, Index
from lmkcli.retrieval.opening import open_index
from lmkcli.retrieval.rerank_by_model import ModelReranker
from lmkcli.retrieval.reranking import RerankedIndex
from lmkcli.retrieval.run_index import RunIndex
from lmkcli.settings import OpenSettings, RerankSettings


@dataclass(frozen=True)
class Stages:
    """What one search is made of: indexes or runs, how several are fused, and what reranks the top."""

    paths: Sequence[Path]
    fusion: Fusion | None = None
    rerank: Path | None = None  # vectors
    rerank_model: str | None = None
    reranking: RerankSettings = field(default_factory=RerankSettings)


def open_pipeline(stages: Stages, settings: OpenSettings, texts: Collection | None = None) -> Index:
    """The stages as one index. A run has its texts from `texts`, which a cross-encoder reads."""
    parts = open_all(stages, settings, texts)
    index: Index = FusedIndex(parts, stages.fusion) if stages.fusion else parts[0]
    if stages.rerank is not None:
        from lmkcli.retrieval.rerank_by_vectors import VectorReranker

        return RerankedIndex(index, VectorReranker(stages.rerank, settings), stages.reranking)
    if stages.rerank_model is not None:
        if texts is None and all(path.is_file() for path in stages.paths):
            raise UsageError(
                f"{stages.paths[0]} is a run and holds no texts for --rerank-model; "
                "rerank the index that it came from"
            )
        reranker = ModelReranker(index, stages.rerank_model, settings)
        return RerankedIndex(index, reranker, stages.reranking)
    return index


def open_all(
    stages: Stages, settings: OpenSettings, texts: Collection | None = None
) -> list[Index]:
    """Each of the indexes, given the settings that mean something to it.

    UsageError for a setting that means nothing to any of them, and for an index that is there twice.
    """
    _check_distinct(stages.paths)
    takes = [_takes(path) for path in stages.paths]
    alone = len(takes) == 1 or all("level" in mine for mine in takes)
    if settings.level == "chunk" and (stages.rerank or not alone):
        raise UsageError(
            f"--level {settings.level} needs vectors of unit chunk, or indexes of them, alone: what "
            "ranks documents cannot be fused with chunks, nor rerank them"
        )
    taken = set().union(*takes, _reranker_takes(stages))
    none: dict[str, Any] = {name: getattr(OpenSettings(), name) for name in taken}
    return [
        _open(path, replace(settings, **{name: none[name] for name in taken - mine}), texts)
        for path, mine in zip(stages.paths, takes, strict=True)
    ]


def _reranker_takes(stages: Stages) -> set[str]:
    """The names of the settings that mean something to what scores the top again."""
    if stages.rerank_model is not None:
        return {"trust_remote_code"}
    return _takes(stages.rerank).difference(SEARCH) if stages.rerank is not None else set()


def _takes(path: Path) -> set[str]:
    """The names of the settings that mean something to what is at `path`."""
    if any(path.glob("segments_*")):
        return set(LEXICAL)
    if not (path / manifest.NAME).is_file():
        return set()
    described = manifest.read(path)
    if "recipe" not in described.identity:
        chunked = described.identity.get("settings", {}).get("unit") == "chunk"
        return {"level"} if chunked else set(LEXICAL)
    several = SEVERAL if described.identity["recipe"]["doc"]["unit"] != "doc" else ()
    return {*QUERIES, *several, *(() if described.kind == "vectors" else SEARCH)}


def _open(path: Path, settings: OpenSettings, texts: Collection | None) -> Index:
    if not path.is_file():
        return open_index(path, settings)
    settings.refuse("a run", *DENSE, *LEXICAL)
    return RunIndex(path, texts)


def _check_distinct(paths: Sequence[Path]) -> None:
    """UsageError when an index is to be fused with itself."""
    real = [os.path.realpath(path) for path in paths]
    if len(set(real)) < len(real):
        raise UsageError("--with names an index twice; a fusion needs different ones")
