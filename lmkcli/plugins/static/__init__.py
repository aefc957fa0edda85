"""Static embeddings: a table with a vector for each token, such as those of model2vec."""

from collections.abc import Mapping

from lmkcli.catalog import Config, ModelRow

_NO_LIMIT = (1 << 31) - 1  # as in lmkcli.models.model_folder
_KINDS = ("static-embedding", "model2vec")


def is_table(config: Config) -> bool:
    """Return whether a configuration is that of a table; a folder of sentence-transformers needs no
    config.json.
    """
    return config.get("model_type") in _KINDS


def _defaults(config: Config) -> Mapping[str, object]:
    return {"pool": "mean", "table": True, "max_length": _NO_LIMIT}


ROWS = (
    ModelRow(
        "static",
        "lmkcli.plugins.static.kind:open_model",
        "static embeddings: the mean of a vector per token (StaticEmbedding, model2vec)",
        matches=is_table,
        defaults=_defaults,
        own_tokenizer=True,
    ),
)
