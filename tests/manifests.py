"""Manifests of every kind, for tests that need an artifact without making it."""

import os
from collections.abc import Callable
from typing import Any

from lmkcli.artifact.kinds import (
    Environment,
    ExportFacts,
    ExportIdentity,
    ExportManifest,
    Facts,
    IndexedCollection,
    IndexFacts,
    IndexIdentity,
    IndexManifest,
    Manifest,
    ModelFacts,
    ModelIdentity,
    ModelManifest,
    Origin,
    RunFacts,
    RunIdentity,
    RunManifest,
    ShardsExecution,
    ShardsManifest,
    TokensExecution,
    TokensFacts,
    TokensIdentity,
    TokensManifest,
    VectorsExecution,
    VectorsFacts,
    VectorsIdentity,
    VectorsManifest,
)
from lmkcli.spec.recipe import EncoderConfig, Recipe

ENVIRONMENT: Environment = {
    "lmk": "0.1.0",
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
    "machine": {"system": "Linux", "cpu": "some", "cores": 2, "memory": 1 << 34, "gpus": []},
    "time": "2026-01-01T00:00:00Z",
    "command": ["lmk"],
    "directory": os.getcwd(),
    "operation": {},
    "environment": {},
}
SIDE = EncoderConfig("w1", "t1", "minilm", pool="lmk", gran="64")
RECIPE = Recipe(SIDE, SIDE)


def tokens(shards: int = 1, source: str = "given", **identity: Any) -> TokensManifest:
    """Tokens of a collection."""
    fields = {"tokenizer": "t1", "prompt": "", "splitter": "", "keep_space": False, "text": {}}
    fields |= identity
    return TokensManifest(
        identity=TokensIdentity(**fields),
        execution=TokensExecution(source=Origin(name=source), shards=shards),
        facts=TokensFacts(**ENVIRONMENT, models=RECIPE.located()),
    )


def vectors(
    recipe: Recipe = RECIPE, dim: int = 384, text: dict[str, str] | None = None, **execution: Any
) -> VectorsManifest:
    """Vectors of a collection."""
    fields = {"source": Origin(name="given"), "shards": 1, "dtype": "fp32", "store_dtype": "fp32"}
    fields |= {"store_text": True} | execution
    return VectorsManifest(
        identity=VectorsIdentity(recipe=recipe, dim=dim, text=text or {}),
        execution=VectorsExecution(**fields),
        facts=VectorsFacts(**ENVIRONMENT, models=recipe.located()),
    )


def index(family: str = "bm25", of_vectors: str = "", **settings: Any) -> IndexManifest:
    """An index of the vectors in a folder, or of words."""
    collection = None if of_vectors else IndexedCollection(name="given", settings={})
    return IndexManifest(
        identity=IndexIdentity(
            family=family,
            settings=settings,
            recipe=RECIPE if of_vectors else None,
            collection=collection,
        ),
        facts=IndexFacts(**ENVIRONMENT, vectors=of_vectors),
    )


def run(collection: str = "given", **identity: Any) -> RunManifest:
    """A run."""
    fields = {"index": "i1", "search": {}, "queries": "q1", "k": 10} | identity
    facts = RunFacts(**ENVIRONMENT, index="", collection=collection)
    return RunManifest(identity=RunIdentity(**fields), facts=facts)


def model() -> ModelManifest:
    """A training of five steps."""
    return ModelManifest(
        identity=ModelIdentity(
            recipe=RECIPE, granularities=["64"], data="d1", sources=[], settings={"steps": 5}
        ),
        facts=ModelFacts(**ENVIRONMENT, models=RECIPE.located()),
    )


def shards(count: int = 2) -> ShardsManifest:
    """The shards of a run with two pieces."""
    return ShardsManifest(
        identity={},
        execution=ShardsExecution(shards=count, pieces=["0.npz", "1.npz"]),
        facts=Facts(**ENVIRONMENT),
    )


def export() -> ExportManifest:
    """An export of vectors."""
    facts = ExportFacts(**ENVIRONMENT, made_of="vectors")
    return ExportManifest(identity=ExportIdentity(to="npy", vectors="v1"), facts=facts)


KINDS: dict[str, Callable[[], Manifest]] = {
    "tokens": tokens,
    "vectors": vectors,
    "index": index,
    "run": run,
    "model": model,
    "shards": shards,
    "export": export,
}
