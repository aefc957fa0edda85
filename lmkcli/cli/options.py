"""Options that several commands share and that belong to the command line alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from lmkcli.cli.flags import Given
from lmkcli.errors import DataError, UsageError
from lmkcli.settings import Flag, Offline


class IfExists(StrEnum):
    """What to do when the output is there already."""

    resume = "resume"
    fail = "fail"
    overwrite = "overwrite"


class IfExistsUpdate(StrEnum):
    """The same for what can be brought up to date."""

    resume = "resume"
    fail = "fail"
    overwrite = "overwrite"
    update = "update"


class DtypeName(StrEnum):
    """Compute dtypes."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class StoreName(StrEnum):
    """Dtypes of stored vectors."""

    fp16 = "fp16"
    fp32 = "fp32"


class OverflowName(StrEnum):
    """What to do with texts that do not fit."""

    truncate = "truncate"
    error = "error"


_RECIPE, _WORK, _OUTPUT = "What a vector is", "How it is made", "Output"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A model folder, a hub name, or 'minilm' (extra demo).",
        rich_help_panel=_RECIPE,
    ),
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a hub model.", rich_help_panel=_RECIPE)
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code that comes with the model.", rich_help_panel=_RECIPE
    ),
]
Pool = Annotated[
    str,
    typer.Option(
        help="auto (what the model folder says), cls, last, mean, mean@k, multicls, lmk, latent.",
        rich_help_panel=_RECIPE,
    ),
]
Gran = Annotated[
    str | None,
    typer.Option(
        help="How text is cut into chunks: so many tokens, 'sentence', or 'given' by the collection.",
        rich_help_panel=_RECIPE,
    ),
]
Unit = Annotated[
    str | None,
    typer.Option(
        help="What a vector stands for: doc, chunk or token.",
        show_default="doc",
        rich_help_panel=_RECIPE,
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        help="What the model sees at once: full (the rest is cut), chunk, or so many positions.",
        show_default="full",
        rich_help_panel=_RECIPE,
    ),
]
Overlap = Annotated[
    int | None,
    typer.Option(
        min=0, help="Tokens that a window sees of the one before.", rich_help_panel=_RECIPE
    ),
]
Extend = Annotated[
    str | None,
    typer.Option(
        help="Positions beyond training, up to --max-length: grouped or interpolate (tables of "
        "positions), ntk (rotary).",
        rich_help_panel=_RECIPE,
    ),
]
PadToMax = Annotated[
    bool | None,
    typer.Option(
        "--pad-to-max/--no-pad-to-max",
        help="Models that see padding (M2-BERT): to full length, as released vectors are made, or not.",
        rich_help_panel=_RECIPE,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=1, help="Positions of a document's input, specials included.", rich_help_panel=_RECIPE
    ),
]
QueryMaxLength = Annotated[
    int | None, typer.Option(min=1, help="The same for queries.", rich_help_panel=_RECIPE)
]
QueryPrompt = Annotated[
    str | None, typer.Option(help="Text before every query.", rich_help_panel=_RECIPE)
]
DocPrompt = Annotated[
    str | None, typer.Option(help="Text before every document.", rich_help_panel=_RECIPE)
]
Dim = Annotated[
    int | None,
    typer.Option(min=1, help="Keep this many dimensions (matryoshka).", rich_help_panel=_RECIPE),
]
Normalize = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize", help="Unit vectors or not.", rich_help_panel=_RECIPE
    ),
]
Fields = Annotated[
    str,
    typer.Option(
        help="Text fields of a record, joined by '+', such as headline+body.",
    ),
]
Dtype = Annotated[
    DtypeName, typer.Option(help="Compute dtype; auto is bf16 where native.", rich_help_panel=_WORK)
]
StoreDtype = Annotated[
    StoreName, typer.Option(help="Dtype of the stored vectors.", rich_help_panel=_WORK)
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=_WORK)]
BatchTokens = Annotated[
    int,
    typer.Option(
        min=0,
        help="Positions per forward pass; 0: as model and device like it.",
        rich_help_panel=_WORK,
    ),
]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Sequences per forward pass, at most.", rich_help_panel=_WORK)
]
OnOverflow = Annotated[
    OverflowName,
    typer.Option(help="Texts that do not fit: cut and count, or stop.", rich_help_panel=_WORK),
]
StoreText = Annotated[
    bool,
    typer.Option(
        "--store-text/--no-store-text",
        help="Keep title and text beside the vectors.",
        rich_help_panel=_WORK,
    ),
]
ShardOption = Annotated[
    str,
    typer.Option(
        "--shard",
        help="Slice i/n of the collection, such as $SLURM_ARRAY_TASK_ID/16.",
        rich_help_panel=_WORK,
    ),
]


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Where the result goes.", rich_help_panel=_OUTPUT),
]
IfExistsOption = Annotated[
    IfExists,
    typer.Option(
        help="The output is there: continue it, fail, or replace it.", rich_help_panel=_OUTPUT
    ),
]
IfExistsUpdateOption = Annotated[
    IfExistsUpdate,
    typer.Option(
        help="The output is there: continue it, fail, replace it, or bring it up to date.",
        rich_help_panel=_OUTPUT,
    ),
]
Json = Annotated[bool, Flag("Print JSON.")]


@dataclass(frozen=True)
class CollectionOptions:
    """How a collection is read, and which slice of it."""

    fields: Annotated[
        str, Flag("Text fields of a record, joined by '+', such as headline+body.")
    ] = ""
    map_ids: Annotated[bool, Flag("White space in ids becomes '_'.")] = False
    shard: Annotated[str, Flag("Slice i/n of the collection, such as $SLURM_ARRAY_TASK_ID/16.")] = (
        "0/1"
    )
    offline: Offline = False

    def spelling(self, collection: str) -> str:
        """The collection with the options that also have flags."""
        return with_fields(collection, self.fields, self.map_ids)


@dataclass(frozen=True)
class OutputOptions:
    """Where a result goes, and what is done when something is there."""

    panel: ClassVar[str] = "Output"
    output: Annotated[Path | None, Flag("Where the result goes.", short="-o")] = None
    if_exists: Annotated[
        Literal["resume", "fail", "overwrite", "update"],
        Flag("The output is there: continue it, fail, replace it, or bring it up to date."),
    ] = "resume"
    json: Json = False

    def path(self, example: str) -> Path:
        """Where the result goes; UsageError, with the example, when nobody said."""
        return need(self.output, "-o/--output", example)

    def prepared(self, example: str, shards: int = 1) -> Path:
        """The same place, empty or fit to be continued, as --if-exists says."""
        path = self.path(example)
        prepare_output(path, self.if_exists, shards)
        return path


@dataclass(frozen=True)
class NewOutput(OutputOptions):
    """The same for what cannot be brought up to date."""

    if_exists: Annotated[
        Literal["resume", "fail", "overwrite"],
        Flag("The output is there: continue it, fail, or replace it."),
    ] = "resume"


def need(value: Path | None, flag: str, example: str) -> Path:
    """The value of an option that this use of the command cannot do without."""
    if value is None:
        raise UsageError(f"{flag} is missing, for instance {flag.partition('/')[0]} {example}")
    return value


def prepare_output(path: Path, if_exists: str, shards: int = 1) -> None:
    """Refuse or clear what is at `path`, as --if-exists says; never touches what is not ours."""
    from lmkcli.cli import console
    from lmkcli.store.outputs import clear, is_artifact, is_empty

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
        if rest := clear(path):
            console.note(f"{path} also holds {', '.join(rest)}, which lmk did not write: it stays")


def _keep_inputs(path: Path) -> None:
    """UsageError where what is to be replaced is, or holds, what the command reads."""
    from lmkcli import manifest
    from lmkcli.provenance import lineage

    for name in (*lineage.INPUTS, "queries", "ids"):
        value = manifest.call.get(name, [])
        for given in filter(None, value if isinstance(value, list) else [value]):
            source = Path(given.partition(",")[0])
            if path.resolve() in (source.resolve(), *source.resolve().parents):
                raise UsageError(
                    f"--if-exists overwrite would remove {source}, which is read for it; choose "
                    "another output"
                )


MapIds = Annotated[bool, typer.Option("--map-ids", help="White space in ids becomes '_'.")]


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


def no_effect_old(flags: Mapping[str, object], beside: str) -> None:
    """UsageError for flags that were given and mean nothing here."""
    given = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None]
    if given:
        raise UsageError(f"{', '.join(given)} has no effect with {beside}; drop it")
