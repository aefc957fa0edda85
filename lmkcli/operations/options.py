"""Settings that several operations share: the input collection and the output."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lmkcli.artifact.outputs import clear, is_artifact, is_cleared, is_empty
from lmkcli.data import known_collections
from lmkcli.data.collection import Collection
from lmkcli.errors import DataError, UsageError
from lmkcli.models.lookup import OWN_NAMES
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import options
from lmkcli.spec.settings import Flag, Offline, Settings
from lmkcli.spec.values import WHOLE, Shard
from lmkcli.system.atomic import exclusive, locked
from lmkcli.system.output_streams import check_stream, is_stream

if TYPE_CHECKING:
    from lmkcli.store.parts import PartSlice

# Suffixes of files. If the name of an output folder has one of them, it is probably a mistake.
_FILES = {
    *(".trec", ".run", ".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz", ".zip"),
    *(".npy", ".npz", ".faiss", ".safetensors", ".pt", ".bin", ".png", ".svg", ".pdf"),
}
MAX_SKIPPED_NOTES = 10  # notes about skipped documents
MapIds = Annotated[bool, Flag("Replace white space in ids by '_'.", role="reading")]


def with_fields(spelling: str, fields: str, map_ids: bool) -> str:
    """Add the values of --fields and --map-ids to the spelling of a collection."""
    return spelling + (f",fields={fields}" if fields else "") + (",map_ids=1" if map_ids else "")


@dataclass(frozen=True, kw_only=True)
class CollectionOptions(Settings):
    """Options for reading a collection, and the shard to process."""

    panel: ClassVar[str] = "Documents"
    fields: Annotated[
        str,
        Flag(
            "Text fields of a record, joined by '+', such as headline+body.",
            role="reading",
            suggest_for="--text-field --field",
        ),
    ] = ""
    map_ids: MapIds = False
    shard: Annotated[
        Shard,
        Flag(
            "Process shard i/n of the collection, such as $SLURM_ARRAY_TASK_ID/16.",
            role="mode",
            suggest_for="--num-shards --shard-index --dataset-shard-index --dataset-number-of-shards",
        ),
    ] = WHOLE
    offline: Offline = False

    def spelling(self, collection: str) -> str:
        """Return the spelling of a collection, with the values of --fields and --map-ids."""
        return with_fields(collection, self.fields, self.map_ids)


def check_file(flag: str, path: Path, example: str) -> None:
    """Raise UsageError if the output file of a flag is a folder, such as '.', '..' or '/'."""
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder; name a file, such as {example}")


def output_flag(text: str) -> Flag:
    """Return the flag -o/--output with this help text."""
    return Flag(
        text,
        short="-o",
        often=True,
        role="output",
        suggest_for="--output-dir --output-file --output-path --save-to",
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Settings):
    """The output path, and the action if it exists."""

    panel: ClassVar[str] = "Output"
    example: ClassVar[str]  # a typical output path; folders end with a slash
    output: Annotated[Path | None, output_flag("Output path.")] = None
    if_exists: Annotated[
        Literal["resume", "fail", "overwrite", "update"],
        Flag(
            "If the output exists: continue it, fail, replace it, or update it.",
            role="mode",
            suggest_for="--overwrite --force --resume --update --overwrite-output-dir --append",
        ),
    ] = "resume"


@dataclass(frozen=True, kw_only=True)
class NewOutput(OutputOptions):
    """The output path, and the action if it exists, for outputs that cannot be updated."""

    if_exists: Annotated[
        Literal["resume", "fail", "overwrite"],
        Flag(
            "If the output exists: continue it, fail, or replace it.",
            role="mode",
            suggest_for="--overwrite --force --resume --overwrite-output-dir",
        ),
    ] = "resume"


class Destination:
    """The output of an operation: its path, and the treatment of an existing output.

    Creating it raises errors before a model or a library is loaded: for an existing output that may not be
    replaced, for the name of a file instead of a folder, and for a folder instead of a file.
    """

    def __init__(self, operation: Any, shards: int = 1) -> None:
        """Check the output of an Operation with OutputOptions, which `shards` tasks write together."""
        self._operation, self._shards = operation, shards
        example = operation.example
        if operation.output is None:
            raise UsageError(f"-o/--output is missing; for instance -o {example}")
        self.path: Path = operation.output
        self.stream = is_stream(self.path)
        if self.stream:
            if example.endswith("/"):
                raise UsageError(
                    f"-o {self.path}: lmk {operation.verb} writes a folder, such as {example}"
                )
            check_stream(self.path)
            return
        if example.endswith("/") and self.path.suffix in _FILES and not self.path.is_dir():
            raise UsageError(
                f"-o {self.path}: lmk {operation.verb} writes a folder, and {self.path.suffix} is the suffix "
                f"of a file; write for instance -o {example}"
            )
        if not example.endswith("/"):
            check_file("-o", self.path, example)
        self._check()

    @property
    def replaces(self) -> bool:
        """Whether an existing artifact will be removed. Callers check their inputs before that."""
        return bool(self._operation.if_exists == "overwrite" and is_artifact(self.path))

    @property
    def updates(self) -> bool:
        """Whether an existing artifact will be updated."""
        return bool(self._operation.if_exists == "update")

    def prepare(self, report: Report) -> Path:
        """Return the path, empty or ready to be continued, according to `if_exists`."""
        if not self.stream:
            self._check()
            overwrite = self._operation.if_exists == "overwrite" and not is_empty(self.path)
            if overwrite or is_cleared(
                self.path
            ):  # a killed process may have left a cleared folder
                with locked(self.path) if self.path.is_dir() else nullcontext():
                    rest = clear(self.path, reuse=True)
                if rest:
                    names = ", ".join(rest)
                    report.note(f"{self.path} also contains {names}; lmk left this unchanged")
        return self.path

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let only one process at a time write the output; the others raise Stopped."""
        with exclusive(self.path):
            yield

    def _check(self) -> None:
        path, if_exists = self.path, self._operation.if_exists
        if self._shards > 1 and if_exists == "overwrite":
            raise UsageError(
                f"--if-exists overwrite would remove the work of other shards; remove {path} once, then "
                "run all shards without the flag"
            )
        if is_empty(path):
            return
        if if_exists == "fail":
            raise DataError(
                f"{path} exists; choose another output, or use --if-exists resume or overwrite"
            )
        if not is_artifact(path) and not is_cleared(path):
            raise DataError(
                f"{path} exists and was not made by lmk; it was left unchanged. Choose another output"
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
    """Yield the existing files and folders that an operation reads, including those in options of a
    collection.
    """
    roles = ("collection", "model", "artifact", "run", "file")
    for option in options(type(operation)):
        if option.flag.role not in roles:
            continue
        value = getattr(operation, option.name)
        for given in filter(None, value if isinstance(value, list) else [value]):
            names = (os.path.expanduser(w.rpartition("=")[2]) for w in str(given).split(","))
            yield from (each for each in names if os.path.exists(each) and each not in OWN_NAMES)


def shadowed_folders(operation: Operation[Any]) -> Iterator[str]:
    """Yield a note for each name of a collection or a model that is also a folder in the current folder."""
    for option in options(type(operation)):
        value = getattr(operation, option.name)
        if option.flag.role not in ("collection", "model") or not value:
            continue
        for given in value if isinstance(value, list) else [value]:
            word = str(given).split(",")[0].split(":")[0]  # without options and a split
            if word in (".", "..") or "/" in word or not Path(word).is_dir():
                continue
            if option.flag.role == "collection" and (line := _ambiguous(word)):
                yield line
            if option.flag.role == "model" and word in OWN_NAMES:
                yield f"{word} refers to the known model; write ./{word} for the folder"


def _ambiguous(word: str) -> str:
    """Return what a word refers to that is the name of a folder and of a known collection; else empty.

    The name of an artifact always refers to the artifact.
    """
    from lmkcli.data.collection import has_documents, is_known

    if (Path(word) / "manifest.json").is_file() or not is_known(word):
        return ""
    if has_documents(word) and not known_collections.members(word):
        return f"{word} refers to the folder ./{word}; write irds:{word} for the known collection"
    return f"{word} refers to the known collection; write ./{word} for the folder"


def expand(operation: Operation[Any]) -> list[tuple[str, Operation[Any]]]:
    """If the operation's collection is a group: (member, operation) for each member; else an empty list.

    The output of a member is OUTPUT/<name><suffix>, with '-' instead of '/' in the name. If an input folder
    has an entry of that name, the entry is the input of the member (`lmk search vectors/ beir -o runs/`).
    """
    field, suffix = operation.per_member
    members = known_collections.members(getattr(operation, field) or "") if field else []
    output = getattr(operation, "output", None)
    taken = output is not None and (
        is_stream(output) or output.is_file() or (output / "manifest.json").is_file()
    )
    if members and taken:
        raise UsageError(
            f"-o {output} is a single artifact or file; a group needs a folder for its members"
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
    """Return the artifact or run of one member, if the folder contains it; else the folder."""
    candidates = (folder / f"{file}{suffix}" for suffix in ("", ".trec", ".trec.gz"))
    return next((path for path in candidates if path.exists()), folder)


def note_differences(
    report: Report, name: str, docs: int | None = None, queries: int | None = None
) -> None:
    """Print a note for each count that differs from the published count."""
    for line in known_collections.count_differences(name, docs, queries):
        report.note(line)


def note_columns(report: Report, collection: Collection | None) -> None:
    """Print the columns that lmk found in a file of other people."""
    if collection is not None:
        _ = collection.settings  # it reads the first rows
        for line in collection.notes():
            report.note(line)


def note_vectors(report: Report, folder: Path, slices: "list[PartSlice] | None" = None) -> None:
    """Print what the codec of a folder says about its vectors, or about some slices."""
    from lmkcli.vectors.stored import Vectors

    vectors: Vectors[Any] = Vectors(folder, slices)
    for line in vectors.codec.notes(vectors):
        report.note(line)


def note_skipped(report: Report, source: object) -> None:
    """Print the summary of a collection, or the first files or rows that it skipped, and their number."""
    if isinstance(source, Collection) and (line := source.summary()):
        report.note(line)
        return
    skipped_files = getattr(source, "skipped_files", None)
    skipped: dict[str, str] = skipped_files() if skipped_files else {}
    for name, reason in list(skipped.items())[:MAX_SKIPPED_NOTES]:
        report.note(f"skipped: {name} {reason}")
    number = max(source.skipped_count() if isinstance(source, Collection) else 0, len(skipped))
    if number > MAX_SKIPPED_NOTES:
        more = number - MAX_SKIPPED_NOTES
        report.note(f"skipped: {more:,} more; lmk show lists them with the name of the collection")
