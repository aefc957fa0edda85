"""Engines: the kinds of indexes that `lmk index` builds and `lmk search` opens.

An engine is a class with a row in the catalog. It inherits from `VectorEngine` or `NearestEngine`
(vectors/vector_engine.py), or from `LexicalEngine` (lexical/lexical_engine.py), which open its input and turn
what it opens into an index. The engine writes only what is its own: its settings, `build`, `open`, and
`append` and shards if it has them. `IndexJob` does everything else: it gives the engine an empty folder to
write into, and records the files that it finds there. No engine encodes queries.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from lmkcli import catalog
from lmkcli.data.collection import Shard
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.retrieval.engines.index_settings import IndexSettings
from lmkcli.retrieval.index import Index
from lmkcli.retrieval.index_folder import BuiltIndex
from lmkcli.retrieval.index_input import CannotAppend, IndexInput
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.ranked_units import NumberedPart
from lmkcli.spec.settings import Settings
from lmkcli.system.input_files import validate

AnyInput = TypeVar("AnyInput", bound=IndexInput)


@dataclass(frozen=True, kw_only=True)
class NoSettings(Settings):
    """The settings of an engine without settings."""


class Appended(NamedTuple):
    """The changed facts of an index that was appended to, its numbered parts, and a description."""

    facts: dict[str, Any]
    numbering: list[NumberedPart]
    how: str


class Engine(ABC, Generic[AnyInput]):
    """One kind of index, with the settings of one index.

    settings_type: the group of settings that the engine reads.
    in_shards: whether the index can be built in shards.
    digests_on_open: whether the files are compared with their digests before they are opened, because the
        library does not notice damage.
    """

    settings_type: ClassVar[type[Settings]] = NoSettings
    in_shards: ClassVar[bool] = False
    digests_on_open: ClassVar[bool] = False

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @classmethod
    def configured(cls, settings: IndexSettings) -> Self:
        """Return the engine with the settings of a command. Raises UsageError if they are invalid."""
        return cls(settings.part(cls.settings_type))

    @classmethod
    def recorded(cls, values: dict[str, Any], folder: Path) -> Self:
        """Return the engine with the settings that the index in `folder` records.

        Raises DataError if they are damaged.
        """
        kind: Any = cls.settings_type
        names = {field.name for field in fields(kind)}
        values = {key: value for key, value in values.items() if key != "kind" or key in names}
        validate(values, kind, f"the settings of {folder}", "build the index again")
        return cls(kind(**values))

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of the index: a name in the catalog, or a factory string."""

    @property
    def built_again(self) -> str:
        """The reason why an index of changed input is built again, if the engine cannot append."""
        return "its input has changed"

    @abstractmethod
    def open_input(self, source: str, settings: IndexSettings, report: Report) -> AnyInput:
        """Open the input of `lmk index`. Raises UsageError if it does not fit the settings."""

    def identity(self, folder: Path) -> dict[str, Any]:
        """Return what determines the index in `folder` besides its input: the settings, as JSON values."""
        return {"settings": {"kind": self.kind, **asdict(self.settings)}}

    def check(self, given: AnyInput, overwrite: bool, report: Report) -> None:
        """Raise errors that are known before anything is written; notes go to the report.

        With `overwrite`, an existing index will be removed, so that all errors of `build` should be found.
        """

    @abstractmethod
    def build(self, given: AnyInput, folder: Path, report: Report) -> dict[str, Any]:
        """Write the files of an index into an empty folder, and return its facts as JSON values."""

    def append(self, given: AnyInput, index: BuiltIndex, folder: Path, report: Report) -> Appended:
        """Write the files of an index with the changes of its input into an empty folder.

        If the engine writes nothing, the files of the index stay valid. Raises CannotAppend with the reason
        if the index must be built again.
        """
        raise CannotAppend(self.built_again)

    @abstractmethod
    def open_index(self, index: BuiltIndex, settings: OpenSettings) -> Index:
        """Open an index. Raises DataError if it is damaged, and UsageError for settings without an effect."""

    # Building in shards. Each shard is one file, and so is what all shards share.

    def check_shards(self, given: AnyInput) -> None:
        """Raise UsageError if the index cannot be built in shards."""
        raise UsageError(f"--shard: an index of kind {self.kind} is built whole; drop the flag")

    def write_common(self, given: AnyInput, path: Path) -> None:
        """Write the file that all shards share, for instance what was trained on a sample."""
        raise NotImplementedError

    def write_shard(
        self, given: AnyInput, shard: Shard, common: Path, path: Path, report: Report
    ) -> None:
        """Write one shard of the index."""
        raise NotImplementedError

    def join(
        self, given: AnyInput, common: Path, shards: list[Path], folder: Path, apart: bool
    ) -> dict[str, Any]:
        """Write the index of all shards into an empty folder, and return the facts that `build` returns.

        With `apart`, each shard stays a file of its own.
        """
        raise NotImplementedError

    # Data outside the index folder, such as those in a database.

    def discard(self, given: AnyInput) -> None:
        """Remove data outside the folder that the next `build` replaces."""

    def is_complete(self, given: AnyInput, index: BuiltIndex) -> bool:
        """Return whether the data outside the folder are those of the input.

        Raises Mismatch if they are neither those of the index nor those of the input.
        """
        return True

    def check_contents(self, given: AnyInput, folder: Path) -> None:
        """Raise Mismatch if the data outside the folder are not those of a finished index."""

    def settle(self, given: AnyInput, numbering: list[NumberedPart]) -> None:
        """Remove data outside the folder that the index does not use since its update was recorded."""


def engine_of(kind: str) -> type[Engine[Any]]:
    """Return the engine of an index kind. Raises MissingExtra if its library is not installed."""
    engine: type[Engine[Any]] = catalog.ENGINES.load(catalog.engine_row(kind).name)
    return engine
