"""Export: write vectors, training examples, or a model with its pooling for other tools."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from lmkcli import catalog
from lmkcli.errors import MissingExtra, UsageError
from lmkcli.operations.options import Destination, NewOutput
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import Option
from lmkcli.spec.recipe import POOLER_OPTIONS, RecipeOptions
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, Offline
from lmkcli.text.formatting import counted

_ST, _ONNX, _HUB = "sentence-transformers", "onnx", "hub"
if TYPE_CHECKING:
    Target = str
else:
    Target = Literal[(*catalog.EXPORTERS,)]


class ExportCounts(NamedTuple):
    """The counts of exported vectors."""

    documents: int
    vectors: int
    dimensions: int


@dataclass(frozen=True)
class Exported(Result):
    """A folder for another tool, and facts about it. `text` describes the facts for people."""

    output: Path
    facts: dict[str, Any]
    text: str

    def as_json(self) -> Any:
        """Return the folder and the facts."""
        return {"output": str(self.output), **self.facts}

    def blocks(self) -> Iterator[Table | str]:
        """Yield the folder and its facts."""
        yield f"{self.output}: {self.text}"


@dataclass(frozen=True)
class Export(Operation[Exported], NewOutput, RecipeOptions):
    """Export vectors or training examples for other tools; with -m, a model.

    A model becomes a folder for sentence-transformers, an ONNX graph, or a folder with a model card for the
    Hugging Face hub. The result is a folder with a manifest of its inputs. The folder is either complete or
    does not exist.
    """

    verb: ClassVar[str] = "export"
    example: ClassVar[str] = "exported/"
    # The exported folders of models cannot store these.
    unused: ClassVar[tuple[str, ...]] = (
        *("unit", "overlap", "context", "extend", "pad_to_max", "dim"),
        *POOLER_OPTIONS,
    )

    source: Annotated[
        str | None,
        Flag(
            "A vectors folder; for tevatron-train a source of examples, as for lmk train.",
            argument=True,
            metavar="[VECTORS]",
            role="collection",
            suggest_for="--input --vectors --embeddings",
        ),
    ] = None
    to: Annotated[
        Target,
        Flag(
            f"The tool or the file format to write for: {', '.join(catalog.EXPORTERS)}.",
            often=True,
            suggest_for="--format --type",
        ),
    ] = field(kw_only=True)
    landmark_transformer: Annotated[
        bool,
        Flag(
            "Write the module LandmarkTransformer, which is proposed for sentence-transformers, instead of "
            "modules of lmkcli.",
            only=f"{_ST} {_HUB}",
        ),
    ] = field(default=False, kw_only=True)
    log: Annotated[
        Path | None,
        Flag(
            "A score log of lmk eval: its scores of the model go into the card.",
            role="file",
            only=_HUB,
        ),
    ] = field(default=None, kw_only=True)
    repo: Annotated[
        str | None,
        Flag(
            "Upload the folder to this repository, such as name/model; by default, nothing is uploaded.",
            role="consent",
            only=_HUB,
            suggest_for="--push --push-to-hub --repo-id --hub-model-id",
        ),
    ] = field(default=None, kw_only=True)
    private: Annotated[
        bool, Flag("Create the repository as a private one.", role="consent", only=_HUB)
    ] = field(default=False, kw_only=True)
    offline: Offline = field(default=False, kw_only=True)

    def check(self) -> None:
        """Raise UsageError if the input does not fit the target."""
        if self._takes == "model":
            if self.source is not None or not self.model:
                raise UsageError(
                    f"--to {self.to} needs a model instead of vectors; give it with -m"
                )
        elif self.source is None:
            kind = "a source of examples" if self._takes == "examples" else "a vectors folder"
            example = "beir/scifact:train" if self._takes == "examples" else "vectors/"
            raise UsageError(f"--to {self.to} needs {kind}; for instance: lmk export {example} …")
        if self.repo is not None and self.offline:
            raise UsageError("--repo uploads the model, and --offline forbids that; drop one")
        if self.private and self.repo is None:
            raise UsageError("--private is for a repository; name it with --repo")

    @property
    def _takes(self) -> str:
        """The kind of input of the target."""
        return catalog.EXPORTERS[self.to].takes

    def variant(self) -> tuple[str, str]:
        """Return the target."""
        return self.to, f"--to {self.to}"

    def ineffective(self, option: Option) -> str:
        """Flags of the recipe have an effect only on models."""
        if issubclass(RecipeOptions, option.group) and self._takes != "model":
            return f"--to {self.to}: no model is used"
        return super().ineffective(option)

    def execute(self, report: Report) -> Exported:
        """Write the folder."""
        destination = Destination(self)
        with destination.exclusive():
            if self.to == _ONNX:
                return self._graph(destination, report)
            if self._takes == "model":
                return self._model(destination, report)
            if self._takes == "examples":
                return self._examples(str(self.source), destination, report)
            return self._vectors(Path(str(self.source)), destination, report)

    def _examples(self, source: str, destination: Destination, report: Report) -> Exported:
        from lmkcli.plugins.exchange.exports import export_examples

        folder = destination.prepare(report)
        with report.step("export") as job:
            tally = export_examples(source, folder, job).found()
        text = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in tally.items())
        return Exported(folder, {"to": self.to, **tally}, text)

    def _vectors(self, source: Path, destination: Destination, report: Report) -> Exported:
        if self._takes == "folder":
            write: Callable[..., ExportCounts] = catalog.EXPORTERS.load(self.to)
            facts = write(source, lambda: destination.prepare(report), report)._asdict()
        else:
            from lmkcli.plugins.exchange.exports import export
            from lmkcli.vectors.stored import open_dense

            vectors = open_dense(source)
            folder = destination.prepare(report)
            with report.step("export") as job:
                rows = export(vectors, self.to, folder, job)
            facts = ExportCounts(vectors.rows, rows, vectors.dim)._asdict()
        text = ", ".join(counted(count, name.removesuffix("s")) for name, count in facts.items())
        return Exported(destination.path, {"to": self.to, **facts}, text)

    def _model(self, destination: Destination, report: Report) -> Exported:
        """Write a folder for sentence-transformers; for the hub, with a model card."""
        from lmkcli.encoding.sentence_folder import (
            check_exportable,
            export_model,
            exported,
            resolve_whole,
            with_landmark_transformer,
        )

        resolved = resolve_whole(self.part(RecipeOptions), self.offline)
        for line in resolved.notes:
            report.note(line)
        check_exportable(resolved)
        if self.landmark_transformer:
            resolved = with_landmark_transformer(resolved)
        card = ""
        if self.to == _HUB:
            from lmkcli.plugins.exchange.modelcard import model_card

            whole = os.path.abspath(destination.path)
            name = (self.repo or whole).rpartition("/")[2]
            card = model_card(name, resolved, exported(resolved), self.log, report.note)
        folder = destination.prepare(report)
        made = export_model(resolved, folder, report, card)
        config = resolved.recipe.doc
        gran = f" gran {config.gran}" if config.gran else ""
        text = f"{resolved.folder.name}, pool {config.pool}{gran}; load it with {made.loaded_by}"
        if made.proposed:
            text += " of a sentence-transformers with LandmarkTransformer (pull request 3642)"
        if self.repo is None:
            return Exported(folder, made._asdict(), text)
        from lmkcli.plugins.exchange.hub_upload import upload

        commit = upload(folder, self.repo, self.private or None)
        facts = {"repo": self.repo, "commit": commit}
        return Exported(folder, {**made._asdict(), **facts}, f"{text}; uploaded to {self.repo}")

    def _graph(self, destination: Destination, report: Report) -> Exported:
        """Write an ONNX graph of the model."""
        from lmkcli.encoding.sentence_folder import resolve_whole

        for package in ("onnx", "onnxscript", "onnxruntime"):
            if find_spec(package) is None:
                raise MissingExtra(package, "onnx", "--to onnx")
        from lmkcli.plugins.exchange.onnx_graph import export_graph

        resolved = resolve_whole(self.part(RecipeOptions), self.offline)
        for line in resolved.notes:
            report.note(line)
        folder = destination.prepare(report)
        with report.step("export"):
            facts = export_graph(resolved, folder, report)
        config = resolved.recipe.doc
        gran = f" gran {config.gran}" if config.gran else ""
        text = (
            f"{resolved.folder.name}, pool {config.pool}{gran}, {facts['dimensions']} dimensions; "
            f"onnxruntime differs from lmk by {facts['difference']:.1e} at most"
        )
        return Exported(folder, {"to": self.to, **facts}, text)
