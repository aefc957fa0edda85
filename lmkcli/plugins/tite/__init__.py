"""TITE (Schlatt et al. 2025): an encoder that pools its sequence, layer by layer, to one vector."""

from collections.abc import Mapping

from lmkcli.catalog import Config, ModelRow, PretextRow


def is_tite(config: Config) -> bool:
    """Return whether a config.json describes a TITE; lightning-ir writes `backbone_model_type`, too."""
    return (config.get("backbone_model_type") or config.get("model_type")) == "tite"


def pools(config: Config) -> bool:
    """Return whether the layers of a TITE pool. Without kernels, it keeps one state per token."""
    kernels = config.get("kernel_sizes")
    return any(kernels) if isinstance(kernels, list) else kernels is not None


def _defaults(config: Config) -> Mapping[str, object]:
    return {"similarity": "dot", "query_length": 32} if pools(config) else {}  # docs/models.md


EXTENDS = ("pretrain",)
_MASKED = ("mask", "whole_words")

ROWS = (
    ModelRow(
        "tite",
        "lmkcli.plugins.tite.kind:open_model",
        "TITE: pools its sequence to one vector inside the model",
        matches=is_tite,
        makes_vector=pools,
        token_states=lambda config: not pools(config),
        defaults=_defaults,
        own_tokenizer=True,  # its tokenizer_config.json names BERT's tokenizer, which differs
    ),
    PretextRow(
        "tite",
        "lmkcli.plugins.tite.pretexts:TitePretraining",
        "the sum of tite-mae and tite-bow",
        settings=(*_MASKED, "decoder_mask"),
        models=("tite",),
    ),
    PretextRow(
        "tite-mae",
        "lmkcli.plugins.tite.pretexts:TiteMae",
        "TITE: predict every token from the vector and a part of the text",
        settings=(*_MASKED, "decoder_mask"),
        models=("tite",),
    ),
    PretextRow(
        "tite-bow",
        "lmkcli.plugins.tite.pretexts:TiteBow",
        "TITE: predict the words of the text from its vector",
        settings=_MASKED,
        models=("tite",),
    ),
)
