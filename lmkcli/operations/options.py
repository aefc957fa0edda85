"""Settings that several operations share: which collection is read, and where the result goes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lmkcli.data import known
from lmkcli.errors import DataError, UsageError
from lmkcli.models.finding import OWN_NAMES
from lmkcli.progress import Report
from lmkcli.settings import Flag, Offline, Settings
from lmkcli.spec.operation import Operation, options
from lmkcli.store.outputs import clear, is_artifact, is_empty

if TYPE_CHECKING:
    from lmkcli.data.collection import Shard

# Suffixes of files. A folder with such a name is a mistake.
_FILES = {
    *(".trec", ".run", ".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz", ".zip"),
    *(".npy", ".npz", ".faiss", ".safetensors", ".pt", ".bin", ".png", ".svg", ".pdf"),
}
MOST_LEFT_OUT = 10  # notes about documents that were left out
MapIds = Annotated[bool, Flag("White space in ids becomes '_'.", role="reading")]


def with_fields(spelling: str, fields: str, map_ids: bool) -> str:
    """A collection's spelling with the options that also have flags."""
    return spelling + (f",fields={fields}" if fields else "") + (",map_ids=1" if map_ids else "")


@dataclass(frozen=True, kw_only=True)
class CollectionOptions(Settings):
    """How a collection is read, and which shard of it."""

    panel: ClassVar[str] = "Documents"
    fields: Annotated[
        str,
        Flag("Text fields of a record, joined by '+', such as headline+body.", role="reading"),
    ] = ""
    map_ids: MapIds = False
    shard: Annotated[
        str,
        Flag("Slice i/n of the collection, such as $SLURM_ARRAY_TASK_ID/16.", role="mode"),
    ] = "0/1"
    offline: Offline = False

    @property
    def part_of(self) -> "Shard":
        """The shard; UsageError if the text is none."""
        from lmkcli.data.collection import Shard

        return Shard.parse(self.shard or "0/1")

    def spelling(self, collection: str) -> str:
        """The collection with the options that also have flags."""
        return with_fields(collection, self.fields, self.map_ids)


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Settings):
    """Where the result goes, and what happens if it exists."""

    panel: ClassVar[str] = "Output"
    example: ClassVar[str]  # a name of such a result; folders end with a slash
    output: Annotated[
        Path | None, Flag("Where the result goes.", short="-o", often=True, role="output")
    ] = None
    if_exists: Annotated[
        Literal["resume", "fail", "overwrite", "update"],
        Flag(
            "If the output exists: continue it, fail, replace it, or bring it up to date.",
            role="mode",
        ),
    ] = "resume"


@dataclass(frozen=True, kw_only=True)
class NewOutput(OutputOptions):
    """The same for results that cannot be brought up to date."""

    if_exists: Annotated[
        Literal["resume", "fail", "overwrite"],
        Flag("If the output exists: continue it, fail, or replace it.", role="mode"),
    ] = "resume"


class Destination:
    """The output of an operation: what is there already, and whether it may give way.

    `check` refuses everything that can be refused before a model or a library is loaded: an existing
    output that must stay, the name of a file for a folder, and the name of a folder for a file.
    """

    def __init__(self, operation: Any, shards: int = 1) -> None:
        """`operation` is an Operation with OutputOptions; `shards` is the number of tasks that share it."""
        self._operation, self._shards = operation, shards
        example = operation.example
        if operation.output is None:
            raise UsageError(f"-o/--output is missing, for instance -o {example}")
        self.path: Path = operation.output
        self.stdout = str(self.path) == "-"
        if self.stdout:
            if example.endswith("/"):
                raise UsageError(f"-o -: lmk {operation.verb} writes a folder, such as {example}")
            self.path = Path("/dev/stdout")
            return
        if example.endswith("/") and self.path.suffix in _FILES and not self.path.is_dir():
            raise UsageError(
                f"-o {self.path}: lmk {operation.verb} writes a folder, and {self.path.suffix} is the suffix "
                f"of a file; write for instance -o {example}"
            )
        if not example.endswith("/") and self.path.is_dir():
            raise UsageError(f"-o {self.path} is a folder; name a file, such as {example}")
        self._check()

    @property
    def replaces(self) -> bool:
        """Whether an existing artifact will be removed: open inputs that may be refused before that."""
        return bool(self._operation.if_exists == "overwrite" and is_artifact(self.path))

    @property
    def updates(self) -> bool:
        """Whether an existing artifact is to be brought up to date."""
        return bool(self._operation.if_exists == "update")

    def prepare(self, report: Report) -> Path:
        """The path, empty or fit to be continued, as `if_exists` says."""
        if not self.stdout:
            self._check()
            overwrite = self._operation.if_exists == "overwrite"
            if overwrite and not is_empty(self.path) and (rest := clear(self.path)):
                report.note(
                    f"{self.path} also contains {', '.join(rest)}, which lmk did not write; left unchanged"
                )
        return self.path

    def _check(self) -> None:
        path, if_exists = self.path, self._operation.if_exists
        if self._shards > 1 and if_exists == "overwrite":
            raise UsageError(
                f"--if-exists overwrite would remove the work of other shards; remove {path} once, then run "
                "every shard without the flag"
            )
        if is_empty(path):
            return
        if if_exists == "fail":
            raise DataError(
                f"{path} exists; choose another output, or --if-exists resume or overwrite"
            )
        if not is_artifact(path):
            raise DataError(
                f"{path} exists and lmk did not make it; nothing was changed. Choose another output"
            )
        if if_exists == "overwrite":
            replaced = Path(os.path.realpath(path))
            for source in named_paths(self._operation):
                real = Path(os.path.realpath(source))
                if replaced in (real, *real.parents):
                    raise UsageError(
                        f"--if-exists overwrite would remove the input {source}; choose another output"
                    )


def named_paths(operation: Operation[Any]) -> Iterator[str]:
    """The existing files and folders that an operation reads, also inside a collection's options."""
    roles = ("collection", "model", "artifact", "run", "file")
    for option in options(type(operation)):
        if option.flag.role not in roles:
            continue
        value = getattr(operation, option.name)
        for given in filter(None, value if isinstance(value, list) else [value]):
            names = (os.path.expanduser(w.rpartition("=")[2]) for w in str(given).split(","))
            yield from (each for each in names if os.path.exists(each) and each not in OWN_NAMES)


def shadowed_folders(operation: Operation[Any]) -> Iterator[str]:
    """A line for each name of a collection or a model that is also the name of a folder here."""
    for option in options(type(operation)):
        value = getattr(operation, option.name)
        if option.flag.role not in ("collection", "model") or not value:
            continue
        for given in value if isinstance(value, list) else [value]:
            word = str(given).split(",")[0].split(":")[0]  # without options and a split
            if word in (".", "..") or "/" in word or not Path(word).is_dir():
                continue
            if option.flag.role == "collection" and _is_collection(word):
                yield _shadowed(word, "collection")
            if option.flag.role == "model" and word in OWN_NAMES:
                yield _shadowed(word, "model")


def _is_collection(word: str) -> bool:
    """Whether it names a known collection; the name of an artifact means the artifact."""
    from lmkcli.data.collection import is_known

    return not (Path(word) / "manifest.json").is_file() and is_known(word)


def _shadowed(word: str, what: str) -> str:
    return f"{word} is the known {what}, not the folder of that name; the folder is ./{word}"


def expand(operation: Operation[Any]) -> list[tuple[str, Operation[Any]]]:
    """(member, operation) for each member of the group that the operation's collection names; else empty.

    The output of a member is OUTPUT/<name><suffix>, with '-' for '/' in the name. Input folders with an
    entry of that name are replaced by the entry (`lmk search vectors/ beir -o runs/`).
    """
    field, suffix = operation.per_member
    members = known.group(getattr(operation, field) or "") if field else []
    output = getattr(operation, "output", None)
    taken = output is not None and (output.is_file() or (output / "manifest.json").is_file())
    if members and taken:
        raise UsageError(
            f"-o {output} is one artifact or file already; a group needs a folder for its members"
        )
    found = []
    for name in members:
        file = name.replace("/", "-")
        changes: dict[str, Any] = {field: name}
        if output is not None:
            changes["output"] = output / f"{file}{suffix}"
        for option in options(type(operation)):
            if option.flag.role in ("artifact", "run") and (
                value := getattr(operation, option.name)
            ):
                several = isinstance(value, list)
                paths = [_entry(Path(each), file) for each in (value if several else [value])]
                changes[option.name] = paths if several else paths[0]
        found.append((name, replace(operation, **changes)))
    return found


def _entry(folder: Path, file: str) -> Path:
    """The member's own artifact or run, if the folder has one."""
    candidates = (folder / f"{file}{suffix}" for suffix in ("", ".trec", ".trec.gz"))
    return next((path for path in candidates if path.exists()), folder)


def note_differences(
    report: Report, name: str, docs: int | None = None, queries: int | None = None
) -> None:
    """A note for each count that differs from the published one."""
    for line in known.count_differences(name, docs, queries):
        report.note(line)


def note_left_out(report: Report, source: object) -> None:
    """Notes for the first documents that a collection left out, and how many more there are."""
    left_out = getattr(source, "left_out", None)
    out: dict[str, str] = left_out() if left_out else {}
    for name, reason in list(out.items())[:MOST_LEFT_OUT]:
        report.note(f"left out: {name} {reason}")
    if len(out) > MOST_LEFT_OUT:
        report.note(
            f"and {len(out) - MOST_LEFT_OUT:,} more, which lmk show lists with the collection's name"
        )
