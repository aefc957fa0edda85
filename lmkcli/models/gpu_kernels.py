"""Kernels for GPUs that compute several steps of a layer in one pass over memory, written in Triton.

Between its matrix products, a layer adds residuals, normalises, rotates queries and keys, and gates. Each of
these steps reads and writes all activations, and as separate operations of torch they take longer than the
products. Every kernel here computes in float32, and rounds once, when it stores the result.

No kernel depends on the number of rows, so that packs of other lengths are not compiled again.
"""

from typing import Any

import torch
import triton
import triton.language as tl

# Entries of a program's tile: enough for wide loads of every thread, and few enough for registers
TILE = 4096


@triton.jit(do_not_specialize=["rows"])
def _norm(  # type: ignore[no-untyped-def]
    x, residual, weight, bias, out, rows, width, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ADD: tl.constexpr, CENTRE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Store the norms of ROWS rows of x, or of x + residual if ADD."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < width)
    place = row * width + column
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    if CENTRE:
        mean = tl.sum(value, 1) / width
        value = tl.where(inside, value - mean[:, None], 0.0)
    variance = tl.sum(value * value, 1) / width
    scale = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(variance + eps)[:, None] * scale
    if BIAS:
        normed += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["pairs"])
def _rotate(  # type: ignore[no-untyped-def]
    x, cosine, sine, out, pairs, heads, width, token_stride, head_stride, table_stride, sign,
    PAIRS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Store the rotated vectors of PAIRS pairs of a token and a head."""
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)[:, None]
    token = pair // heads
    column = tl.arange(0, HALF)[None, :]
    half = width // 2
    inside = (pair < pairs) & (column < half)
    angle = token * table_stride + column
    cos = tl.load(cosine + angle, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sine + angle, mask=inside, other=0.0).to(tl.float32) * sign
    source = x + token * token_stride + (pair - token * heads) * head_stride + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    target = out + pair * width + column
    tl.store(target, (first * cos - second * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(target + half, (second * cos + first * sin).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _activated(x, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the activation of x and its derivative."""
    if KIND == "silu":
        share = tl.sigmoid(x)
        return x * share, share * (1.0 + x * (1.0 - share))
    if KIND == "gelu":  # the normal distribution at x, and its density
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        return x * share, share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    # the approximation of the GELU by a hyperbolic tangent: share = sigmoid(2 * inner)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    share = tl.sigmoid(2.0 * inner)
    slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
    return x * share, share + 2.0 * x * share * (1.0 - share) * slope


@triton.jit
def _gated(  # type: ignore[no-untyped-def]
    x, gate, out, width, x_stride, gate_stride, KIND: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Store act(x) * gate for COLUMNS columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    activated, _ = _activated(value, KIND)
    product = activated * factor
    tl.store(out + row * width + column, product.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated_backward(  # type: ignore[no-untyped-def]
    grad, x, gate, grad_x, grad_gate, width, x_stride, gate_stride,
    KIND: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of x and of the gate for COLUMNS columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
    activated, slope = _activated(value, KIND)
    place = row * width + column
    tl.store(grad_x + place, (given * factor * slope).to(grad_x.dtype.element_ty), mask=inside)
    tl.store(grad_gate + place, (given * activated).to(grad_x.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _row_products(  # type: ignore[no-untyped-def]
    rows, queries, out, count, width, per_query, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Store the products, in float64, of ROWS rows with the query of each."""
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row, column = number[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (row < count) & (column < width)
    left = tl.load(rows + row * width + column, mask=inside, other=0.0).to(tl.float64)
    right = tl.load(queries + row // per_query * width + column, mask=inside, other=0.0)
    tl.store(out + number, tl.sum(left * right, 1), mask=number < count)


def _launch(near: torch.Tensor, kernel: Any, grid: tuple[int, ...], *arguments: Any) -> None:
    """Run a kernel on the device of a tensor. Triton itself launches on the current one.

    Raises RuntimeError, as operations of torch do, if this device cannot run the kernel with these types.
    """
    try:
        with torch.cuda.device_of(near):  # type: ignore[no-untyped-call]
            kernel[grid](*arguments)
    except triton.TritonError as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def normed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
    centre: bool = True,
) -> torch.Tensor:
    """Return the layer norm of x, or of x + residual, [..., width], without gradients.

    If not `centre`, vectors are divided by their root mean square, and no mean is subtracted.
    """
    x = x.contiguous()
    added = x if residual is None else residual.contiguous()
    width = x.shape[-1]
    rows, columns = x.numel() // width, triton.next_power_of_2(width)
    tile = max(1, TILE // columns)
    out = torch.empty_like(x)
    _launch(
        x, _norm, (triton.cdiv(rows, tile),),
        x, added, weight, weight if bias is None else bias, out, rows, width, eps,
        tile, columns, residual is not None, centre, bias is not None,
    )  # fmt: skip
    return out


class _Rotation(torch.autograd.Function):
    """The rotation of the vectors of all tokens and heads. The gradient is rotated back."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(cosine, sine)
        return _rotated(x, cosine, sine, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        cosine, sine = ctx.saved_tensors
        return _rotated(grad, cosine, sine, -1.0), None, None


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return x * cosine + rotate_half(x) * sine, [tokens, heads, width].

    cosine and sine are [tokens, width], and their two halves are equal.
    """
    return _Rotation.apply(x, cosine, sine)  # type: ignore[no-any-return,no-untyped-call]


def _rotated(
    x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, sign: float
) -> torch.Tensor:
    x = x if x.stride(2) == 1 else x.contiguous()
    cosine, sine = cosine.contiguous(), sine.contiguous()
    tokens, heads, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    columns = triton.next_power_of_2(width // 2)
    tile = max(1, TILE // 2 // columns)
    _launch(
        x, _rotate, (triton.cdiv(tokens * heads, tile),),
        x, cosine, sine, out, tokens * heads, heads, width, x.stride(0), x.stride(1),
        cosine.stride(0), sign, tile, columns,
    )  # fmt: skip
    return out


class _Gate(torch.autograd.Function):
    """act(x) * gate, with the gradients of both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor, kind: str) -> torch.Tensor:
        ctx.save_for_backward(x, gate)
        ctx.kind = kind
        rows, width = x.shape
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
        grid, columns = _columns(rows, width)
        _launch(x, _gated, grid, x, gate, out, width, x.stride(0), gate.stride(0), kind, columns)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, gate = ctx.saved_tensors
        rows, width = x.shape
        both = torch.empty((2, rows, width), dtype=x.dtype, device=x.device)
        grid, columns = _columns(rows, width)
        _launch(
            x, _gated_backward, grid,
            grad.contiguous(), x, gate, both[0], both[1], width, x.stride(0), gate.stride(0),
            ctx.kind, columns,
        )  # fmt: skip
        return both[0], both[1], None


def gated(x: torch.Tensor, gate: torch.Tensor, kind: str) -> torch.Tensor:
    """Return act(x) * gate, [rows, width]; `kind` is 'gelu', 'gelu_tanh' or 'silu'. Rows are contiguous."""
    return _Gate.apply(x, gate, kind)  # type: ignore[no-any-return,no-untyped-call]


def _columns(rows: int, width: int) -> tuple[tuple[int, int], int]:
    """Return the grid of programs, and the number of columns of each."""
    columns = min(TILE, triton.next_power_of_2(width))
    return (rows, triton.cdiv(width, columns)), columns


def row_products(rows: torch.Tensor, queries: torch.Tensor, out: torch.Tensor) -> None:
    """Set out[q, i], in float64, to the product of rows[q * n + i] and queries[q]; out is [queries, n].

    rows are [queries * n, width] in any floating-point type, queries are [queries, width] in float64.
    """
    count, width = rows.shape
    columns = triton.next_power_of_2(width)
    tile = max(1, TILE // 4 // columns)
    _launch(
        rows, _row_products, (triton.cdiv(count, tile),),
        rows.contiguous(), queries, out, count, width, out.shape[1], tile, columns,
    )  # fmt: skip
