"""The configuration of TITE (docs/models.md). All fields of a config.json are checked when it is read."""

from typing import Any, cast

from transformers import PretrainedConfig
from transformers.activations import ACT2FN

from lmkcli.errors import DataError

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "absolute_positional_embedding_type": (None, "learned"),
    "relative_positional_embedding_type": (None, "rotary", "alibi"),
    "rotary_query_positions": ("centre", "index"),
    "pooling_location": ("pre", "intra", "post"),
    "norm_location": ("pre", "qkv", "post"),
    "norm_type": ("rms", "layer"),
    "hidden_act": (*ACT2FN, "swiglu"),
}
_PER_LAYER = (
    "hidden_sizes", "num_attention_heads", "intermediate_sizes", "kernel_sizes", "strides",
)  # fmt: skip


def pooled_length(length: int, kernel: int, stride: int) -> int:
    """Return the number of windows over a sequence.

    They start at 0, stride, 2 x stride, and so on; the last may be partial.
    """
    return -(-max(0, length - kernel) // stride) + 1 if length else 0


class TiteConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The configuration of a TITE model. A scalar applies to all layers; lists have one entry per layer.

    The layers must pool `max_position_embeddings` tokens to one vector.

    - `kernel_sizes`, `strides`: tokens in a window, and the distance between the starts of two windows;
      None for layers that do not pool.
    - `pooling_location`: "intra" (pooled queries over unpooled keys and values), "pre" or "post".
    - `hidden_sizes`, `num_attention_heads`, `intermediate_sizes`: growing sizes are upscaling. The token
      table is then as wide as the last layer, and projected down.
    - `absolute_positional_embedding_type`: "learned" or None; `relative_positional_embedding_type`:
      "rotary", "alibi" or None. The single key `positional_embedding_type` of older files replaces both.
    - `rotary_query_positions`: the position of the queries of a pooling layer: the "centre" of their
      window, or their "index", as in checkpoints made before June 2025.
    - `rotary_interleaved`: rotate pairs of neighbours, or else the first half of a head with its second.
    - `norm_location`: "post", "pre" or "qkv"; `norm_type`: "layer" or "rms".
    - `hidden_act`: "gelu_pytorch_tanh", "swiglu", or another activation of transformers.

    DataError for an impossible configuration.
    """

    model_type = "tite"

    vocab_size: int = 30522
    num_hidden_layers: int = 12
    hidden_sizes: int | list[int] = 768
    num_attention_heads: int | list[int] = 12
    intermediate_sizes: int | list[int] = 3072
    kernel_sizes: int | list[int | None] | None = None
    strides: int | list[int | None] | None = None
    dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    hidden_act: str = "gelu_pytorch_tanh"
    absolute_positional_embedding_type: str | None = None
    relative_positional_embedding_type: str | None = "rotary"
    rotary_interleaved: bool = True
    rotary_query_positions: str = "centre"
    pooling_location: str = "intra"
    norm_location: str = "pre"
    norm_type: str = "rms"

    def __post_init__(self, **kwargs: Any) -> None:
        if "positional_embedding_type" in kwargs:  # checkpoints of the first code
            old = kwargs.pop("positional_embedding_type")
            self.absolute_positional_embedding_type = "learned" if old == "absolute" else None
            self.relative_positional_embedding_type = None if old == "absolute" else old
        # hidden_size is a property here, and TITE has one implementation of attention
        for ignored in ("hidden_size", "attn_implementation"):
            kwargs.pop(ignored, None)
        layers = self.num_hidden_layers
        for name in _PER_LAYER:
            given = getattr(self, name)
            values = list(given) if isinstance(given, list | tuple) else [given] * layers
            if len(values) != layers:
                raise DataError(
                    f"config.json: {name} has {len(values)} entries for {layers} layers"
                )
            setattr(self, name, values)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise DataError(
                    f"config.json: {name} {getattr(self, name)!r} is not one of "
                    f"{', '.join(map(repr, choices))}"
                )
        self._check_widths()
        self._check_pooling()
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def hidden_size(self) -> int:
        """The width of the vectors: that of the last layer."""
        return self.widths[-1]

    @property
    def widths(self) -> list[int]:
        """The width of each layer's states."""
        return self.layer_sizes("hidden_sizes")

    @property
    def pools(self) -> bool:
        """Whether the model returns one vector per sequence instead of one per token."""
        return any(self.windows)

    @property
    def longest(self) -> int:
        """The longest sequence that has positions, and that is pooled to one vector."""
        bounded = self.pools or self.absolute_positional_embedding_type == "learned"
        return self.max_position_embeddings if bounded else (1 << 31) - 1

    def head_width(self, layer: int) -> int:
        """Return the width of one head of a layer."""
        return self.widths[layer] // self.layer_sizes("num_attention_heads")[layer]

    def layer_sizes(self, name: str) -> list[int]:
        """Return a field that has one number per layer."""
        return cast(list[int], getattr(self, name))

    @property
    def windows(self) -> list[tuple[int, int] | None]:
        """Kernel and stride of each layer; None for layers that do not pool."""
        kernels = cast(list[int | None], self.kernel_sizes)
        strides = cast(list[int | None], self.strides)
        return [
            None if kernel is None or stride is None else (kernel, stride)
            for kernel, stride in zip(kernels, strides, strict=True)
        ]

    def _check_widths(self) -> None:
        widths, heads = self.widths, self.layer_sizes("num_attention_heads")
        if widths != sorted(widths):
            raise DataError(f"config.json: hidden_sizes {widths} must never decrease")
        for width, count in zip(widths, heads, strict=True):
            if width % count:
                raise DataError(f"config.json: {count} heads do not divide a width of {width}")
            if self.relative_positional_embedding_type == "rotary" and width // count % 2:
                raise DataError(f"config.json: rotary heads of odd width {width // count}")

    def _check_pooling(self) -> None:
        """Raise DataError unless the layers pool every sequence to one vector, or no layer pools."""
        length = self.max_position_embeddings
        for layer, pooling in enumerate(self.windows):
            kernel, stride = (self.layer_sizes(name)[layer] for name in ("kernel_sizes", "strides"))
            if pooling is None and kernel == stride:
                continue
            if pooling is None or not 1 <= stride <= kernel:
                raise DataError(
                    f"config.json: layer {layer} has kernel {kernel} and stride {stride}; a layer needs "
                    "both or neither, and a stride from 1 to its kernel, so that no token is skipped"
                )
            length = pooled_length(length, kernel, stride)
        if self.pools and length != 1:
            raise DataError(
                f"config.json: {self.max_position_embeddings} positions are pooled to {length} vectors "
                "instead of one; add pooling layers, or lower max_position_embeddings"
            )
