"""The sequence mixer of M2-BERT: gated long convolutions by FFT (arXiv 2310.12109).

A convolution of n positions with a filter of n taps is a product of Fourier transforms of length 2n (the
second half is zero, so that the end does not wrap around to the start). A bidirectional filter has
another n taps for negative lags; they are in the second half of the transform's input.

In this module, channels precede positions, [batch, channels, positions], because an FFT reads along rows.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmkcli.plugins.m2bert.config import M2BertConfig

# Inference computes in blocks that fit into the processor's caches. They also keep memory requests
# small.
BLOCK = 1 << 20  # numbers in a block of channels
LEAST = 128  # channels in such a block, however long the input is
FFT_BLOCK = 1 << 19  # numbers that are transformed together
ROWS = 1024  # positions that go through a linear layer together


class Sine(nn.Module):
    """sin(w_mod * freq * x). All layers of a filter share one, in both directions."""

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.freq = nn.Parameter(torch.full((1, config.hyena_filter_order), float(config.hyena_w)))
        self.w_mod = config.hyena_w_mod

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w_mod * self.freq * x)


class FilterPositions(nn.Module):
    """The input of the filter networks: trained features z [1, L, dim], and the time t [1, L, 1] in 0..1."""

    t: Tensor

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        bands = (dim - 1) // 2
        angle = torch.linspace(0, length - 1, length)[:, None] * (2 * math.pi / length)
        waves = (torch.linspace(1e-4, bands - 1, bands) * angle)[None]
        t = times(length)
        self.z = nn.Parameter(torch.cat([t, torch.cos(waves), -torch.sin(waves)], dim=-1))
        self.register_buffer("t", t)


class Modulation(nn.Module):
    """Exponential decay over time, faster from channel to channel."""

    deltas: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("deltas", decays(channels))

    def forward(self, t: Tensor) -> Tensor:
        return torch.exp(-t * self.deltas.abs())


def times(length: int) -> Tensor:
    """Return 0..1 over all positions: [1, length, 1]."""
    return torch.linspace(0, 1, length)[None, :, None]


def decays(channels: int) -> Tensor:
    """Return the rate of decay of every channel: [1, 1, channels]."""
    return torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, channels)[None, None]


class Filter(NamedTuple):
    """The transform of a filter, complex [channels, n + 1], and an extra weight of lag 0, [channels, 1]."""

    spectrum: Tensor
    bias: Tensor

    def at(self, channels: slice) -> "Filter":
        """Return the filters of some channels."""
        return Filter(self.spectrum[channels], self.bias[channels])

    def convolve(self, x: Tensor) -> Tensor:
        """[batch, channels, n] of any dtype -> the same shape in float32 or wider."""
        n = x.shape[-1]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        y = torch.fft.irfft(torch.fft.rfft(x, n=2 * n) * self.spectrum, n=2 * n, norm="forward")
        return torch.addcmul(y[..., :n], self.bias, x)


class LongConv(nn.Module):
    """A convolution as long as the input. A small network computes its taps from their positions.

    Filters do not depend on the input. Outside of training, the transform for the last length is kept,
    which takes 8 bytes per channel and position; set `keep` to False to save this memory.
    """

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(config.hidden_size))
        self.pos_emb = FilterPositions(config.table_length, config.hyena_emb_dim)
        self.modulation = Modulation(config.hidden_size)
        sine = Sine(config)
        self.implicit_filter = _filter_network(config, sine)
        self.implicit_filter_rev = _filter_network(config, sine) if config.bidirectional else None
        self.keep = True
        self._kept: tuple[object, Tensor] | None = None

    def kernels(self, n: int) -> list[Tensor]:
        """Return the forward filter and, if bidirectional, the reverse filter: [n, channels] each."""
        z, decay = self.pos_emb.z[0, :n], self.modulation(self.pos_emb.t[0, :n])[0]
        networks = (self.implicit_filter, self.implicit_filter_rev)
        return [network(z) * decay for network in networks if network is not None]

    def filter(self, n: int) -> Filter:
        """Return the filter for inputs of n positions."""
        if torch.is_grad_enabled() or not self.keep:
            return Filter(self._spectrum(n), self.bias[:, None])
        # The kept transform is valid while no weight has been replaced or changed in place.
        weights = (*self.parameters(), *self.buffers())
        versions = (0 if tensor.is_inference() else tensor._version for tensor in weights)
        pointers = (tensor.data_ptr() for tensor in weights)
        state = (n, *zip(pointers, versions, strict=True))
        if self._kept is None or self._kept[0] != state:
            self._kept = (state, self._spectrum(n))
        return Filter(self._kept[1], self.bias[:, None])

    def _spectrum(self, n: int) -> Tensor:
        """Return the transform of the taps of all lags, [channels, n + 1].

        Lags 0 … n - 1 are the forward filter. The reverse filter, flipped, fills the rest, so that its
        first tap is at lag -1.
        """
        forward, *reverse = (kernel.T for kernel in self.kernels(n))
        kernel = torch.cat([forward, *(taps.flip(-1) for taps in reverse)], dim=-1)
        return cast(Tensor, torch.fft.rfft(kernel, n=2 * n, norm="forward"))


def _filter_network(config: M2BertConfig, sine: Sine) -> nn.Sequential:
    order = config.hyena_filter_order
    return nn.Sequential(
        nn.Linear(config.hyena_emb_dim, order), sine,
        nn.Linear(order, order), sine,
        nn.Linear(order, order), sine,
        nn.Linear(order, config.hidden_size, bias=False),
    )  # fmt: skip


class SequenceMixer(nn.Module):
    """x2 * LongConv(v * x1) + LongConv(x), between two linear layers."""

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.in_linear = nn.Linear(width, 3 * width)
        self.out_linear = nn.Linear(width, width)
        self.short_filter = nn.Conv1d(3 * width, 3 * width, 3, groups=3 * width, padding=2)
        self.filter_fn = LongConv(config)
        self.filter_fn2 = LongConv(config) if config.residual_long_conv else None
        self.layernorm = nn.LayerNorm(width) if config.hyena_training_additions else None

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, n, width] -> [batch, n, width]; positions outside `mask` [batch, 1, n] are hidden.

        Between the two linear layers the channels are independent, so they are computed in blocks. One block
        passes through the first linear layer and the short filter; smaller blocks of it pass through the
        long convolutions.
        """
        x = x if self.layernorm is None else self.layernorm(x)
        x = transposed(x)
        filters = [conv.filter(x.shape[2]) for conv in (self.filter_fn, self.filter_fn2) if conv]
        mixed = torch.empty_like(x)
        for channels in blocks(x, BLOCK, LEAST):
            x1, x2, v = self._short(x, channels).chunk(3, dim=1)
            own, out = [one.at(channels) for one in filters], mixed[:, channels]
            for some in blocks(out, FFT_BLOCK):
                inputs = [v[:, some] * x1[:, some], x[:, channels][:, some]]
                if mask is not None:
                    inputs = [one * mask for one in inputs]
                pairs = zip(own, inputs, strict=False)  # without a residual filter, one pair
                gated, *residual = (one.at(some).convolve(given) for one, given in pairs)
                out[:, some] = sum(residual, x2[:, some] * gated)
        return transposed(_affine(mixed, self.out_linear.weight, self.out_linear.bias))

    def _short(self, x: Tensor, channels: slice) -> Tensor:
        """Apply the first linear layer and the short filter; return these channels of x1, x2 and v."""
        linear, short = self.in_linear, self.short_filter
        u = _affine(x, _thirds(linear.weight, channels), _thirds(linear.bias, channels))
        weight, bias = _thirds(short.weight, channels), _thirds(cast(Tensor, short.bias), channels)
        convolved = functional.conv1d(u, weight, bias, padding=2, groups=len(weight))
        return convolved[..., : x.shape[-1]]


def blocks(x: Tensor, numbers: int, least: int = 1) -> Iterator[slice]:
    """Yield blocks of channels of x with about `numbers` numbers each; one block if gradients are needed."""
    whole = torch.is_grad_enabled()
    step = max(least, numbers * (64 if x.is_cuda else 1) // x[:, 0].numel())
    for start in range(0, x.shape[1], x.shape[1] if whole else step):
        yield slice(start, x.shape[1] if whole else min(start + step, x.shape[1]))


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer to the channels of [batch, channels, n]."""
    return torch.baddbmm(bias[:, None], weight.expand(len(x), -1, -1), x)


def transposed(x: Tensor) -> Tensor:
    """[batch, a, b] -> [batch, b, a], also in memory.

    torch copies a transposed matrix fast, but not a batch of them.
    """
    if torch.is_grad_enabled():
        return x.transpose(1, 2).contiguous()
    result = torch.empty(x.transpose(1, 2).shape, dtype=x.dtype, device=x.device)
    for target, source in zip(result, x, strict=True):
        target.copy_(source.T)
    return result


def _thirds(parameter: Tensor, channels: slice) -> Tensor:
    """Return the parameters of these channels of x1, x2 and v, which are the thirds of the first axis."""
    return parameter.view(3, -1, *parameter.shape[1:])[:, channels].flatten(0, 1)


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply `function` ([rows, width] -> the same shape) to x [..., width], ROWS positions at a time.

    On a GPU, and if gradients are needed, all positions are computed at once.
    """
    rows = x.flatten(0, -2)
    if torch.is_grad_enabled() or x.is_cuda or len(rows) <= ROWS:
        return function(x)
    result = torch.empty_like(rows)
    for start in range(0, len(rows), ROWS):
        result[start : start + ROWS] = function(rows[start : start + ROWS])
    return result.view(x.shape)
