"""Import: vectors of another tool to a vectors folder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lmkcli.errors import UsageError
from lmkcli.operations.options import Destination, MapIds, NewOutput
from lmkcli.progress import Report
from lmkcli.recipe import Recipe, RecipeOptions
from lmkcli.settings import Flag, Offline
from lmkcli.spec.operation import Operation, Option
from lmkcli.spec.result import Result

if TYPE_CHECKING:
    from lmkcli.exchange.importing import Incoming


@dataclass(frozen=True)
class Imported(Result):
    """A vectors folder: its documents, dimensions, and how many vectors were normalised."""

    output: Path
    facts: dict[str, Any]

    def as_json(self) -> Any:
        """The folder and its counts."""
        return {"output": str(self.output), **self.facts}

    def __str__(self) -> str:
        return (
            f"{self.output}: {self.facts['documents']:,} documents, {self.facts['dim']} dimensions"
        )


@dataclass(frozen=True)
class Import(Operation[Imported], NewOutput, RecipeOptions):
    """Vectors of another tool become a vectors folder, which can be indexed, searched and exported.

    -m and the flags of the recipe describe how they were made, and so how queries are encoded; without a
    model they cannot be searched with text.
    """

    verb: ClassVar[str] = "import"
    example: ClassVar[str] = "vectors/"
    # The other tool cut its texts; the recipe only describes what a vector represents.
    unused: ClassVar[tuple[str, ...]] = ("window", "overlap", "context", "extend", "pad_to_max")

    source: Annotated[
        Path,
        Flag(
            "A .npy file or a folder, as --from says.",
            argument=True,
            metavar="SOURCE",
            role="file",
        ),
    ]
    origin: Annotated[
        Literal["numpy", "pyserini"], Flag("Which tool wrote it.", long="--from", often=True)
    ]
    ids: Annotated[Path | None, Flag("numpy: the ids of the rows, one per line.", role="file")] = (
        field(default=None, kw_only=True)
    )
    map_ids: MapIds = field(default=False, kw_only=True)
    offline: Offline = field(default=False, kw_only=True)

    def check(self) -> None:
        """Raise UsageError for vectors that these files cannot contain."""
        unit = self.unit or "doc"
        if unit not in ("doc", "chunk") or (unit == "chunk" and self.origin != "numpy"):
            raise UsageError(
                f"--unit {unit}: a vector per document is read from any tool's files, and a vector per chunk "
                "(--unit chunk) from --from numpy, where the rows of a document repeat its id"
            )

    def ineffective(self, option: Option) -> str:
        """Without a model, only the unit of a recipe has an effect."""
        if option.group is RecipeOptions and not self.model and option.name != "unit":
            return "an import that names no model (-m)" if option.name != "model" else ""
        return super().ineffective(option)

    def execute(self, report: Report) -> Imported:
        """Read the vectors and write them as parts."""
        place = Destination(self)
        from lmkcli.exchange.importing import open_incoming, run_import

        incoming = open_incoming(self.source, self.origin, self.ids)
        recipe = self._recipe(incoming, report)
        folder = place.prepare(report)
        with report.job("import") as job:
            imported = run_import(incoming, recipe, folder, self.map_ids, job)
        if imported.normalized:
            report.note(
                f"{imported.normalized:,} vectors did not have unit length, as {self.model} needs; they were "
                "normalised"
            )
        return Imported(folder, imported._asdict())

    def _recipe(self, incoming: "Incoming", report: Report) -> Recipe:
        from lmkcli.encoding.resolving import resolve
        from lmkcli.exchange.importing import check_width, unknown_recipe

        if not self.model:
            report.note(
                "no model (-m): these vectors can be indexed and exported, not searched with text"
            )
            return unknown_recipe(self.unit or "doc")
        resolved = resolve(self.part(RecipeOptions), self.offline)
        for line in resolved.notes:
            report.note(line)
        check_width(incoming, resolved)
        return resolved.recipe
