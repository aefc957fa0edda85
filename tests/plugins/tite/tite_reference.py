"""TITE for one sequence, directly from the formulas: loops, whole matrices, no packing."""

import math
from collections.abc import Iterator

import torch
from torch.nn.functional import gelu, layer_norm, silu

from lmkcli.plugins.tite.model import TiteModel

Weights = dict[str, torch.Tensor]


def vector(model: TiteModel, ids: torch.Tensor) -> torch.Tensor:
    """Return the states after the last layer, [1, width] if all is pooled."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    *_, last = layers(model, weights, ids)
    return norm(model, weights, "encoder.norm", last)


def layers(model: TiteModel, weights: Weights, ids: torch.Tensor) -> Iterator[torch.Tensor]:
    config = model.config
    x = weights["embeddings.word_embeddings.weight"][ids]
    if "embeddings.position_embeddings.weight" in weights:
        x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    if "embeddings.downscale.weight" in weights:
        x = x @ weights["embeddings.downscale.weight"].T
    x = norm(model, weights, "embeddings.norm", x)
    for i in range(config.num_hidden_layers):
        x = attention(model, weights, i, x)
        x = mlp(model, weights, i, x)
        yield x


def norm(model: TiteModel, weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """Apply the norm of that name, if the model has one."""
    if f"{name}.weight" not in weights:
        return x
    weight, eps = weights[f"{name}.weight"], model.config.layer_norm_eps
    if model.config.norm_type == "layer":
        return layer_norm(x, weight.shape, weight, weights[f"{name}.bias"], eps)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def means(x: torch.Tensor, kernel: int, stride: int) -> torch.Tensor:
    """Return the means of the windows that start at 0, stride, …, until one reaches the end."""
    made, start = [], 0
    while True:
        made.append(x[start : start + kernel].mean(0))
        if start + kernel >= len(x):
            return torch.stack(made)
        start += stride


def attention(model: TiteModel, weights: Weights, i: int, x: torch.Tensor) -> torch.Tensor:
    config, name = model.config, f"encoder.layers.{i}.attention"
    pooling, location = config.windows[i], config.pooling_location
    if len(x) == 1:
        pooling = None
    pooled = means(x, *pooling) if pooling and location != "post" else x
    source = pooled if location == "pre" else x
    inputs = [pooled, source]
    if config.norm_location == "pre":
        inputs = [norm(model, weights, f"{name}.norm", part) for part in inputs]
    q, k, v = (
        inputs[which] @ weights[f"{name}.{part}.weight"].T + weights[f"{name}.{part}.bias"]
        for which, part in ((0, "query"), (1, "key"), (1, "value"))
    )
    if config.norm_location == "qkv":
        q, k, v = (norm(model, weights, f"{name}.norm", part) for part in (q, k, v))
    at_queries = [float(p) for p in range(len(q))]
    if pooling and location == "intra" and config.rotary_query_positions == "centre":
        at_queries = [p * pooling[0] + (pooling[0] - 1) / 2 for p in at_queries]
    heads = config.num_attention_heads[i]
    made = [
        head(config, (h, heads), tuple(part.chunk(heads, -1)[h] for part in (q, k, v)), at_queries)
        for h in range(heads)
    ]
    made = torch.cat(made, -1) @ weights[f"{name}.dense.weight"].T + weights[f"{name}.dense.bias"]
    made[:, : pooled.shape[1]] += pooled
    if pooling and location == "post":
        made = means(made, *pooling)
    return norm(model, weights, f"{name}.norm", made) if config.norm_location == "post" else made


def head(config, number, qkv, at_queries):
    """One head: softmax(q k / sqrt(width) - distance) v."""
    q, k, v = qkv
    if config.relative_positional_embedding_type == "rotary":
        q = turned(q, at_queries, config.rotary_interleaved)
        k = turned(k, list(range(len(k))), config.rotary_interleaved)
    scores = q @ k.T / math.sqrt(q.shape[1])
    if config.relative_positional_embedding_type == "alibi":
        h, heads = number
        assert heads & (heads - 1) == 0
        spread = (len(k) - 1) / (len(q) - 1) if len(q) > 1 else 0.0
        rows, columns = torch.arange(len(q))[:, None], torch.arange(len(k))
        scores -= 2 ** (-8 * (h + 1) / heads) * (rows * spread - columns).abs()
    return scores.softmax(-1) @ v


def turned(x: torch.Tensor, at: list[float], interleaved: bool) -> torch.Tensor:
    width, made = x.shape[1], torch.empty_like(x)
    positions = torch.tensor(at, dtype=torch.float64)
    for j in range(width // 2):
        a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + width // 2)
        angle = positions * 10000 ** (-2 * j / width)
        made[:, a] = x[:, a] * angle.cos() - x[:, b] * angle.sin()
        made[:, b] = x[:, b] * angle.cos() + x[:, a] * angle.sin()
    return made


def mlp(model: TiteModel, weights: Weights, i: int, x: torch.Tensor) -> torch.Tensor:
    config, name = model.config, f"encoder.layers.{i}.mlp"
    post = config.norm_location == "post"
    inner = x if post else norm(model, weights, f"{name}.norm", x)
    inner = inner @ weights[f"{name}.intermediate_dense.weight"].T
    inner = inner + weights[f"{name}.intermediate_dense.bias"]
    if config.hidden_act == "swiglu":
        half = inner.shape[1] // 2
        inner = silu(inner[:, :half]) * inner[:, half:]
    else:
        inner = gelu(inner, approximate="tanh")
    made = inner @ weights[f"{name}.out_dense.weight"].T + weights[f"{name}.out_dense.bias"] + x
    return norm(model, weights, f"{name}.norm", made) if post else made
