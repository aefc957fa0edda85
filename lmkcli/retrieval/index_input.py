"""The input of an index: a folder of vectors, or a collection.

An input knows what identifies it, what an index records about its state, and whether this state has changed
since. Engines that append to an index get the changes of the vectors.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import IndexedCollection
from lmkcli.data.collection import Collection, open_collection
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import Report
from lmkcli.retrieval.index_folder import (
    BuiltIndex,
    CollectionStamp,
    InputState,
    VectorsState,
    state_of_vectors,
)
from lmkcli.retrieval.vectors.ranked_units import (
    NumberedPart,
    number,
    number_docs,
    read_numbering,
    still_live,
)
from lmkcli.store import parts
from lmkcli.store.parts import PartSlice
from lmkcli.vectors.rows import AnyRows
from lmkcli.vectors.stored import Vectors


class CannotAppend(Exception):
    """An existing index cannot get the changes of its input. The text is the reason; it is built again."""


class IndexInput(Protocol):
    """What an index is built from. `collection` is None for vectors."""

    @property
    def collection(self) -> Collection | None: ...

    def identity(self) -> dict[str, Any]:
        """Return the fields of IndexIdentity that identify the input."""

    def facts(self, folder: Path) -> dict[str, Any]:
        """Return the fields of IndexFacts about the location of the input of the index in `folder`."""

    def state(self, numbering: list[NumberedPart] | None = None) -> InputState:
        """Return the state of the input, which an index records.

        `numbering` are the parts that the index numbers; by default, those of all vectors.
        """

    def check_same(self, of: InputState, folder: Path) -> None:
        """Raise Mismatch if the index in `folder` was built from another state of the input."""

    def is_unchanged(self, of: InputState) -> bool:
        """Return whether the input certainly has the recorded state."""


@dataclass(frozen=True)
class CollectionInput:
    """A collection to index. Its state is the size and the time of its files, if it has any."""

    collection: Collection

    @classmethod
    def open(cls, spelling: str, context: str) -> Self:
        """Open a collection, with the field that a context needs."""
        return cls(open_collection(spelling, context=context))

    def identity(self) -> dict[str, Any]:
        """Return the name and the settings of the collection."""
        named = IndexedCollection(name=self.collection.name, settings=self.collection.settings)
        return {"collection": named}

    def facts(self, folder: Path) -> dict[str, Any]:
        """Return nothing: the identity contains the name."""
        return {}

    def state(self, numbering: list[NumberedPart] | None = None) -> CollectionStamp:
        """Return the stamp of the files."""
        return CollectionStamp(stamp=self.collection.file_stats())

    def check_same(self, of: InputState, folder: Path) -> None:
        """Raise Mismatch if the files have changed."""
        if lines := manifest.json_differences(_stamp(of), self.state().stamp):
            raise Mismatch(
                f"{self.collection.name} has changed since {folder} was built (then | now):\n  "
                + "\n  ".join(lines)
                + "\nupdate the index with --if-exists update"
            )

    def is_unchanged(self, of: InputState) -> bool:
        """Return whether the files are the same. A collection without files may always have changed."""
        stamp = self.state().stamp
        return bool(stamp) and stamp == _stamp(of)


def _stamp(of: InputState) -> dict[str, list[int]]:
    assert isinstance(of, CollectionStamp)  # `read_record` compares it with the manifest
    return of.stamp


class Changes(NamedTuple, Generic[AnyRows]):
    """The changes of vectors since an index was built or updated.

    fresh: the new parts. first: the number that their first vector gets in the index.
    deleted: the number of documents that the index numbers, and that are deleted now.
    kept: the number of documents that it numbers, and that still exist.
    numbering: the parts that the index numbers after the update.
    """

    fresh: Vectors[AnyRows]
    first: int
    deleted: int
    kept: int
    numbering: list[NumberedPart]


@dataclass(frozen=True)
class VectorsInput(Generic[AnyRows]):
    """The vectors of a folder. With `by_document`, the index numbers documents instead of vectors."""

    vectors: Vectors[AnyRows]
    by_document: bool = False
    collection: ClassVar[None] = None

    @classmethod
    def open(
        cls,
        source: Path,
        kind: str,
        allow_incomplete: bool,
        report: Report,
        by_document: bool = False,
    ) -> Self:
        """Open the vectors to index. Unfinished shards are errors without `allow_incomplete`.

        Raises UsageError if the vectors are of another kind than `kind` (`CodecRow.rows`).
        """
        vectors: Vectors[AnyRows] = (
            Vectors.open_incomplete(source) if allow_incomplete else Vectors(source)
        )
        vectors.require(kind)
        if vectors.unfinished:
            numbers = ", ".join(map(str, vectors.unfinished))
            report.note(
                f"{source} lacks the unfinished shards {numbers}; {vectors.rows:,} documents are indexed"
            )
        return cls(vectors, by_document)

    def identity(self) -> dict[str, Any]:
        """Return the recipe of the vectors."""
        return {"recipe": self.vectors.recipe}

    def facts(self, folder: Path) -> dict[str, Any]:
        """Return the location of the vectors, relative to the index."""
        return {"vectors": os.path.relpath(self.vectors.folder, folder)}

    def state(self, numbering: list[NumberedPart] | None = None) -> VectorsState:
        """Return the live rows of each part, and the parts that the index numbers; all by default."""
        vectors, numbering = self.vectors, numbering or self._numbered(self.vectors)
        order = {part.piece.name: place for place, part in enumerate(numbering)}
        now = sorted(vectors.slices, key=lambda piece: order[piece.name])
        return VectorsState(
            digest=vectors.digest(),
            parts=[piece.as_json() for piece in now],
            numbering=[part.as_json() for part in numbering],
            part_digests={str(piece.name): vectors.part_digest(piece.name) for piece in now},
            unfinished_shards=tuple(vectors.unfinished),
        )

    def _numbered(self, vectors: Vectors[AnyRows]) -> list[NumberedPart]:
        return number_docs(vectors) if self.by_document else number(vectors)

    def check_same(self, of: InputState, folder: Path) -> None:
        """Raise Mismatch if the vectors have another digest."""
        if not self.is_unchanged(of):
            raise Mismatch(
                f"{folder} was built from other vectors than those now in {self.vectors.folder}; update it "
                "with --if-exists update, or replace it with --if-exists overwrite"
            )

    def is_unchanged(self, of: InputState) -> bool:
        """Return whether the vectors have the same digest."""
        return state_of_vectors(of).digest == self.vectors.digest()

    def changes(self, of: InputState) -> Changes[AnyRows]:
        """Return what has changed since the state `of`. Raises CannotAppend if these are other vectors.

        A part of other vectors has another digest, or contains a document again that was deleted.
        """
        then = state_of_vectors(of)
        numbering = read_numbering(then)
        numbered = {part.piece.name: part.piece for part in numbering}
        added = []
        for piece in self.vectors.slices:
            if piece.name not in numbered:
                added.append(piece)
                continue
            same = then.part_digests.get(str(piece.name)) == self.vectors.part_digest(piece.name)
            if not same or (piece.live & ~numbered[piece.name].live).any():
                raise CannotAppend("these are other vectors")
        fresh: Vectors[AnyRows] = Vectors(self.vectors.folder, added)
        live = still_live(numbering, self.vectors.slices)
        return Changes(
            fresh,
            sum(part.vectors for part in numbering),
            deleted=int((~live).sum()),
            kept=int(live.sum()),
            numbering=[*numbering, *self._numbered(fresh)],
        )


def indexed_vectors(index: BuiltIndex, moved: str, kind: str) -> Vectors[Any]:
    """Open the vectors that an index was built from, at their recorded location or at `moved`.

    Raises DataError if they are missing, Mismatch if they are other vectors, and UsageError if they are of
    another kind than `kind`.
    """
    folder, of = index.folder, index.vectors
    path = Path(moved) if moved else folder / index.described.facts.vectors
    if not (path / manifest.NAME).exists():
        raise DataError(
            f"the vectors of {folder} are not at {path}; give their location with --vectors"
        )
    slices = [PartSlice.from_json(item) for item in of.parts]
    vectors: Vectors[Any] = Vectors(path, slices)
    vectors.require(kind)
    missing = {piece.name for piece in slices} - set(parts.list_parts(path))
    if missing or vectors.digest() != of.digest:
        raise Mismatch(
            f"{path} are not the vectors that {folder} was built from; build the index again"
        )
    return vectors


def notes_of(index: BuiltIndex, vectors: Vectors[Any]) -> tuple[str, ...]:
    """Return notes for the user: if the vectors were incomplete, or were updated after the index."""
    notes = []
    if shards := index.vectors.unfinished_shards:
        notes.append(
            f"{index.folder} lacks documents of the shards {', '.join(map(str, shards))}, which were not "
            "finished."
        )
    if Vectors.open_incomplete(vectors.artifact).digest() != vectors.digest():
        notes.append(
            f"{index.folder} is behind {os.path.normpath(vectors.folder)}, which was updated since; the "
            "index searches the vectors that it was built from. Update it with its index command and "
            "--if-exists update"
        )
    return tuple(notes)
