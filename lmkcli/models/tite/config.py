"""The configuration of TITE (docs/tite.md): every field of a config.json, checked when it is read."""

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
    """Windows over a sequence: they begin at 0, stride, 2 x stride …, and the last may be partial."""
    return -(-max(0, length - kernel) // stride) + 1 if length else 0


class TiteConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """What a TITE model is. A scalar stands for every layer; lists have one entry a layer.

    `kernel_sizes` and `strides` are None where a layer does not pool. `rotary_query_positions` says
    where the queries of a pooling layer stand: at the centre of their window, or, as in checkpoints
    made before June 2025, at their index. DataError for what no TITE can be.
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
        for derived in ("hidden_size", "attn_implementation"):  # the first is a property here;
            kwargs.pop(derived, None)  # packed attention is computed in one way alone
        for name in _PER_LAYER:
            setattr(self, name, self._per_layer(name))
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise DataError(
                    f"config.json: {name} {getattr(self, name)!r} is not one of "
                    f"{', '.join(map(repr, known))}"
                )
        self._check_widths()
        self._check_pooling()
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def hidden_size(self) -> int:
        """The width of what comes out: that of the last layer."""
        return self.widths[-1]

    @property
    def widths(self) -> list[int]:
        """The width of each layer's states."""
        return self.layer_sizes("hidden_sizes")

    @property
    def pools(self) -> bool:
        """Whether one vector comes out, and not one for each token."""
        return any(self.windows)

    @property
    def longest(self) -> int:
        """The longest sequence that there are positions for, and that is pooled to one vector."""
        bounded = self.pools or self.absolute_positional_embedding_type == "learned"
        return self.max_position_embeddings if bounded else (1 << 31) - 1

    def head_width(self, layer: int) -> int:
        """The width of one head of a layer."""
        return self.widths[layer] // self.layer_sizes("num_attention_heads")[layer]

    def layer_sizes(self, name: str) -> list[int]:
        """One of the fields that have a number for each layer."""
        return cast(list[int], getattr(self, name))

    @property
    def windows(self) -> list[tuple[int, int] | None]:
        """Kernel and stride of each layer; None where it does not pool."""
        kernels = cast(list[int | None], self.kernel_sizes)
        strides = cast(list[int | None], self.strides)
        return [
            None if kernel is None or stride is None else (kernel, stride)
            for kernel, stride in zip(kernels, strides, strict=True)
        ]

    def _per_layer(self, name: str) -> list[Any]:
        given, layers = getattr(self, name), self.num_hidden_layers
        if not isinstance(given, list | tuple):
            return [given] * layers
        if len(given) != layers:
            raise DataError(f"config.json: {name} has {len(given)} entries for {layers} layers")
        return list(given)

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
        """Everything pools down to one vector, or nothing pools."""
        length = self.max_position_embeddings
        for layer, pooling in enumerate(self.windows):
            kernel, stride = (self.layer_sizes(name)[layer] for name in ("kernel_sizes", "strides"))
            if pooling is None and kernel == stride:
                continue
            if pooling is None or not 1 <= stride <= kernel:
                raise DataError(
                    f"config.json: layer {layer} has kernel {kernel} and stride {stride}; a layer has "
                    "both or neither, and a stride from 1 to its kernel, or tokens would be left out"
                )
            length = pooled_length(length, kernel, stride)
        if self.pools and length != 1:
            raise DataError(
                f"config.json: {self.max_position_embeddings} positions are pooled to {length} vectors "
                "instead of one; add pooling layers, or lower max_position_embeddings"
            )
