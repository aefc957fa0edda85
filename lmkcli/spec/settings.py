"""Settings of steps, each declared once: a field has a name, a type and a default; its Flag declares the
rest.

A field of type `Annotated[..., Flag(...)]` becomes a flag of every command with its dataclass. Config files,
environment variables and the tables of the documentation use the same field.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from inspect import get_annotations
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    get_args,
    get_type_hints,
)

from lmkcli import catalog
from lmkcli.core import CODECS
from lmkcli.errors import LmkError, UsageError
from lmkcli.spec.values import AUTO, Device, parser_of
from lmkcli.system.hardware import usable_processors

Dtype = Literal["auto", "fp32", "bf16", "fp16"]
Overflow = Literal["truncate", "error"]
MOST_WORKERS = 14  # processes that tokenize by default: one GPU needs no more
_CONSTANT = re.compile(r"(\w+\.)?ClassVar\b")  # an annotation, or its text


# Recorded roles. collection, model, artifact, run, file: the value names one. reading: an option for a
# collection. layout: an option for printing the result. speed: changes the time, but not the result.
# address: the value names a file or a server; a record selects no server on another machine.
# Roles that are not recorded. output: the output path. consent: a permission that only the command line can
# give. secret: never stored. mode: concerns one call (resume, offline, a shard).
Role = Literal[
    "", "collection", "model", "artifact", "run", "file", "address", "reading", "layout", "speed",
    "output", "consent", "secret", "mode",
]  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """The declaration of a field for the command line, in addition to its name, type and default."""

    help: str
    short: str = ""  # such as '-m'
    long: str = ""  # the long spelling if it is not the field's name, such as '--with'
    aliases: str = ""  # other spellings that are accepted, such as '--encoder --model-name'
    suggest_for: str = ""  # spellings of other tools that an error answers with this flag
    min: float | None = None
    max: float | None = None
    metavar: str | None = None  # the name of the value on help pages
    shown: str = ""  # the default in words, if the default of the field is None or 0
    parse: Callable[[str], object] | None = None  # parses the text of the value
    often: bool = False  # whether help lists it among the most used flags
    argument: bool = False  # whether it is a positional argument instead of a flag
    role: Role = ""  # the kind of thing that the value names, or the effect of the field
    only: str = ""  # the variants of an operation that have this setting, such as "lexical"
    # returns the reason why the field has no effect on an operation, or ""
    ineffective: Callable[[Any], str] | None = None


Group = TypeVar("Group", bound="Settings")


class Settings:
    """The base of all groups of settings. Their checks call each other through `super()`."""

    panel: ClassVar[str] = ""  # the heading of the group in help pages

    def __post_init__(self) -> None:
        """Parse texts of value types (spec/values.py). Raises UsageError for invalid values."""
        kind: Any = type(self)
        for name, parse in _value_fields(kind):
            if type(value := getattr(self, name)) in (str, int):
                object.__setattr__(self, name, parse(str(value)))

    def part(self, group: type[Group]) -> Group:
        """Return the inherited fields of one group of settings, as an object of that group's class."""
        return group(**{field.name: getattr(self, field.name) for field in fields(group)})  # type: ignore[arg-type]


def composed(name: str, *groups: type[Settings]) -> type[Settings]:
    """Return a class with the fields of several groups. Raises UsageError if two declare the same field."""
    text = {"__doc__": "The settings of several groups.", "__module__": __name__}
    bases = tuple(
        each
        for each in groups
        if not any(each is not other and issubclass(other, each) for other in groups)
    )
    made = make_dataclass(name, [], bases=bases, namespace=text, frozen=True, kw_only=True)
    check_fields(made)
    return made


def check_fields(made: type) -> None:
    """Raise UsageError if two groups that a class inherits from declare the same field.

    Only a group that inherits a field can declare it again.
    """
    owners: dict[str, type] = {}
    for group in made.__mro__:
        for name, annotation in get_annotations(group).items():
            if _CONSTANT.match(str(annotation)):
                continue
            other = owners.setdefault(name, group)
            if not issubclass(other, group):
                raise UsageError(
                    f"{group.__module__} and {other.__module__} both declare the setting {name}; rename "
                    "one of them"
                )
            owners[name] = group


def declared_groups(
    table: catalog.Catalog[Any], attribute: str = "settings"
) -> dict[str, type[Settings]]:
    """Return the groups of settings that the rows of a catalog name, by 'module:Class', each once.

    Raises UsageError for a group of another package that cannot be imported.
    """
    rows = {getattr(row, attribute): row for row in table.values()}
    return {target: _group(row, table.what, target) for target, row in rows.items() if target}


def _group(row: catalog.Row, what: str, target: str) -> type[Settings]:
    try:
        group: type[Settings] = catalog.load(row, f"{what} '{row.name}'", target)
    except Exception as error:  # the code of another package runs here
        if not row.provider or isinstance(error, LmkError):
            raise
        raise UsageError(
            f"the plug-in {row.provider} cannot be used: {error}; uninstall it"
        ) from error
    return group


@cache
def _value_fields(kind: Any) -> tuple[tuple[str, Callable[[str], object]], ...]:
    """Return the fields of a group of settings that have a value type, with the parsers of these types."""
    hints = get_type_hints(kind).items()
    parsers = ((name, map(parser_of, get_args(hint) or (hint,))) for name, hint in hints)
    return tuple((name, parse) for name, found in parsers for parse in found if parse)


DeviceOption = Annotated[
    Device,
    Flag(
        "Device: auto, cpu, cuda or cuda:1.",
        role="speed",
        suggest_for="--gpu --cuda --use-gpu --cpu",
    ),
]
Offline = Annotated[bool, Flag("Never use the network (as with HF_HUB_OFFLINE=1).", role="mode")]
TrustRemoteCode = Annotated[
    bool, Flag("Run Python code that comes with the model.", role="consent")
]


@dataclass(frozen=True, kw_only=True)
class EncodeSettings(Settings):
    """Settings of the computation of vectors. They change vectors only by rounding."""

    panel: ClassVar[str] = "Computation"
    dtype: Annotated[
        Dtype,
        Flag(
            "Compute dtype; auto: bf16 if the hardware supports it natively.",
            suggest_for="--torch-dtype --fp16 --bf16 --fp32 --half --precision",
        ),
    ] = "auto"
    store_dtype: Annotated[
        str,
        Flag(
            f"Stored form of the vectors: {', '.join(row.name for row in CODECS)} (the last four: 8, 4, "
            "2 bits or one per dimension).",
            suggest_for="--quantize --int8 --binary --save-dtype",
        ),
    ] = "fp16"
    device: Annotated[
        Device,
        Flag(
            "Device: auto, cpu, cuda, cuda:1, all.",
            role="speed",
            suggest_for="--gpu --cuda --use-gpu --cpu",
        ),
    ] = AUTO
    batch_tokens: Annotated[
        int,
        Flag(
            "Positions per forward pass; 0: chosen for the model and the device.",
            min=0,
            role="speed",
        ),
    ] = 0
    batch_size: Annotated[
        int,
        Flag(
            "Maximum number of inputs per forward pass.",
            min=1,
            role="speed",
            aliases="--per-device-eval-batch-size",
            suggest_for="--batch --bs",
        ),
    ] = 512
    workers: Annotated[
        int | None,
        Flag(
            "Processes that tokenize texts, next to one that reads them; 0: none.",
            min=0,
            role="speed",
            shown="by cores on a GPU, else 0",
            suggest_for="--num-workers --dataloader-num-workers --num-proc",
        ),
    ] = None
    on_overflow: Annotated[
        Overflow, Flag("Texts that are too long: truncate and count them, or stop with an error.")
    ] = "truncate"
    store_text: Annotated[bool, Flag("Store titles and texts with the vectors.")] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        catalog.CODECS.check(self.store_dtype)
        if self.batch_tokens < 0 or self.batch_size < 1:
            raise UsageError(
                "--batch-tokens cannot be negative, and --batch-size must be at least 1"
            )

    def tokenizing_processes(self, device: str, devices: int = 1) -> int:
        """Return how many processes tokenize for one of some devices.

        By default none on a CPU, which the model occupies itself.
        """
        if self.workers is not None:
            return self.workers
        cores = usable_processors() // devices
        return min(cores - 3, MOST_WORKERS) if device == "cuda" and cores > 3 else 0


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The location of the model of an artifact, its device, and its permissions."""

    panel: ClassVar[str] = "Model"
    model: Annotated[
        str,
        Flag(
            "New location of the model, if it was moved.",
            role="model",
            only="queries",
            aliases="--encoder --model-name --model-name-or-path",
        ),
    ] = ""
    trust_remote_code: Annotated[
        bool, Flag("Run Python code that comes with the model.", role="consent", only="queries")
    ] = False
    device: DeviceOption = AUTO
    dtype: Annotated[
        Dtype | None,
        Flag(
            "Compute dtype; default: the dtype used for the documents, and fp32 for a cross-encoder.",
            only="queries",
            suggest_for="--torch-dtype --fp16 --bf16 --fp32 --half --precision",
        ),
    ] = None
    offline: Offline = False
