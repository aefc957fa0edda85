"""The poolers of SPLADE: vectors of the weights of vocabulary terms, instead of a mean of states.

`splade_pooling.py` computes the vectors. Nothing here imports torch.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lmkcli.encoding.representation import Combination, QueryEncoder, Representation
from lmkcli.encoding.resolution import representation_of
from lmkcli.errors import UsageError
from lmkcli.models.model_files import read_json
from lmkcli.models.model_folder import TRANSFORMER, ModelFolder, no_language_head
from lmkcli.plugins.sparse.sparse_encoder import SPARSE_ENCODER
from lmkcli.plugins.sparse.sparse_settings import WindowedTermSettings
from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.pooling.table import Pooler, WindowReduction
from lmkcli.spec.recipe import EncoderConfig, PoolerSetting, RecipeOptions
from lmkcli.spec.values import FULL, Window

if TYPE_CHECKING:  # these import torch
    from lmkcli.models.forward import Model, ModelOptions, Pooling


@dataclass(frozen=True)
class Expanding(Representation[SparseRows]):
    """A representation: a masked language model expands a text to weighted terms (`Representation`).

    of_marks: 'max' or 'sum' over the marked positions, and by default over the windows of a text.
    logarithms: how often the weight of a term is log(1 + weight), starting from relu(logit).
    """

    of_marks: Literal["max", "sum"]
    logarithms: int = 1

    codec = kind = "sparse"
    keeps_space = of_terms = True
    sentence_class = SPARSE_ENCODER
    temperature = 1.0  # the scores of sparse vectors are no cosines
    regulariser = "lmkcli.plugins.sparse.sparsity:open_sparsity"

    def check_unit(self, pool: str, unit: str) -> None:
        """Raise UsageError for unit token."""
        if unit == "token":
            raise UsageError(
                f"--unit token: --pool {pool} makes a sparse vector of whole texts; use --unit doc or chunk, "
                "or --pool mean for late interaction"
            )

    def check(self, unit: str, window: Window, options: RecipeOptions) -> None:
        """Raise UsageError for --dim, and for --sum-windows without windows."""
        if options.dim:
            raise UsageError(
                f"--dim {options.dim}: the dimensions of sparse vectors are the terms of the vocabulary; "
                "keep fewer terms with --top-terms"
            )
        if options.part(WindowedTermSettings).sum_windows and (unit != "doc" or window == FULL):
            raise UsageError(
                f"--sum-windows has no effect with --unit {unit} and --window {window}: it is for documents "
                "in windows; drop it, or use --unit doc and --window N"
            )

    def settings(self, options: RecipeOptions, query: bool) -> dict[str, PoolerSetting]:
        """Return the number of terms to keep, and whether windows are added; those that are used."""
        given = options.part(WindowedTermSettings)
        most = given.query_top_terms if query else given.top_terms
        used = {"top_terms": most, "sum_windows": given.sum_windows and not query}
        return {name: value for name, value in used.items() if value}

    def declared(self, folder: ModelFolder) -> ModelFolder:
        """Return the declarations of a folder for sparse vectors.

        Folders without declarations are scored by dot products. Raises UsageError for a model without a
        masked-language-model head, or with modules for dense vectors.
        """
        if folder.kind != TRANSFORMER or folder.causal:
            raise UsageError(no_language_head(folder, "its architecture has none"))
        declared = read_json(folder.encoder / "config.json")
        architectures = declared.get("architectures") or []
        if (
            architectures
            and not declared.get("auto_map")
            and not any(map(_has_head, architectures))
        ):
            raise UsageError(
                no_language_head(folder, f"its config.json declares {architectures[0]}")
            )
        if folder.modules or folder.projections:
            raise UsageError(
                f"{folder.name} has modules after its pooling, which are for dense vectors; give a SPLADE "
                "model, or choose another --pool"
            )
        own = representation_of(folder.pool or "mean").kind == self.kind
        return folder if own else replace(folder, similarity="dot", normalize=False)

    def has_table(self, folder: ModelFolder) -> bool:
        """Return whether the folder has a table of the weights of query terms."""
        return folder.static_queries is not None

    def windows(self, side: EncoderConfig) -> WindowReduction:
        """Return the maximum, or the sum."""
        return "sum" if side.settings.get("sum_windows") else self.of_marks

    def open(
        self, side: EncoderConfig, folder: ModelFolder, options: "ModelOptions"
    ) -> "tuple[Model, Pooling]":
        """Load the masked language model. Raises UsageError for a head that cannot be trained."""
        from lmkcli.models.transformer import open_masked
        from lmkcli.plugins.sparse.splade_pooling import SpladePooling
        from lmkcli.plugins.sparse.trained_splade import TrainedSplade

        model, head = open_masked(folder, options)
        if not options.trainable:
            return model, SpladePooling(head, self.of_marks, self.logarithms)
        pooling = TrainedSplade(head, self.of_marks, self.logarithms)
        if not pooling.exact:
            raise UsageError(
                f"the language head of {folder.name} does not end in a linear layer, so lmk cannot train it; "
                "give a model such as BertForMaskedLM"
            )
        return model, pooling

    def combination(self, side: EncoderConfig, width: int, name: str) -> Combination[SparseRows]:
        """Return the end of encoding."""
        from lmkcli.plugins.sparse.splade_pooling import TermWeights

        return TermWeights(side, width, self.windows(side) == "sum")

    def facts(self, documents: SparseRows, queries: SparseRows) -> dict[str, float]:
        """Return the mean numbers of terms."""
        sides = {"doc_terms": documents, "query_terms": queries}
        return {name: float(side.lengths.mean()) for name, side in sides.items()}

    def open_table(self, side: EncoderConfig, folder: ModelFolder) -> QueryEncoder[SparseRows]:
        """Open the table of the weights of query terms."""
        from lmkcli.plugins.sparse.static_queries import open_static_queries

        return open_static_queries(side, folder)


def _has_head(architecture: str) -> bool:
    """Return whether a class of transformers has a masked-language-model head."""
    return architecture.endswith(("ForMaskedLM", "ForPreTraining"))


_HERE = "lmkcli.plugins.sparse.splade"
MAX, SUM, LOG = Expanding("max"), Expanding("sum"), Expanding("max", 2)
# SPLADE v2, SPLADE v1, and OpenSearch's weights log(1 + log(1 + relu(logit)))
SPLADE = Pooler("splade", "every", representation=f"{_HERE}:MAX")
SPLADE_SUM = Pooler("splade-sum", "every", representation=f"{_HERE}:SUM")
SPLADE_LOG = Pooler("splade-log", "every", representation=f"{_HERE}:LOG")
