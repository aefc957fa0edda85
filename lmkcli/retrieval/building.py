"""Building: vectors or a collection to an index folder."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.data.collection import Collection, Doc
from lmkcli.data.digest import CollectionDigest, doc_hash
from lmkcli.errors import Mismatch, UsageError
from lmkcli.manifest import Manifest
from lmkcli.progress import Call, Progress, Report
from lmkcli.retrieval.chunking import chunks, fault
from lmkcli.retrieval.index_folder import DOCS, read_built, write_built
from lmkcli.retrieval.kinds import ann_kind, family_of, lexical_kind
from lmkcli.retrieval.numbering import NumberedPart, number
from lmkcli.retrieval.views import flat
from lmkcli.settings import AnnSettings, Bm25Settings
from lmkcli.store.doctable import DocRow, DocTableWriter
from lmkcli.store.outputs import rollback_on_error
from lmkcli.store.unique_ids import UniqueIds
from lmkcli.store.vectors import Vectors
from lmkcli.system.atomic import atomic_file
from lmkcli.system.streams import batched


def memory_of(vectors: Vectors, settings: AnnSettings) -> int:
    """Bytes that building an index takes at its peak, roughly."""
    return ann_kind(family_of(settings.kind)).memory(flat(vectors), settings)


def check_dense(vectors: Vectors, settings: AnnSettings) -> None:
    """UsageError or DataError for an index that would be refused before any work on it."""
    ann_kind(family_of(settings.kind)).check_buildable(flat(vectors), settings)


def build_dense(
    vectors: Vectors, folder: Path, settings: AnnSettings, report: Report = Report()
) -> dict[str, Any]:
    """Build an index over vectors; returns its facts. A finished one of the same vectors is kept.

    Mismatch when one is there with other settings, or of other vectors.
    """
    with rollback_on_error(folder):
        claim_dense(vectors, folder, settings, report.call)
        if built := built_from(vectors, folder):
            return built
        kind = ann_kind(family_of(settings.kind))
        facts = kind.build(flat(vectors), folder, settings, report.progress)
        return write_built(folder, facts, built_of(vectors, number(vectors)), "")


def built_from(vectors: Vectors, folder: Path) -> dict[str, Any]:
    """What built.json says of an index of these vectors, empty while there is none; Mismatch for others."""
    built = read_built(folder)
    if built and built["of"]["vectors"] != vectors.digest():
        raise Mismatch(
            f"{folder} was built from other vectors than {vectors.folder} holds now; bring it "
            "up to date with --if-exists update, or replace it with --if-exists overwrite"
        )
    return built


def claim_dense(vectors: Vectors, folder: Path, settings: AnnSettings, call: Call) -> None:
    """Make `folder` an index of this kind; Mismatch when it is one with other settings."""
    recorded = asdict(replace(settings, max_memory=0))  # the machine's, not the index's
    claim_vectors(vectors, folder, family_of(settings.kind), recorded, call)


def claim_vectors(
    vectors: Vectors,
    folder: Path,
    family: str,
    settings: dict[str, Any],
    call: Call,
) -> None:
    """Make `folder` an index of these vectors; Mismatch when it is one with other settings."""
    identity = {"family": family, "settings": settings, "recipe": vectors.recipe.identity()}
    facts = {**manifest.environment(call), "vectors": os.path.relpath(vectors.folder, folder)}
    manifest.claim(folder, Manifest("index", identity, facts=facts))


def built_of(vectors: Vectors, numbered: list[NumberedPart]) -> dict[str, Any]:
    """What an index records of its vectors: which rows of which parts, and what its own rows number."""
    order = {part.piece.name: place for place, part in enumerate(numbered)}
    now = sorted(vectors.slices, key=lambda piece: order[piece.name])
    return {
        "vectors": vectors.digest(),
        "parts": [piece.as_json() for piece in now],
        "numbering": [part.as_json() for part in numbered],
        "digests": {str(piece.name): vectors.part_digest(piece.name) for piece in now},
        **({"unfinished shards": vectors.unfinished} if vectors.unfinished else {}),
    }


def build_lexical(
    collection: Collection,
    folder: Path,
    family: str,
    settings: Bm25Settings,
    report: Report = Report(),
) -> dict[str, Any]:
    """Build a lexical index, with the documents beside it; returns its facts.

    Mismatch when one is there with other settings, or of what the collection was before.
    """
    with rollback_on_error(folder):
        claim_lexical(collection, folder, family, settings, report.call)
        if built := read_built(folder):
            _check_stamp(built, collection, folder)
            return built
        stamp = collection.stamp()
        facts = build_words(collection, folder, family, settings, report.progress)
        return write_built(folder, facts, {"stamp": stamp}, "")


def _check_stamp(built: dict[str, Any], collection: Collection, folder: Path) -> None:
    lines = manifest.json_differences(built["of"]["stamp"], collection.stamp())
    if lines:
        raise Mismatch(
            f"{collection.name} has changed since {folder} was built (then | now):\n  "
            + "\n  ".join(lines)
            + "\nbring the index up to date with --if-exists update"
        )


def claim_lexical(
    collection: Collection,
    folder: Path,
    family: str,
    settings: Bm25Settings,
    call: Call,
) -> None:
    """Make `folder` an index of this kind; Mismatch when it is one with other settings.

    UsageError as of `identity_of_lexical`.
    """
    identity = identity_of_lexical(collection, family, settings)
    manifest.claim(folder, Manifest("index", identity, facts=manifest.environment(call)))


def identity_of_lexical(
    collection: Collection, family: str, settings: Bm25Settings
) -> dict[str, Any]:
    """What decides a lexical index; UsageError for settings that cannot be."""
    if said := fault(settings):
        raise UsageError(said)
    return {
        "family": family,
        "settings": settings.identity(),
        "analysis": lexical_kind(family).analysis(settings),
        "collection": {"name": collection.name, "settings": collection.settings},
    }


def build_words(
    collection: Collection, where: Path, family: str, settings: Bm25Settings, progress: Progress
) -> dict[str, Any]:
    """The files of a lexical index and its documents, written into a folder; returns facts."""
    stored = _StoredDocs(where, bool(settings.context))
    docs: Iterable[Doc] = stored.through(collection.docs())
    if settings.unit == "chunk":
        docs = chunks(docs, settings)
    facts = lexical_kind(family).build(docs, where, settings, progress)
    if settings.unit == "chunk":
        facts |= {"documents": stored.digest.count, "chunks": facts["documents"]}
    return {**facts, "collection": str(stored.digest)}


class _StoredDocs:
    """Writes documents to docs.parquet while they pass by, and sums their digest."""

    def __init__(self, folder: Path, contexts: bool) -> None:
        self._path, self._contexts = folder / DOCS, contexts
        self.digest = CollectionDigest()

    def through(self, docs: Iterable[Doc]) -> Iterator[Doc]:
        """The same documents; DataError for an id that comes twice."""
        seen = UniqueIds()
        with atomic_file(self._path) as temporary:
            table = DocTableWriter(temporary, store_text=True, contexts=self._contexts)
            for batch in batched(docs, lambda doc: len(doc.text) + 64, 1 << 20):
                seen.add((doc.id for doc in batch), "this collection")
                for doc in batch:
                    row = DocRow(doc, doc_hash(doc), 0, 0, 0)
                    table.append(row)
                    self.digest.add(row.hash)
                    yield doc
            table.close()
