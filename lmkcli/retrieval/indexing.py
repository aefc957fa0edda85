"""Indexing: vectors or a collection to an index folder."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lmkcli import catalog, manifest
from lmkcli.data.collection import Collection, CollectionDigest, Doc, doc_hash
from lmkcli.errors import Mismatch
from lmkcli.manifest import Manifest
from lmkcli.progress import Progress
from lmkcli.retrieval.index import BUILT, DOCS, family_of, ready
from lmkcli.retrieval.rescoring import Numbered
from lmkcli.retrieval.views import flat
from lmkcli.settings import AnnSettings
from lmkcli.store.doctable import DocRow, DocTableWriter
from lmkcli.store.outputs import as_it_was
from lmkcli.store.unique_ids import UniqueIds
from lmkcli.store.vectors import Vectors
from lmkcli.system.atomic import atomic_file
from lmkcli.system.streams import batched


def memory_of(vectors: Vectors, settings: AnnSettings) -> int:
    """Bytes that building an index takes at its peak, roughly."""
    kind = catalog.load(catalog.INDEXES, family_of(settings.kind), "index kind")
    return int(kind.memory(flat(vectors), settings))


def build_dense(
    vectors: Vectors, folder: Path, family: str, settings: Any, progress: Progress
) -> dict[str, Any]:
    """Build an index over vectors; returns its facts. A finished one of the same vectors is kept.

    Mismatch when one is there with other settings, or of other vectors.
    """
    with as_it_was(folder):
        claim_dense(vectors, folder, family, settings)
        if built := ready(folder):
            if built["of"]["vectors"] != vectors.digest():
                raise Mismatch(
                    f"{folder} was built from other vectors than {vectors.folder} holds now; bring it "
                    "up to date with --if-exists update, or replace it with --if-exists overwrite"
                )
            return built
        kind = catalog.load(catalog.INDEXES, family, "index kind")
        made = kind.build(flat(vectors), folder, settings, progress)
        return finish(folder, made, built_of(vectors, numbered(vectors)), "")


def claim_dense(vectors: Vectors, folder: Path, family: str, settings: Any) -> None:
    """Make `folder` an index of this kind; Mismatch when it is one with other settings."""
    identity = {
        "family": family,
        "settings": asdict(replace(settings, max_memory=0)),  # the machine's, not the index's
        "recipe": vectors.recipe.identity(),
    }
    facts = {**manifest.environment(), "vectors": os.path.relpath(vectors.folder, folder)}
    manifest.claim(folder, Manifest("index", identity, facts=facts))


def numbered(vectors: Vectors) -> list[Numbered]:
    """All that there is, in its order."""
    return [Numbered(*item) for item in zip(vectors.slices, vectors.part_totals(), strict=True)]


def built_of(vectors: Vectors, numbering: list[Numbered]) -> dict[str, Any]:
    """What an index records of its vectors: which rows of which parts, and what its own rows number."""
    order = {piece.name: number for number, (piece, _) in enumerate(numbering)}
    now = sorted(vectors.slices, key=lambda piece: order[piece.name])
    return {
        "vectors": vectors.digest(),
        "parts": [piece.as_json() for piece in now],
        "numbering": [item.as_json() for item in numbering],
        "digests": {str(piece.name): vectors.part_digest(piece.name) for piece in now},
        **({"unfinished shards": vectors.unfinished} if vectors.unfinished else {}),
    }


def build_lexical(
    collection: Collection, folder: Path, family: str, settings: Any, progress: Progress
) -> dict[str, Any]:
    """Build a lexical index, with the documents beside it; returns its facts.

    Mismatch when one is there with other settings, or of what the collection was before.
    """
    with as_it_was(folder):
        claim_lexical(collection, folder, family, settings)
        if built := ready(folder):
            _check_stamp(built, collection, folder)
            return built
        stamp = collection.stamp()
        made = build_words(collection, folder, family, settings, progress)
        return finish(folder, made, {"stamp": stamp}, "")


def _check_stamp(built: dict[str, Any], collection: Collection, folder: Path) -> None:
    lines = manifest.differences(built["of"]["stamp"], collection.stamp())
    if lines:
        raise Mismatch(
            f"{collection.name} has changed since {folder} was built (then | now):\n  "
            + "\n  ".join(lines)
            + "\nbring the index up to date with --if-exists update"
        )


def claim_lexical(collection: Collection, folder: Path, family: str, settings: Any) -> None:
    """Make `folder` an index of this kind; Mismatch when it is one with other settings."""
    kind = catalog.load(catalog.INDEXES, family, "index kind")
    identity = {
        "family": family,
        "settings": asdict(settings),
        "analysis": kind.analysis(settings),
        "collection": {"name": collection.name, "settings": collection.settings},
    }
    manifest.claim(folder, Manifest("index", identity, facts=manifest.environment()))


def build_words(
    collection: Collection, where: Path, family: str, settings: Any, progress: Progress
) -> dict[str, Any]:
    """The files of a lexical index and its documents, written into a folder; returns facts."""
    kind = catalog.load(catalog.INDEXES, family, "index kind")
    kept = _Kept(where)
    made = kind.build(kept.through(collection.docs()), where, settings, progress)
    return {**made, "collection": str(kept.digest)}


class _Kept:
    """Writes documents to docs.parquet while they pass by, and sums their digest."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DOCS
        self.digest = CollectionDigest()

    def through(self, docs: Iterable[Doc]) -> Iterator[Doc]:
        """The same documents; DataError for an id that comes twice."""
        seen = UniqueIds()
        with atomic_file(self._path) as temporary:
            table = DocTableWriter(temporary, store_text=True)
            for batch in batched(docs, lambda doc: len(doc.text) + 64, 1 << 20):
                seen.add((doc.id for doc in batch), "this collection")
                for doc in batch:
                    row = DocRow(doc, doc_hash(doc), 0, 0, 0)
                    table.append(row)
                    self.digest.add(row.hash)
                    yield doc
            table.close()


def finish(folder: Path, facts: dict[str, Any], of: dict[str, Any], at: str) -> dict[str, Any]:
    """Say that the index whose files are in subfolder `at` is whole, with its digest for the chain."""
    identity = manifest.read(folder).identity
    made_of = [facts.get("collection", ""), of.get("vectors", ""), of.get("numbering", [])]
    chain = manifest.digest({"identity": identity, "of": made_of})
    facts = {**facts, "digest": chain, "of": of, "at": at}
    with atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(facts, indent=1))
    return facts
