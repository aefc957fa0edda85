"""Options that several commands share and that belong to the command line alone."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lmkcli.cli import recording
from lmkcli.cli.flags import Given
from lmkcli.errors import DataError, UsageError
from lmkcli.settings import Flag, Offline

# What ends the name of a file, of which a folder's name is a mistake.
_FILES = {
    *(".trec", ".run", ".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz", ".zip"),
    *(".npy", ".npz", ".faiss", ".safetensors", ".pt", ".bin", ".png", ".svg", ".pdf"),
}
Output = Annotated[Path | None, Flag("Where the result goes.", short="-o", often=True)]
MapIds = Annotated[bool, Flag("White space in ids becomes '_'.")]
Json = Annotated[bool, Flag("Print JSON.")]


@dataclass(frozen=True)
class CollectionOptions:
    """How a collection is read, and which slice of it."""

    panel: ClassVar[str] = "Documents"
    fields: Annotated[
        str, Flag("Text fields of a record, joined by '+', such as headline+body.")
    ] = ""
    map_ids: MapIds = False
    shard: Annotated[str, Flag("Slice i/n of the collection, such as $SLURM_ARRAY_TASK_ID/16.")] = (
        "0/1"
    )
    offline: Offline = False

    @property
    def shards(self) -> int:
        """How many slices there are; UsageError for a --shard that is none."""
        from lmkcli.data.collection import Shard

        return Shard.parse(self.shard or "0/1").count

    def spelling(self, collection: str) -> str:
        """The collection with the options that also have flags."""
        return with_fields(collection, self.fields, self.map_ids)


@dataclass(frozen=True)
class OutputOptions:
    """Where a result goes, and what is done when something is there."""

    panel: ClassVar[str] = "Output"
    output: Output = None
    if_exists: Annotated[
        Literal["resume", "fail", "overwrite", "update"],
        Flag("If the output exists: continue it, fail, replace it, or bring it up to date."),
    ] = "resume"
    json: Json = False

    def path(self, example: str, shards: int = 1) -> Path:
        """Where the result goes; UsageError, with the example, when nobody said.

        All that can be refused is refused here, before a model or a library is loaded: what is there
        and must stay, and the name of a file where a folder is written, or of a folder for a file.
        """
        path = need(self.output, "-o/--output", example)
        if str(path) == "-":
            return path
        (_check_folder if example.endswith("/") else _check_file)(path, example)
        check_output(path, self.if_exists, shards)
        return path

    @property
    def replaces(self) -> bool:
        """Whether something will be removed to make room: open what may be refused before."""
        from lmkcli.store.outputs import is_artifact

        path = self.output
        return self.if_exists == "overwrite" and path is not None and is_artifact(path)

    def prepared(self, example: str, shards: int = 1) -> Path:
        """The same place, empty or fit to be continued, as --if-exists says."""
        path = self.path(example, shards)
        prepare_output(path, self.if_exists, shards)
        return path

    def file(self, example: str) -> Path:
        """The same for a single file; '-' is stdout."""
        path = self.path(example)
        path = Path("/dev/stdout") if str(path) == "-" else path
        prepare_output(path, self.if_exists)
        return path


@dataclass(frozen=True)
class NewOutput(OutputOptions):
    """The same for what cannot be brought up to date."""

    if_exists: Annotated[
        Literal["resume", "fail", "overwrite"],
        Flag("If the output exists: continue it, fail, or replace it."),
    ] = "resume"


def need(value: Path | None, flag: str, example: str) -> Path:
    """The value of an option that this use of the command cannot do without."""
    if value is None:
        raise UsageError(f"{flag} is missing, for instance {flag.partition('/')[0]} {example}")
    return value


def _check_folder(path: Path, example: str) -> None:
    """UsageError for the name of a file where a folder is written."""
    if path.suffix in _FILES and not path.is_dir():
        verb = recording.call().get("verb", "this command")
        raise UsageError(
            f"-o {path}: lmk {verb} writes a folder, and {path.suffix} is the end of a file's name; "
            f"write for instance -o {example}"
        )


def _check_file(path: Path, example: str) -> None:
    """UsageError for a folder where a file is written."""
    if path.is_dir():
        raise UsageError(f"-o {path} is a folder; name a file for the run, such as {example}")


def check_output(path: Path, if_exists: str, shards: int = 1) -> None:
    """Refuse what is at `path`, as --if-exists says; DataError for what is there and must stay."""
    from lmkcli.store.outputs import is_artifact, is_empty

    if shards > 1 and if_exists == "overwrite":
        raise UsageError(
            f"--if-exists overwrite would remove what other shards have written; "
            f"remove {path} once, then run every shard without it"
        )
    if is_empty(path):
        return
    if if_exists == "fail":
        raise DataError(f"{path} exists; choose another output, or --if-exists resume or overwrite")
    if not is_artifact(path):
        raise DataError(
            f"{path} exists and is not lmk's: nothing in it was touched; choose another output"
        )
    if if_exists == "overwrite":
        _keep_inputs(path)


def prepare_output(path: Path, if_exists: str, shards: int = 1) -> None:
    """Refuse or clear what is at `path`, as --if-exists says; never touches what is not ours."""
    from lmkcli.cli import console
    from lmkcli.store.outputs import clear, is_empty

    check_output(path, if_exists, shards)
    if if_exists == "overwrite" and not is_empty(path) and (rest := clear(path)):
        console.note(f"{path} also holds {', '.join(rest)}, which lmk did not write: it stays")


def _keep_inputs(path: Path) -> None:
    """UsageError where what is to be replaced is, or holds, what the command reads."""
    replaced = Path(os.path.realpath(path))
    for source in _named_files():
        real = Path(os.path.realpath(source))
        if replaced in (real, *real.parents):
            raise UsageError(
                f"--if-exists overwrite would remove {source}, which is read for it; choose another "
                "output"
            )


def _named_files() -> Iterator[str]:
    """What the command reads that is there: files, folders, and those that options of a collection name."""
    from lmkcli.models.finding import OWN_NAMES
    from lmkcli.provenance import lineage

    call = recording.call()
    for name in (*lineage.INPUTS, "queries", "ids", "model", "rerank_model", "sources"):
        value = call.get(name, [])
        for given in filter(None, value if isinstance(value, list) else [value]):
            names = [os.path.expanduser(word.rpartition("=")[2]) for word in given.split(",")]
            yield from (each for each in names if os.path.exists(each) and each not in OWN_NAMES)


def with_fields(spelling: str, fields: str, map_ids: bool) -> str:
    """A collection's spelling with the options that also have flags."""
    return spelling + (f",fields={fields}" if fields else "") + (",map_ids=1" if map_ids else "")


def names_of(settings: type) -> list[str]:
    """The names of a dataclass's flags."""
    return [field.name for field in fields(settings)]


def no_effect(given: Given, names: Iterable[str], beside: str) -> None:
    """UsageError for flags among `names` that were given and mean nothing here."""
    useless = [f"--{name.replace('_', '-')}" for name in names if name in given]
    if useless:
        raise UsageError(f"{', '.join(useless)} has no effect with {beside}; drop it")
