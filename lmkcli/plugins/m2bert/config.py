"""The configuration of M2-BERT, with the field names of the released models."""

from typing import Any

from transformers import PretrainedConfig

from lmkcli.errors import DataError

# Options of the released code that no released retrieval model changes; lmk supports only these values.
_REQUIRED = {
    "monarch_mixer_sequence_mixing": True,
    "attention_pooling": False,
    "sequence_token_planting": False,
}


class M2BertConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes and options of an M2-BERT; the defaults are those of the 2k retrieval model.

    Fields for optimizers and CUDA kernels are kept and have no effect here.
    """

    model_type = "m2-bert"

    vocab_size: int = 30522  # the table has rows up to a multiple of 8
    type_vocab_size: int = 2
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12  # declared by the released models, unused
    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float | int = 0.1
    initializer_range: float = 0.02
    pad_token_id: int | None = 0
    long_conv_l_max: int | None = None  # rows of the filters' tables; None: one per position
    bidirectional: bool = True
    residual_long_conv: bool = True
    hyena_emb_dim: int = 5
    hyena_filter_order: int = 128
    hyena_w: float | int = 10  # the initial frequency of the sines
    hyena_w_mod: float | int = 1  # a factor on this frequency
    hyena_training_additions: bool = False  # a LayerNorm on the mixer's input
    monarch_mixer_sequence_mixing: bool = True
    use_glu_mlp: bool = True
    use_monarch_mlp: bool = True
    monarch_mlp_nblocks: int = 4
    use_positional_encodings: bool = True
    pool_all: bool = False  # the pooler reads the mean over the mask instead of position 0
    use_cls_token: bool = False  # the state of position 0 is the vector, without a pooler
    use_normalized_embeddings: bool = False
    attention_pooling: bool = False
    sequence_token_planting: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.long_conv_l_max is None:
            self.long_conv_l_max = self.max_position_embeddings
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def table_length(self) -> int:
        """The number of rows of the filters' tables."""
        return self.long_conv_l_max or self.max_position_embeddings

    @property
    def limit(self) -> int:
        """The longest input: the length of the shortest table."""
        if not self.use_positional_encodings:
            return self.table_length
        return min(self.max_position_embeddings, self.table_length)


def check_supported(config: M2BertConfig) -> None:
    """Raise DataError for options that lmk does not support."""
    for name, needed in _REQUIRED.items():
        if getattr(config, name) != needed:
            raise DataError(
                f"config.json: {name} is {getattr(config, name)}, and lmk supports M2-BERT only with "
                f"{name} {needed}; use another model"
            )
    if config.hyena_emb_dim < 3 or config.hyena_emb_dim % 2 == 0:
        raise DataError(
            f"config.json: hyena_emb_dim is {config.hyena_emb_dim}; it must be odd and at least 3"
        )
