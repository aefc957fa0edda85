"""BuildIndex: vectors or a collection to an index that is fast to search."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.operations.options import (
    Destination,
    OutputOptions,
    note_columns,
    note_differences,
    note_skipped,
    with_fields,
)
from lmkcli.progress import Report
from lmkcli.retrieval.engines.index_settings import ENGINE_SETTINGS, IndexSettings, settings_of
from lmkcli.retrieval.engines.kind_setting import KindSettings
from lmkcli.retrieval.lexical.lexical_settings import LEXICAL_KINDS
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import Option
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag
from lmkcli.spec.values import Shard
from lmkcli.text.formatting import counted, shell_line

_FIRST = ("documents", "skipped", "chunks", "rows")
_LAST = ("training_rows", "bytes")
_DETAILS = ("empty", "tokens", "dim")  # in --json and lmk show only


@dataclass(frozen=True)
class Built(Result):
    """An index folder, its digest, and the facts of its engine, such as rows, documents and bytes."""

    output: Path
    facts: dict[str, Any]

    def as_json(self) -> Any:
        """Return the folder and the facts."""
        return {"output": str(self.output), **self.facts}

    def blocks(self) -> Iterator[Table | str]:
        """Yield the folder, and the numbers that the engine counted."""
        numbers = {key: item for key, item in self.facts.items() if isinstance(item, int)}
        shown = [key for key in numbers if key not in _DETAILS and key not in (*_FIRST, *_LAST)]
        order = [key for key in (*_FIRST, *shown, *_LAST) if key in numbers]
        counts = [f"{key} {numbers[key]:,}" for key in order]
        kind = [f"factory {self.facts['factory']}"] if "factory" in self.facts else []
        yield f"{self.output}: {', '.join([*kind, *counts]) or 'finished'}"


@dataclass(frozen=True)
class ShardDone(Result):
    """One finished shard, and the numbers of the unfinished shards."""

    output: Path
    shard: Shard
    unfinished: list[int]

    def as_json(self) -> Any:
        """Return the folder of the shards, and the numbers of the unfinished shards."""
        return {"output": str(self.output), "unfinished": self.unfinished}

    def blocks(self) -> Iterator[Table | str]:
        """Yield the shard, and how many others are unfinished."""
        left = len(self.unfinished)
        rest = f"{counted(left, 'other shard')} unfinished"
        if not left:
            rest = "all shards are finished: join them by the same command without --shard"
        yield f"{self.output}: shard {self.shard} is finished; {rest}"


@dataclass(frozen=True)
class BuiltShard(ShardDone, Built):
    """One shard of an index, which is not built before all shards are joined."""


@dataclass(frozen=True)
class BuildIndex(Operation[Built], OutputOptions, IndexSettings):
    """Build an index of vectors, or of a collection (BM25). Exact search needs none."""

    verb: ClassVar[str] = "index"
    example: ClassVar[str] = "index/"
    per_member: ClassVar[tuple[str, str]] = ("source", "")

    source: Annotated[
        str,
        Flag(
            f"A vectors folder; for {LEXICAL_KINDS} a collection.",
            argument=True,
            metavar="INPUT",
            role="collection",
        ),
    ]

    @property
    def _row(self) -> catalog.EngineRow:
        """The row of the engine. An unknown kind is a factory string, which its library checks."""
        return catalog.engine_row(self.kind)

    def variant(self) -> tuple[str, str]:
        """Return the variant of the engine."""
        return self._row.variant, f"--kind {self.kind}"

    def ineffective(self, option: Option) -> str:
        """Flags of another engine have no effect."""
        own = settings_of(self._row)
        engines = (each for each in ENGINE_SETTINGS if issubclass(each, option.group))
        if any(engines) and not (own and issubclass(own, option.group)):
            return f"--kind {self.kind}" if option.group is not KindSettings else ""
        return super().ineffective(option)

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.kind == "exact":
            raise UsageError(
                f"exact search needs no index: lmk search {shell_line(self.source)} compares every vector"
            )
        if self.shard and self.apart:
            raise UsageError(
                "--apart applies to joining shards: give it without --shard, once all shards are built"
            )
        if self.shard and self.if_exists == "update":
            raise UsageError("--shard builds a new index; --if-exists update updates a whole index")

    def execute(self, report: Report) -> Built:
        """Build the index, one shard of it, or join its shards."""
        from lmkcli.retrieval.index_job import IndexJob

        place = Destination(self, self.shard.count if self.shard else 1)
        source = with_fields(self.source, self.fields, self.map_ids)
        settings = self.part(IndexSettings)
        overwrite = self.if_exists == "overwrite"
        self._check_source(source)
        if self.shard:
            job = IndexJob.open(source, place.path, settings, overwrite, report)
            with report.step("index") as running:
                shards = job.build_shard(self.shard, running)
            if shards is None:
                report.note(f"{place.path} is already built")
                return Built(place.path, job.build().shown)
            return BuiltShard(shards.folder, {}, self.shard, shards.unfinished())
        with place.exclusive():
            job = IndexJob.open(source, place.path, settings, overwrite, report)
            note_columns(report, job.collection)
            folder = place.prepare(report)
            with report.step("index") as running:
                updated = job.update(running) if place.updates else None
                record = updated.record if updated else job.build(running)
        if updated:
            report.note(f"{folder}: {updated.how}")
        if job.collection is not None:
            note_skipped(report, job.collection)
            note_differences(report, source, docs=record.facts["documents"])
        return Built(folder, record.shown)

    def _check_source(self, source: str) -> None:
        """Raise UsageError for a wrong kind of input, before an engine is loaded."""
        from lmkcli.artifact import manifest

        is_artifact = (Path(source) / manifest.NAME).is_file()
        if catalog.is_lexical(self.kind) and is_artifact:
            raise UsageError(
                f"{source} is an artifact of lmk; --kind {self.kind} needs the collection itself"
            )
        if not catalog.is_lexical(self.kind) and not is_artifact:
            raise UsageError(
                f"{source} is not a vectors folder; make one with lmk encode (a collection needs --kind bm25)"
            )
