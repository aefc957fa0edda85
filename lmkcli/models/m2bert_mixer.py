"""The sequence mixer of M2-BERT: gated long convolutions by FFT (specs/m2bert.md §4).

Channels come before positions here, [batch, channels, positions], because an FFT reads along rows.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmkcli.models.m2bert_config import M2BertConfig

BLOCK = 1 << 21  # numbers that a block of channels takes: what caches and the allocator bear
LEAST = 64  # channels of a block, however long the input is
ROWS = 1024  # positions that go through a linear layer together, for the same reason


class Sine(nn.Module):
    """sin(w_mod * freq * x). One for all layers of a filter, in both directions."""

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.freq = nn.Parameter(torch.full((1, config.hyena_filter_order), float(config.hyena_w)))
        self.w_mod = config.hyena_w_mod

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w_mod * self.freq * x)


class Positions(nn.Module):
    """What a filter is a function of: z [1, L, dim], trained, and the time t [1, L, 1] in 0..1."""

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
    """0..1 over all positions: [1, length, 1]."""
    return torch.linspace(0, 1, length)[None, :, None]


def decays(channels: int) -> Tensor:
    """The rate of decay of every channel: [1, 1, channels]."""
    return torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, channels)[None, None]


class LongConv(nn.Module):
    """A convolution as long as the input, whose filter is a small network of the position.

    Filters do not depend on the input: outside of training their transforms are kept, for the length
    that came last. That takes 8 bytes for each channel and position; `keep` says whether to.
    """

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(config.hidden_size))
        self.pos_emb = Positions(config.table_length, config.hyena_emb_dim)
        self.modulation = Modulation(config.hidden_size)
        sine = Sine(config)
        self.implicit_filter = _filter_network(config, sine)
        self.implicit_filter_rev = _filter_network(config, sine) if config.bidirectional else None
        self.keep = True
        self._kept: tuple[object, Tensor] | None = None

    def kernels(self, n: int) -> list[Tensor]:
        """The forward filter, and where there is one the reverse filter: [n, channels] each."""
        z, decay = self.pos_emb.z[0, :n], self.modulation(self.pos_emb.t[0, :n])[0]
        networks = (self.implicit_filter, self.implicit_filter_rev)
        return [network(z) * decay for network in networks if network is not None]

    def spectrum(self, n: int) -> Tensor:
        """The filters' transform for inputs of n positions: [channels, n + 1], complex."""
        if torch.is_grad_enabled() or not self.keep:
            return self._spectrum(n)
        weights = (*self.parameters(), *self.buffers())
        state = (n, *((tensor.data_ptr(), _version(tensor)) for tensor in weights))
        if self._kept is None or self._kept[0] != state:
            self._kept = (state, self._spectrum(n))
        return self._kept[1]

    def _spectrum(self, n: int) -> Tensor:
        """Lag 0 is the forward filter's; the reverse filter begins at distance 1, at the far end."""
        forward, *reverse = (kernel.T for kernel in self.kernels(n))
        kernel = torch.cat([forward, *(taps.flip(-1) for taps in reverse)], dim=-1)
        return cast(Tensor, torch.fft.rfft(kernel, n=2 * n, norm="forward"))

    def forward(self, x: Tensor, spectrum: Tensor, channels: slice) -> Tensor:
        """[batch, channels, n] of any dtype -> the same shape in float32 or wider."""
        n = x.shape[-1]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        y = torch.fft.irfft(
            torch.fft.rfft(x, n=2 * n) * spectrum[channels], n=2 * n, norm="forward"
        )
        return torch.addcmul(y[..., :n], self.bias[channels, None], x)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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
        """[batch, n, width] -> [batch, n, width]; positions outside `mask` [batch, 1, n] are not seen."""
        x = x if self.layernorm is None else self.layernorm(x)
        x = flip(x)
        spectra = [conv.spectrum(x.shape[2]) for conv in self._convs]
        if torch.is_grad_enabled():
            mixed = self._mixed(x, spectra, mask, slice(0, x.shape[1]))
        else:
            mixed = torch.empty_like(x)
            step = max(LEAST, BLOCK // (2 * x[:, 0].numel()))
            for start in range(0, x.shape[1], step):
                channels = slice(start, min(start + step, x.shape[1]))
                mixed[:, channels] = self._mixed(x, spectra, mask, channels)
        return flip(_affine(mixed, self.out_linear.weight, self.out_linear.bias))

    @property
    def _convs(self) -> list[LongConv]:
        return [conv for conv in (self.filter_fn, self.filter_fn2) if conv is not None]

    def _mixed(
        self, x: Tensor, spectra: list[Tensor], mask: Tensor | None, channels: slice
    ) -> Tensor:
        """Some channels [batch, some, n] of what goes into the last linear layer; x has all channels."""
        weight, bias = (
            _thirds(self.in_linear.weight, channels),
            _thirds(self.in_linear.bias, channels),
        )
        u = _affine(x, weight, bias)
        short = self.short_filter
        weight, bias = _thirds(short.weight, channels), _thirds(cast(Tensor, short.bias), channels)
        u = functional.conv1d(u, weight, bias, padding=2, groups=len(weight))[..., : x.shape[-1]]
        x1, x2, v = u.chunk(3, dim=1)
        inputs = [v * x1, x[:, channels]]
        if mask is not None:
            inputs = [one * mask for one in inputs]
        y = x2 * self.filter_fn(inputs[0], spectra[0], channels)
        if self.filter_fn2 is not None:
            y = y + self.filter_fn2(inputs[1], spectra[1], channels)
        made: Tensor = y.to(x.dtype)
        return made


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer over [batch, channels, n]."""
    return torch.baddbmm(bias[:, None], weight.expand(len(x), -1, -1), x)


def flip(x: Tensor) -> Tensor:
    """[batch, a, b] -> [batch, b, a], in memory too; torch is quick at that for matrices alone."""
    if torch.is_grad_enabled():
        return x.transpose(1, 2).contiguous()
    made = torch.empty(x.transpose(1, 2).shape, dtype=x.dtype, device=x.device)
    for target, source in zip(made, x, strict=True):
        target.copy_(source.T)
    return made


def _thirds(parameter: Tensor, channels: slice) -> Tensor:
    """The same channels of x1, x2 and v."""
    return parameter.view(3, -1, *parameter.shape[1:])[:, channels].flatten(0, 1)


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` [batch, some, width] -> the same shape, of all positions of x, some at a time."""
    if torch.is_grad_enabled() or x.shape[1] <= ROWS:
        return function(x)
    made = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for start in range(0, x.shape[1], ROWS):
        rows = slice(start, start + ROWS)
        made[:, rows] = function(x[:, rows])
    return made
