"""Import: convert vectors of another tool to a vectors folder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.operations.options import Destination, MapIds, NewOutput, note_vectors
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import Option
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, Offline, Settings, composed, declared_groups
from lmkcli.text.formatting import counted

if TYPE_CHECKING:
    from lmkcli.plugins.exchange.imports import ForeignVectors

if TYPE_CHECKING:
    Origin = str

    class ImporterSettings(Settings):
        """The settings of all formats."""

else:
    Origin = Literal[(*catalog.IMPORTERS,)]
    ImporterSettings = composed("ImporterSettings", *declared_groups(catalog.IMPORTERS).values())


@dataclass(frozen=True)
class Imported(Result):
    """A vectors folder: its documents and dimensions, and the number of vectors that were normalised."""

    output: Path
    facts: dict[str, Any]

    def as_json(self) -> Any:
        """Return the folder and its counts."""
        return {"output": str(self.output), **self.facts}

    def blocks(self) -> Iterator[Table | str]:
        """Yield the folder and its counts."""
        documents = counted(self.facts["documents"], "document")
        yield f"{self.output}: {documents}, {self.facts['dim']:,} dimensions"


@dataclass(frozen=True)
class Import(Operation[Imported], NewOutput, ImporterSettings, RecipeOptions):
    """Convert vectors from another tool to a vectors folder, which can be indexed, searched and exported.

    -m and the flags of the recipe describe how the vectors were made. lmk encodes queries in the same way.
    Without a model, the vectors cannot be searched with text.
    """

    verb: ClassVar[str] = "import"
    example: ClassVar[str] = "vectors/"
    # The other tool has split the texts; the recipe only describes the unit of a vector.
    unused: ClassVar[tuple[str, ...]] = (
        *("window", "overlap", "sum_windows", "context", "extend", "pad_to_max"),
    )

    source: Annotated[
        Path,
        Flag(
            "A file or a folder, depending on --from.",
            argument=True,
            metavar="SOURCE",
            role="file",
            suggest_for="--input --embeddings",
        ),
    ]
    origin: Annotated[
        Origin,
        Flag(
            f"The tool or format of the vectors: {', '.join(catalog.IMPORTERS)}.",
            long="--from",
            often=True,
            suggest_for="--format --type",
        ),
    ]
    ids: Annotated[
        Path | None,
        Flag(
            "numpy: a file with the ids of the rows, one per line.",
            role="file",
            suggest_for="--docids --lookup",
        ),
    ] = field(default=None, kw_only=True)
    map_ids: MapIds = field(default=False, kw_only=True)
    offline: Offline = field(default=False, kw_only=True)

    @property
    def _takes(self) -> str:
        """What the format is read from."""
        return catalog.IMPORTERS[self.origin].takes

    def variant(self) -> tuple[str, str]:
        """Return the format."""
        return self.origin, f"--from {self.origin}"

    def check(self) -> None:
        """Raise UsageError for units that these files cannot contain, and for terms without a vocabulary."""
        unit = self.unit or "doc"
        if unit not in ("doc", "chunk") or (unit == "chunk" and self.origin == "pyserini"):
            raise UsageError(
                f"--unit {unit}: write doc, or chunk with --from numpy, in which the chunks of a document "
                "repeat its id"
            )
        if self._takes == "model" and not self.model:
            raise UsageError(
                f"--from {self.origin} needs the vocabulary of the terms; give the model of these vectors "
                "with -m"
            )
        if self._takes == "model" and self.ids:
            raise UsageError(f"--ids has no effect with --from {self.origin}; drop it")

    def ineffective(self, option: Option) -> str:
        """Without a model, only the unit of a recipe has an effect."""
        if issubclass(RecipeOptions, option.group) and not self.model and option.name != "unit":
            return "an import that names no model (-m)" if option.name != "model" else ""
        return super().ineffective(option)

    def execute(self, report: Report) -> Imported:
        """Read the vectors and write them as parts."""
        destination = Destination(self)
        from lmkcli.plugins.exchange.imports import run_import

        incoming, recipe = self._opened(report)
        folder = destination.prepare(report)
        with report.job("import") as job:
            imported = run_import(incoming, recipe, folder, self.map_ids, job)
        if imported.normalized:
            report.note(
                f"{counted(imported.normalized, 'vector')} without unit length normalised, as {self.model} "
                "requires"
            )
        note_vectors(report, folder)
        return Imported(folder, imported._asdict())

    def _opened(self, report: Report) -> "tuple[ForeignVectors, Recipe]":
        """Open the files, and return the recipe of their vectors."""
        from lmkcli.encoding.resolution import resolve
        from lmkcli.plugins.exchange.imports import check_width, open_foreign, unknown_recipe

        if self._takes == "model":
            opener: Callable[..., ForeignVectors] = catalog.IMPORTERS.load(self.origin)
            resolved = resolve(self.part(RecipeOptions), self.offline)
            return opener(self.source, resolved, self), resolved.recipe
        incoming = open_foreign(self.source, self.origin, self.ids)
        if not self.model:
            report.note(
                "no model (-m): these vectors can be indexed and exported, but not searched with text"
            )
            return incoming, unknown_recipe(self.unit or "doc")
        resolved = resolve(self.part(RecipeOptions), self.offline)
        for line in resolved.notes:
            report.note(line)
        check_width(incoming, resolved)
        return incoming, resolved.recipe
