"""BuildIndex: vectors or a collection to an index that is fast to search."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.operations.options import (
    Destination,
    OutputOptions,
    note_differences,
    note_left_out,
    with_fields,
)
from lmkcli.progress import Report
from lmkcli.settings import AnnSettings, Bm25Settings, Flag, MilvusSettings, Offline, Settings
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result
from lmkcli.text.numbers import size

if TYPE_CHECKING:
    from lmkcli.retrieval.updating import Updated
    from lmkcli.store.vectors import Vectors

_SHOWN = (
    *("factory", "documents", "chunks", "rows", "vocabulary", "postings"),
    *("training_rows", "bytes"),
)


@dataclass(frozen=True)
class Built(Result):
    """An index folder and the facts of its engine, such as rows, documents and bytes."""

    output: Path
    facts: dict[str, Any]

    def as_json(self) -> Any:
        """The folder and the facts."""
        kept = {key: item for key, item in self.facts.items() if key not in ("of", "files")}
        return {"output": str(self.output), **kept}

    def __str__(self) -> str:
        facts = {key: self.facts[key] for key in _SHOWN if key in self.facts}
        shown = [
            f"{key} {item:,}" if isinstance(item, int) else f"{key} {item}"
            for key, item in facts.items()
        ]
        return f"{self.output}: {', '.join(shown)}"


@dataclass(frozen=True)
class ShardDone(Result):
    """One finished shard, and the numbers of those that are unfinished."""

    output: Path
    shard: str
    unfinished: list[int]

    def as_json(self) -> Any:
        """The folder of the shards and the unfinished ones."""
        return {"output": str(self.output), "unfinished": self.unfinished}

    def __str__(self) -> str:
        left = len(self.unfinished)
        rest = f"{left} are unfinished" if left else "all are finished: run this without --shard"
        return f"{self.output}: shard {self.shard} is done, {rest}"


@dataclass(frozen=True, kw_only=True)
class IndexSource(Settings):
    """How the input is read, and which shard of it is indexed."""

    panel: ClassVar[str] = "Documents"
    fields: Annotated[
        str,
        Flag("Text fields of a record, joined by '+', such as headline+body.", only="lexical"),
    ] = ""
    map_ids: Annotated[bool, Flag("White space in ids becomes '_'.", only="lexical")] = False
    offline: Offline = False
    stopwords_file: Annotated[
        str | None,
        Flag(
            "bm25, lucene: a file of stop words, one per line; or none.",
            long="--stopwords",
            metavar="FILE",
            role="file",
            only="lexical",
        ),
    ] = None
    shard: Annotated[
        str,
        Flag(
            "ivf and other lists: build slice i/n of the vectors; the same command without --shard joins "
            "the slices.",
            role="mode",
            only="faiss",
        ),
    ] = ""
    apart: Annotated[
        bool,
        Flag(
            "Joining: leave the slices in files of their own, which are searched as one index.",
            only="faiss",
        ),
    ] = False
    allow_incomplete: Annotated[
        bool,
        Flag(
            "Index vectors of which some shards are unfinished.",
            role="mode",
            only="faiss database",
        ),
    ] = False


@dataclass(frozen=True)
class BuildIndex(
    Operation[Built | ShardDone | None],
    OutputOptions,
    IndexSource,
    MilvusSettings,
    Bm25Settings,
    AnnSettings,
):
    """Vectors to a FAISS index or into Milvus, or a collection to a BM25 index. Exact search needs none."""

    verb: ClassVar[str] = "index"
    example: ClassVar[str] = "index/"
    per_member: ClassVar[tuple[str, str]] = ("source", "")

    source: Annotated[
        str,
        Flag(
            "A vectors folder; for bm25 and lucene a collection.",
            argument=True,
            metavar="INPUT",
            role="collection",
        ),
    ]

    def variant(self) -> tuple[str, str]:
        """'lexical', 'database' or 'faiss'."""
        if self.kind in catalog.LEXICAL:
            return "lexical", f"--kind {self.kind}"
        return "database" if self.kind in catalog.DATABASES else "faiss", f"--kind {self.kind}"

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.kind == "exact":
            raise UsageError(
                f"exact search needs no index: lmk search {self.source} compares every vector"
            )
        if self.shard and self.apart:
            raise UsageError(
                "--apart applies to joining slices: give it without --shard, once all are built"
            )
        if self.kind in catalog.DATABASES and not (self.uri and self.collection):
            raise UsageError(
                f"--kind {self.kind} needs a place and a name, for instance --uri ./milvus.db --collection "
                "docs"
            )

    def check_effect(self, given: Any) -> None:
        """Raise UsageError for flags that this kind of index does not have."""
        super().check_effect(given)
        unused = {"m", "ef_construction"} & {*given}
        if self.kind in catalog.DATABASES and unused and self.index_type != "HNSW":
            flags = ", ".join(
                f"--{name.replace('_', '-')}" for name in sorted(unused, reverse=True)
            )
            raise UsageError(f"{flags} has no effect with --index-type {self.index_type}; drop it")

    def execute(self, report: Report) -> Built | ShardDone | None:
        """Build the index, one shard of it, or join its shards."""
        place = Destination(self, self._shards)
        if self.shard:
            return self._build_shard(place, report)
        if self.kind in catalog.DATABASES:
            facts = self._database(place, report)
        elif self.kind in catalog.LEXICAL:
            facts = self._lexical(place, report)
        else:
            facts = self._dense(place, report)
        return Built(place.path, facts)

    @property
    def _shards(self) -> int:
        from lmkcli.data.collection import Shard

        return Shard.parse(self.shard or "0/1").count

    def _lexical(self, place: Destination, report: Report) -> dict[str, Any]:
        from lmkcli import manifest
        from lmkcli.data.collection import open_collection
        from lmkcli.data.contexts import field_of
        from lmkcli.retrieval.building import build_lexical, identity_of_lexical
        from lmkcli.retrieval.updating import update_lexical
        from lmkcli.text.analysis import NONE, read_stopwords

        settings = self.part(Bm25Settings)
        if (file := self.stopwords_file) is not None:
            words = "" if file == NONE else read_stopwords(Path(file))
            settings = replace(settings, stopwords=words)
        spelling = with_fields(self.source, self.fields, self.map_ids)
        if (Path(spelling) / manifest.NAME).is_file():
            raise UsageError(
                f"{spelling} is an artifact of lmk; --kind {self.kind} needs the collection itself"
            )
        collection = open_collection(spelling, context=field_of(settings.context))
        if place.replaces:  # what is refused here leaves the older index in place
            identity_of_lexical(collection, self.kind, settings)
        folder = place.prepare(report)
        made = (collection, folder, self.kind, settings)
        facts = self._built(
            folder, partial(build_lexical, *made), partial(update_lexical, *made), report
        )
        note_left_out(report, collection)
        note_differences(report, spelling, docs=facts["documents"])
        return facts

    def _built(
        self,
        folder: Path,
        build: Callable[[Report], dict[str, Any]],
        update: "Callable[[Report], Updated]",
        report: Report,
    ) -> dict[str, Any]:
        """The facts of an index that is built, or brought up to date with --if-exists update."""
        with report.step("index") as job:
            if self.if_exists != "update":
                return build(job)
            updated = update(job)
        report.note(f"{folder}: {updated.how}")
        return updated.facts

    def _vectors(self, report: Report) -> "Vectors":
        from lmkcli import manifest
        from lmkcli.store.vectors import Vectors

        source = Path(self.source)
        if not (source / manifest.NAME).is_file():
            raise UsageError(
                f"{source} is no vectors folder; make one with lmk encode (a collection goes with --kind "
                "bm25)"
            )
        if not self.allow_incomplete:
            return Vectors(source)
        vectors = Vectors.open_incomplete(source)
        if vectors.unfinished:
            numbers = ", ".join(map(str, vectors.unfinished))
            report.note(
                f"{source} lacks the unfinished shards {numbers}; {vectors.rows:,} documents are indexed"
            )
        return vectors

    def _database(self, place: Destination, report: Report) -> dict[str, Any]:
        from lmkcli.retrieval.database import build_database, reserve, update_database

        settings = self.part(MilvusSettings)
        vectors = self._vectors(report)
        replaces = self.if_exists == "overwrite"
        database = reserve(vectors, settings, replaces)  # before an older index is removed
        folder = place.prepare(report)
        if replaces:
            database.drop()
        made = (vectors, folder, settings)
        return self._built(
            folder, partial(build_database, *made), partial(update_database, *made), report
        )

    def _build_shard(self, place: Destination, report: Report) -> ShardDone | None:
        from lmkcli.data.collection import Shard
        from lmkcli.retrieval.building import build_dense
        from lmkcli.retrieval.index_folder import read_built
        from lmkcli.retrieval.shard_building import build_shard

        if self.if_exists == "update":
            raise UsageError("--shard builds a new index; --if-exists update updates a whole index")
        vectors, settings = self._vectors(report), self.part(AnnSettings)
        if read_built(place.path):
            build_dense(
                vectors, place.path, settings
            )  # refuses an index of other vectors or settings
            report.note(f"{place.path} is already built")
            return None
        with report.step("index") as job:
            shards = build_shard(vectors, place.path, settings, Shard.parse(self.shard), job)
        return ShardDone(shards.folder, self.shard, shards.unfinished())

    def _dense(self, place: Destination, report: Report) -> dict[str, Any]:
        from lmkcli.retrieval.building import build_dense, check_dense, memory_of
        from lmkcli.retrieval.index_folder import read_built
        from lmkcli.retrieval.shard_building import find_shards, join_shards
        from lmkcli.retrieval.updating import update_dense

        vectors, settings, folder = self._vectors(report), self.part(AnnSettings), place.path
        if shards := find_shards(vectors, folder, settings):
            shards.check_whole()  # before an older index is removed
            place.prepare(report)
            return join_shards(vectors, folder, settings, self.apart, report)
        if self.apart and not read_built(folder):
            raise UsageError(
                f"--apart joins slices, and {folder} has none: build each with --shard i/n"
            )
        needed = size(memory_of(vectors, settings))
        if place.replaces:  # what is refused here leaves the older index in place
            check_dense(vectors, settings)
        place.prepare(report)
        report.note(
            f"{settings.kind} over {vectors.total:,} x {vectors.dim}: about {needed} to build"
        )
        made = (vectors, folder, settings)
        return self._built(
            folder, partial(build_dense, *made), partial(update_dense, *made), report
        )
