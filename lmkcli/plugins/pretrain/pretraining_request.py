"""Check and resolve a pre-training request before torch is loaded, so that errors appear immediately."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.catalog import Config
from lmkcli.data.collection import open_collection
from lmkcli.encoding.resolution import ResolvedRecipe, check_gran
from lmkcli.encoding.sentence_folder import check_exportable, resolve_whole
from lmkcli.errors import UsageError
from lmkcli.models.lookup import usable_models
from lmkcli.models.model_files import read_architecture
from lmkcli.models.model_folder import row_of
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.values import Granularity
from lmkcli.training.data.sources import Source, parse_source
from lmkcli.training.request import check_installed, grans_of, with_first_gran


class BaseModelSpec(NamedTuple):
    """The encoder to start from: an existing model, or a new model with an architecture."""

    options: RecipeOptions
    architecture: Path | None = None
    tokenizer: str = ""
    init_from: str = ""

    @property
    def grans(self) -> tuple[Granularity, ...]:
        """The granularities in the options."""
        return grans_of(self.options)

    @property
    def first(self) -> RecipeOptions:
        """The options with only the first granularity."""
        return with_first_gran(self.options)


class ResolvedPretraining(NamedTuple):
    """A checked pre-training request. `resolved` is None for a new model, which does not exist yet."""

    sources: tuple[Source, ...]
    resolved: ResolvedRecipe | None


def resolve_pretraining(
    sources: Sequence[str],
    base_model: BaseModelSpec,
    settings: PretrainSettings,
    offline: bool = False,
) -> ResolvedPretraining:
    """Check a pre-training request. Its texts are read and tokenized later.

    Raises UsageError and DataError for invalid requests.
    """
    check_installed(settings, "lmk pretrain")
    parsed = tuple(parse_source(each) for each in sources)
    check_sources(parsed)
    _check_base_model(base_model)
    for name in (source.name for source in parsed):
        if not (Path(name) / manifest.NAME).is_file():  # not a tokens folder
            open_collection(name)
    if base_model.architecture:
        check_encoder(read_architecture(base_model.architecture), settings.objective)
        return ResolvedPretraining(parsed, None)
    resolved = resolve_whole(base_model.first, offline)
    check_encoder(resolved.folder.config, settings.objective)
    check_exportable(resolved)
    check_layout(resolved, base_model.grans, settings, any(joined_sources(parsed, settings)))
    return ResolvedPretraining(parsed, resolved)


def _check_base_model(base_model: BaseModelSpec) -> None:
    """Raise UsageError unless exactly one of a new and an existing model is given."""
    if base_model.architecture:
        if base_model.options.model or not base_model.tokenizer:
            raise UsageError(
                "--architecture creates a new model; add --tokenizer, and drop -m/--model"
            )
        return
    if base_model.tokenizer or base_model.init_from:
        raise UsageError(
            "--tokenizer and --init-from are for a new model; add --architecture, or drop them"
        )
    if not base_model.options.model:
        raise UsageError(
            f"no model is given; add -m/--model (for instance {' or '.join(usable_models())}), or "
            "--architecture with --tokenizer for a new model"
        )


def check_encoder(config: Config, objective: str) -> None:
    """Raise UsageError if the objective does not train encoders of this configuration."""
    row, kind = catalog.PRETEXTS[objective], row_of(config)
    if row.models and kind.name not in row.models:
        others = [name for name, other in catalog.PRETEXTS.items() if not other.models]
        raise UsageError(
            f"--objective {objective} is for models of the kind {' or '.join(row.models)} only; for other "
            f"encoders use {' or '.join(others)}"
        )
    if not row.models and not kind.token_states(config):
        own = [name for name, other in catalog.PRETEXTS.items() if kind.name in other.models]
        advice = f"use {' or '.join(own)}" if own else "use another model"
        raise UsageError(
            f"--objective {objective} predicts masked tokens from the states of tokens, which models of the "
            f"kind {kind.name} do not keep; {advice}"
        )


def check_sources(sources: Sequence[Source]) -> None:
    """Raise UsageError for options of a source that have no effect on pre-training."""
    for source in sources:
        if source != Source(source.name, source.weight, blocks=source.blocks):
            raise UsageError(
                f"'{source.name}': pre-training uses only the options weight and blocks of a source; drop "
                "the others"
            )


def joined_sources(sources: Sequence[Source], settings: PretrainSettings) -> list[bool]:
    """Return which sources are joined and cut into blocks: the option of a source goes before --blocks."""
    return [settings.blocks if one.blocks is None else one.blocks for one in sources]


def check_layout(
    resolved: ResolvedRecipe,
    grans: tuple[Granularity, ...],
    settings: PretrainSettings,
    blocks: bool,
) -> tuple[Granularity, ...]:
    """Return the granularities in canonical form. Raises UsageError for unsupported combinations.

    `blocks` tells whether texts are joined.
    """
    doc = resolved.recipe.doc
    grans = tuple(check_gran(doc.pool, each) for each in grans or filter(None, [doc.gran]))
    if len(grans) > 1 and not all(gran.tokens for gran in grans):
        raise UsageError(
            f"--gran {','.join(grans)}: with several granularities, lmk draws a length for each chunk; "
            "write only numbers of tokens"
        )
    if blocks and grans and not grans[0].tokens:
        raise UsageError(
            f"--gran {grans[0]} cannot split the joined texts of --blocks; drop one of the two flags"
        )
    if settings.official_quirks and doc.pool != "lmk":
        raise UsageError(f"--official-quirks has no effect with --pool {doc.pool}; drop it")
    return grans
