"""Export: vectors, training examples, or a model with its pooling, for other tools."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from lmkcli.errors import UsageError
from lmkcli.operations.options import Destination, NewOutput
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import Flag, Offline
from lmkcli.spec.operation import Operation, Option
from lmkcli.spec.result import Result

_MODEL = "sentence-transformers"  # the only target that takes a model; others take vectors
_EXAMPLES = "tevatron-train"  # takes the same examples as lmk train
Target = Literal[
    "numpy", "parquet", "pyserini", "tevatron", "tevatron-train", "sentence-transformers"
]


@dataclass(frozen=True)
class Exported(Result):
    """A folder for another tool, and its facts; `text` describes them."""

    output: Path
    facts: dict[str, Any]
    text: str

    def as_json(self) -> Any:
        """The folder and the facts."""
        return {"output": str(self.output), **self.facts}

    def __str__(self) -> str:
        return f"{self.output}: {self.text}"


@dataclass(frozen=True)
class Export(Operation[Exported], NewOutput, RecipeOptions):
    """Vectors or training examples as files of other tools; with -m, a model for sentence-transformers.

    The result is a folder that appears whole, with a manifest of its inputs.
    """

    verb: ClassVar[str] = "export"
    example: ClassVar[str] = "exported/"
    # These have no place in the layout of a sentence-transformers folder.
    unused: ClassVar[tuple[str, ...]] = (
        *("unit", "overlap", "context", "extend", "pad_to_max", "dim"),
    )

    source: Annotated[
        str | None,
        Flag(
            "A vectors folder; for tevatron-train a source of examples, as of lmk train.",
            argument=True,
            metavar="[VECTORS]",
            role="collection",
        ),
    ] = None
    to: Annotated[Target, Flag("Which tool, or which files.", often=True)] = field(kw_only=True)
    offline: Offline = field(default=False, kw_only=True)

    def check(self) -> None:
        """Raise UsageError if the input does not fit the target."""
        if self.to == _MODEL:
            if self.source is not None or not self.model:
                raise UsageError(f"--to {self.to} takes a model and no vectors: give it with -m")
        elif self.source is None:
            kind = "a source of examples" if self.to == _EXAMPLES else "a vectors folder"
            example = "beir/scifact:train" if self.to == _EXAMPLES else "vectors/"
            raise UsageError(f"--to {self.to} takes {kind}, such as: lmk export {example} …")

    def ineffective(self, option: Option) -> str:
        """The flags of a recipe have an effect only on a model."""
        if option.group is RecipeOptions and self.to != _MODEL:
            return f"--to {self.to}: no model is used"
        return super().ineffective(option)

    def execute(self, report: Report) -> Exported:
        """Write the folder."""
        place = Destination(self)
        if self.to == _MODEL:
            return self._model(place, report)
        source = str(self.source)
        return (
            self._examples(source, place, report)
            if self.to == _EXAMPLES
            else self._vectors(Path(source), place, report)
        )

    def _examples(self, source: str, place: Destination, report: Report) -> Exported:
        from lmkcli.exchange.training_examples import export_examples

        folder = place.prepare(report)
        with report.step("export") as job:
            tally = export_examples(source, folder, job).found()
        text = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in tally.items())
        return Exported(folder, {"to": self.to, **tally}, text)

    def _vectors(self, source: Path, place: Destination, report: Report) -> Exported:
        from lmkcli.exchange.exporting import export
        from lmkcli.store.vectors import Vectors

        vectors = Vectors(source)
        folder = place.prepare(report)
        with report.step("export") as job:
            rows = export(vectors, self.to, folder, job)
        facts = {"documents": vectors.rows, "vectors": rows, "dimensions": vectors.dim}
        text = ", ".join(f"{count:,} {name}" for name, count in facts.items())
        return Exported(folder, {"to": self.to, **facts}, text)

    def _model(self, place: Destination, report: Report) -> Exported:
        from lmkcli.encoding.sentence_folder import export_model, resolve_whole

        resolved = resolve_whole(self.part(RecipeOptions), self.offline)
        for line in resolved.notes:
            report.note(line)
        folder = place.prepare(report)
        exported = export_model(resolved, folder, report)
        config = resolved.recipe.doc
        gran = f" gran {config.gran}" if config.gran else ""
        text = (
            f"{resolved.folder.name}, pool {config.pool}{gran}; load it with {exported.loaded_by}"
        )
        return Exported(folder, exported._asdict(), text)
