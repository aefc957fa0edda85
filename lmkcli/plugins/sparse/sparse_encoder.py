"""SparseEncoder: the folders of learned sparse models in sentence-transformers."""

from lmkcli.models.sentence_classes import SentenceClass

SPARSE_ENCODER = SentenceClass(
    "SparseEncoder",
    "sentence_transformers.sparse_encoder.models",
    transformer="MLMTransformer",
    pooling="SpladePooling",
    poolers={
        "splade": {"pooling_strategy": "max", "activation_function": "relu"},
        "splade-sum": {"pooling_strategy": "sum", "activation_function": "relu"},
        "splade-log": {"pooling_strategy": "max", "activation_function": "log1p_relu"},
    },
    task="fill-mask",
    similarity="dot",
    table="SparseStaticEmbedding",
    tags="sparse-encoder, splade",
)
