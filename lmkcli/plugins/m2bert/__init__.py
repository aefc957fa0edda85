"""M2-BERT (Fu et al. 2023; Saad-Falcon et al. 2024): long convolutions, one vector for up to 32k tokens."""

from collections.abc import Mapping

from lmkcli.catalog import Config, ModelRow


def is_m2bert(config: Config) -> bool:
    """Return whether a config.json describes an M2-BERT; releases have various model types."""
    named = config.get("backbone_model_type") or config.get("model_type")
    return bool(config.get("monarch_mixer_sequence_mixing")) or named in (
        *("m2-bert", "m2_bert", "m2bert"),
    )


def _always(config: Config) -> bool:
    return True


def _defaults(config: Config) -> Mapping[str, object]:
    """Return the length of the model; its tokenizer is BERT's, and declares 512 positions
    (docs/models.md).
    """
    return {"max_length": config.get("max_position_embeddings")}


ROWS = (
    ModelRow(
        "m2bert",
        "lmkcli.plugins.m2bert.kind:open_model",
        "M2-BERT: long convolutions, one vector of up to 32k tokens",
        matches=is_m2bert,
        makes_vector=_always,
        defaults=_defaults,
        sees_padding=True,
        cuts_suffix=True,
        tokenizer="google-bert/bert-base-uncased",
    ),
)
