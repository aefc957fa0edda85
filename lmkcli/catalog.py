"""The catalogs: all parts of lmk that users select by name, from the core and from plug-ins.

A *row* declares one part: a verb, a pooler, a loss, a reader, a source, a kind of models, an engine and so
on. Its class is the kind of the part, and its target is imported on first use. A *plug-in* is a light module
with the constant `ROWS`. lmk's own plug-ins are the folders below `plugins/`; other packages name theirs by
an entry point of the group `lmkcli.plugins` (examples/plugin is such a package). The rows of the core are in
`core.py`. Nothing here names a plug-in.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from lmkcli.errors import DataError, MissingExtra, UnknownName, UsageError

GROUP = "lmkcli.plugins"  # the entry points of other packages
Config = Mapping[str, Any]  # the contents of a model's config.json


@dataclass(frozen=True)
class Row:
    """One part: its name, the place of its code, and one line of help."""

    name: str
    target: str  # 'module:attribute'
    help: str
    extra: str = ""  # the extra of lmk that it needs
    package: str = ""  # the modules that the extra installs, separated by spaces
    provider: str = ""  # the package that adds it, such as 'lmk-window 0.1'; empty for lmk itself


@dataclass(frozen=True)
class VerbRow(Row):
    """A command; the target is its operation.

    `meant` maps words of other tools to the command line to use: errors about unknown commands print it.
    `makes` tells whether its artifacts can be made again from their records (`lmk repro`).
    """

    group: str = "More"  # the heading on the help page
    examples: tuple[str, ...] = ()
    meant: tuple[tuple[str, str], ...] = ()
    makes: bool = False


@dataclass(frozen=True)
class SourceRow(Row):
    """A source of collections: a function from a name and options to a Collection.

    It opens names that start with one of the `prefixes`, or that are one of the `names`. The completion of a
    shell offers its `examples`. `claims`
    ('module:function') may rename the path of a file to a name of this source: it returns '' for others.
    `holds` ('module:function') gives a name to an object of Python, such as the rows of a table.
    """

    prefixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    claims: str = ""
    holds: str = ""


@dataclass(frozen=True)
class ReaderRow(Row):
    """A reader of documents: a function from the bytes of a file to its text.

    It reads files with one of the suffixes (in lower case), or with one of the names (in lower case).
    headings: whether its texts can have headings. In source code, a line that starts with # is a comment.
    """

    suffixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    headings: bool = True


@dataclass(frozen=True)
class PoolerRow(Row):
    """A pooler: a row of the table of poolers, or a function of its parameter (`pooling/table.py`).

    weights: the subfolder of a model folder with the weights of its module, which are a part of the model.
    settings, train_settings: 'module:Class', groups of settings in modules without heavy imports. They become
        flags of a recipe and of `lmk train`, without effect on other poolers.
    """

    weights: str = ""
    settings: str = ""
    train_settings: str = ""


def _never(config: Config) -> bool:
    return False


def _always(config: Config) -> bool:
    return True


def _nothing(config: Config) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class ModelRow(Row):
    """A kind of models: a function that opens a model folder.

    matches: whether the kind opens models with this config.json. The kind 'transformer' opens all others.
    makes_vector: whether such a model pools by itself, and returns one vector for each input.
    token_states: whether its layers keep a state for each token, which pre-training can predict from.
    defaults: the values of fields of `ModelFolder` for a folder that declares no pooling.
    sees_padding: whether padding changes the vectors, so that inputs are padded to the full length.
    cuts_suffix: whether long texts are cut after the special tokens are added.
    own_tokenizer: whether the folder's tokenizer.json is right even if another file names a tokenizer.
    tokenizer: the model of the hub with the tokenizer of folders that have none; empty: each has its own.
    """

    matches: Callable[[Config], bool] = _never
    makes_vector: Callable[[Config], bool] = _never
    token_states: Callable[[Config], bool] = _always
    defaults: Callable[[Config], Mapping[str, Any]] = _nothing
    sees_padding: bool = False
    cuts_suffix: bool = False
    own_tokenizer: bool = False
    tokenizer: str = ""


@dataclass(frozen=True)
class SentenceClassRow(Row):
    """A class of models of sentence-transformers: the target is a `models.sentence_classes.SentenceClass`."""


@dataclass(frozen=True)
class CrossEncoderRow(Row):
    """A kind of cross-encoders, which rerank documents."""


@dataclass(frozen=True)
class CodecRow(Row):
    """A stored form of vectors, `store_dtype` in a manifest: the target is a `vectors.codec.Codec`.

    rows: the kind of the vectors in memory, which codecs and engines share: 'dense', or a word of a plug-in.
    scoring: 'module:attribute' of their exact search (`retrieval.vectors.vector_search.Scoring`).
    aggregates: the values of --aggregate for documents with several vectors.
    """

    rows: str = "dense"
    scoring: str = "lmkcli.retrieval.vectors.exact_scoring:DENSE_SCORING"
    aggregates: tuple[str, ...] = ("max", "sum", "avg", "first")


@dataclass(frozen=True)
class EngineRow(Row):
    """An engine: a class that builds and opens one kind of index.

    variant: what it indexes: 'vectors' (perhaps in shards), 'whole' (vectors), 'database' (vectors outside
        the folder), or 'lexical'; empty if there is nothing to build.
    takes: the kind of vectors that it indexes (`CodecRow.rows`).
    settings, search_settings: 'module:Class', groups of settings in modules without heavy imports. They
        become flags of `lmk index` and `lmk search`.
    foreign: a file name pattern; the engine opens folders of other tools that contain such files.
    factory: the name of factory strings in messages; the engine also builds kinds that no row names.
    """

    variant: str = ""
    takes: str = "dense"
    settings: str = ""
    search_settings: str = ""
    foreign: str = ""
    factory: str = ""


@dataclass(frozen=True)
class SearchableRow(Row):
    """Something that `lmk search` and `lmk serve` can search, in addition to indexes and runs.

    The target implements `operations.search.Searchable`. `settings` ('module:Class') become flags of
    `lmk search`. One that a flag selects (`by_flag`) is asked before those that a path selects.
    """

    settings: str = ""
    by_flag: bool = False


@dataclass(frozen=True)
class ObjectiveRow(Row):
    """A training objective (a loss) or a pre-training objective.

    settings: the flags of `lmk train` or `lmk pretrain` that become fields of it, and that others lack.
    needs: requirements on the data or the model, such as 'teacher'.
    """

    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class LossRow(ObjectiveRow):
    """An objective of `lmk train`.

    single: whether a batch of one query is enough, because queries are not contrasted with each other.
    scored: settings of its notation that need the scores of a teacher.
    """

    single: bool = False
    scored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PretextRow(ObjectiveRow):
    """An objective of `lmk pretrain`: heads over the states of an encoder.

    `models` are the kinds of models that it trains; empty for all kinds that keep the states of tokens.
    """

    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImporterRow(Row):
    """A format of vectors that `lmk import` reads.

    takes: 'files' for a function (source, ids) of the files alone, or 'model' for a function (source,
        resolved recipe, operation) that needs the model of the vectors.
    settings: 'module:Class', a group of settings that become flags of `lmk import`.
    """

    takes: str = "files"
    settings: str = ""


@dataclass(frozen=True)
class ExporterRow(Row):
    """A format that `lmk export` writes.

    takes: 'vectors' for a function (folder, vectors) that writes batches of vectors of the units, 'folder'
        for a function (source, prepare, report) that reads the vectors folder itself, 'examples' or 'model'.
    """

    takes: str = "vectors"
    units: tuple[str, ...] = ("doc", "chunk", "token")


@dataclass(frozen=True)
class ServerRow(Row):
    """An interface of `lmk serve`."""


@dataclass(frozen=True)
class PlotRow(Row):
    """A kind of figures."""


@dataclass(frozen=True)
class ProjectionRow(Row):
    """A projection of vectors to the plane."""


@dataclass(frozen=True)
class DescriberRow(Row):
    """A description of something on disk for `lmk show`.

    The target is a function `describe(path, name)` that returns a result, or None for other paths; the
    marker is a file in the folders that it describes.
    """

    marker: str = ""


@dataclass(frozen=True)
class CacheRow(Row):
    """Caches that `lmk show caches` lists: the target is a function that yields their descriptions."""


@dataclass(frozen=True)
class CheckRow(Row):
    """A check of `lmk doctor`: the target is a function that yields the states of parts."""


AnyRow = TypeVar("AnyRow", bound=Row, covariant=True)


class Catalog(Mapping[str, AnyRow], Generic[AnyRow]):
    """All rows of one class, by name: of the core, of lmk's plug-ins and of other packages.

    `what` names such a part in messages. The entry points of other packages are read only if lmk itself lacks
    a name, or if all names are listed. Two packages may not provide the same name: UsageError names both.
    """

    def __init__(self, kind: type[AnyRow], what: str) -> None:
        self._kind, self.what = kind, what

    def __getitem__(self, name: str) -> AnyRow:
        own = self._own()
        return own[name] if name in own else self._others()[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own(), **self._others()})

    def __len__(self) -> int:
        return len(self._own()) + len(self._others())

    def __contains__(self, name: object) -> bool:
        return name in self._own() or name in self._others()

    def _own(self) -> dict[str, AnyRow]:
        return _by_name(self._kind)  # type: ignore[arg-type]  # classes are hashable

    def _others(self) -> dict[str, AnyRow]:
        found: dict[str, AnyRow] = {}
        for row in foreign_rows():
            if not isinstance(row, self._kind):
                continue
            other = found.get(row.name)
            if other is not None or row.name in self._own():
                first = other.provider if other else "lmk"
                raise UsageError(
                    f"{first} and {row.provider} both provide the {self.what} '{row.name}'; uninstall one of "
                    "them, or rename it"
                )
            found[row.name] = row
        return found

    def check(self, name: str, hint: str = "") -> None:
        """Raise UnknownName with similar names if there is no such row. Imports nothing."""
        if name not in self:
            raise UnknownName(self.what, name, self, hint)

    def load(self, name: str) -> Any:
        """Import the target of a row.

        Raises UnknownName with similar names, or MissingExtra with the pip command.
        """
        self.check(name)
        return load(self[name], f"{self.what} '{name}'")


def load(row: Row, what: str, target: str = "") -> Any:
    """Import the target of a row, or another target that it names. Raises MissingExtra."""
    module, attribute = (target or row.target).split(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing and missing in row.package.split():
            raise MissingExtra(missing, row.extra, what) from error
        raise


@cache
def own_rows() -> tuple[Row, ...]:
    """Return the rows of the core, and of lmk's plug-ins whose requirements are present."""
    modules = {name: import_module(f"lmkcli.plugins.{name}") for name in _own_plugins()}
    rows: list[Row] = [*import_module("lmkcli.core").ROWS]
    for module in modules.values():
        if modules.keys() >= {*getattr(module, "REQUIRES", ())}:
            rows += module.ROWS
    return tuple(rows)


def _own_plugins() -> list[str]:
    """Return the folders below plugins/, in alphabetical order."""
    folder = Path(__file__).with_name("plugins")
    if not folder.is_dir():
        return []
    return sorted(e.name for e in os.scandir(folder) if Path(e.path, "__init__.py").is_file())


@cache
def _by_name(kind: Any) -> dict[str, AnyRow]:
    return {row.name: row for row in own_rows() if isinstance(row, kind)}


@cache
def foreign_rows() -> tuple[Row, ...]:
    """Return the rows of other packages. Raises UsageError for a package that cannot be used."""
    return tuple(row for point in entry_points(group=GROUP) for row in _rows_of(point))


def _rows_of(point: EntryPoint) -> Iterator[Row]:
    distribution = point.dist
    provider = f"{distribution.name} {distribution.version}" if distribution else point.name
    try:
        rows: Iterable[Row] = point.load().ROWS
    except UsageError:  # its module imports lmk's code, which reads the plug-ins again
        raise
    except Exception as error:  # the code of another package runs here
        raise UsageError(f"the plug-in {provider} cannot be used: {error}; uninstall it") from error
    for row in rows:
        if not isinstance(row, Row):
            raise UsageError(
                f"the plug-in {provider} cannot be used: {row!r} is no row; uninstall it"
            )
        yield replace(row, provider=provider)


def read_again() -> None:
    """Read the plug-ins again, because packages were added to the path of this process."""
    own_rows.cache_clear()
    _by_name.cache_clear()
    foreign_rows.cache_clear()


VERBS = Catalog(VerbRow, "command")
SOURCES = Catalog(SourceRow, "source")
READERS = Catalog(ReaderRow, "reader")
POOLERS = Catalog(PoolerRow, "pooler")
MODELS = Catalog(ModelRow, "model kind")
SENTENCE_CLASSES = Catalog(SentenceClassRow, "class of sentence-transformers")
CROSS_ENCODERS = Catalog(CrossEncoderRow, "cross-encoder")
CODECS = Catalog(CodecRow, "codec of vectors")
ENGINES = Catalog(EngineRow, "index kind")
SEARCHABLES = Catalog(SearchableRow, "searchable")
LOSSES = Catalog(LossRow, "loss")
PRETEXTS = Catalog(PretextRow, "objective")
SERVERS = Catalog(ServerRow, "server")
PLOTS = Catalog(PlotRow, "plot")
IMPORTERS = Catalog(ImporterRow, "format of --from")
EXPORTERS = Catalog(ExporterRow, "format of --to")
PROJECTIONS = Catalog(ProjectionRow, "map")
DESCRIBERS = Catalog(DescriberRow, "description")
CACHES = Catalog(CacheRow, "cache")
CHECKS = Catalog(CheckRow, "check")


def engine_row(kind: str) -> EngineRow:
    """Return the row of an index kind. Factory strings belong to the row that accepts them.

    Raises UnknownName for a lower-case word that is not in the catalog.
    """
    if kind in ENGINES:
        return ENGINES[kind]
    row = next(row for row in ENGINES.values() if row.factory)
    if kind.isidentifier() and kind.islower():
        raise UnknownName(ENGINES.what, kind, ENGINES, f"(or a {row.factory})")
    return row


def vector_engines(kind: str) -> list[EngineRow]:
    """Return the engines that build indexes of this kind of vectors, such as 'dense'."""
    built = (row for row in ENGINES.values() if row.variant not in ("", "lexical"))
    return [row for row in built if row.takes == kind]


def source_name(value: object) -> str:
    """Return the name of a collection that a Python program passes as an object, such as a table.

    Raises UsageError for objects that are no collection.
    """
    holders = (row for row in SOURCES.values() if row.holds)
    names = (load(row, f"source '{row.name}'", row.holds)(value) for row in holders)
    name: str | None = next(filter(None, names), None)
    if name is None:
        lazy = "call its collect() first; " * callable(getattr(value, "collect", None))
        raise UsageError(
            f"a {type(value).__name__} is no collection; {lazy}give a name, a table (pandas, polars, Arrow, "
            "datasets), or a list of texts or dictionaries"
        )
    return name


def pooler_row(pool: str) -> PoolerRow:
    """Return the row of a pooler: 'mean@4' is in the row 'mean@k'.

    For a concatenation, it is the row of the first pooler. Raises UnknownName with similar names.
    """
    name, *_ = pool.split("+")
    stem, at, _ = name.partition("@")
    if at:
        others = (each for each in POOLERS if each.startswith(f"{stem}@"))
        name = f"{stem}@k" if f"{stem}@k" in POOLERS else next(others, name)
    POOLERS.check(name)
    return POOLERS[name]


def check_installed(pool: str, package: str, what: str) -> None:
    """Raise DataError for a pooler of a package that is not installed.

    `what` is the thing that needs the pooler, and records the package, such as 'lmk-example 0.1.0'. If it
    records none, this raises UnknownName.
    """
    for name in pool.split("+"):
        try:
            pooler_row(name)
        except UnknownName:
            if not package:
                raise
            raise DataError(
                f"{what} needs the pooler {name} of the package {package}, which is not installed; install "
                f"it: pip install {shlex.quote(package.replace(' ', '=='))}"
            ) from None


def is_lexical(kind: str) -> bool:
    """Return whether an index kind indexes the words of a collection, instead of vectors."""
    return kind in ENGINES and ENGINES[kind].variant == "lexical"
