"""Positions beyond training, without training (after LongEmbed, arXiv 2404.12096).

A model that was trained on L positions is changed so that it reads up to N, with s = ceil(N / L).

Models with a table of positions get a longer table:

- `grouped` repeats each row s times, `interpolate` blends neighbouring rows. Inputs of up to L positions take
  every s-th row, so that they use exactly the trained rows.
- `recurrent` repeats the table as a whole. Short inputs use the trained rows without steps.

Models with rotary positions have two other ways:

- `ntk` rotates more slowly, whatever the length of the input.
- `selfextend` groups the positions that are far apart, in inputs of more than L positions (see `Groups`).
"""

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import softmax

from lmkcli.errors import UsageError
from lmkcli.models.exact_weights import exact_value, remember
from lmkcli.spec.recipe import EXTENSIONS, ROTARY
from lmkcli.spec.values import is_count

# Logarithms of the factors on the base of rotary positions, for inputs 1, 2, 4 and 8 times longer.
_LOG_FACTORS = tuple(map(math.log, (1, 3, 5, 10)))
QUERY_BLOCK = 128  # queries at a time: self-extension keeps QUERY_BLOCK x length scores in memory


def parse_extension(text: str) -> tuple[str, int]:
    """'grouped:4096' -> ('grouped', 4096). UsageError if the text is not an extension."""
    how, _, length = text.partition(":")
    if how in EXTENSIONS and is_count(length):
        return how, int(length)
    raise UsageError(
        f"the extension '{text}' is invalid; write one of {', '.join(EXTENSIONS)}, a colon and a length"
    )


def extended_limit(limit: int, how: str, length: int) -> int:
    """Return the longest input after an extension to `length`; `limit` is the longest input before."""
    return limit if how in ROTARY else limit * stride(limit, length)


def stride(trained: int, length: int) -> int:
    """Return s: the number of times that a table of `trained` positions must be repeated for `length`."""
    return -(-length // trained)


def extend_positions(model: Any, how: str, length: int, stepping: bool = True) -> "Groups | None":
    """Change a loaded Hugging Face model in place so that it reads `length` positions.

    `selfextend` leaves the model unchanged and returns the groups for packed attention; other extensions
    return None. With `stepping` false, short inputs do not skip rows of a longer table: use it if the
    table will be trained. Call this before the check of packed attention, so that the check uses the
    longer positions. UsageError if the model has positions of another kind, or already reads `length`
    positions.
    """
    if how in ROTARY:
        rotary, trained = _rotary(model, how, length)
        if how == "selfextend":
            alike = all(torch.equal(rotary[0], other) for other in rotary[1:])
            if not alike or not _pairs_halves(model):
                raise UsageError(
                    "--extend selfextend needs a model in which all layers have the same rotary "
                    "frequencies, and dimension i is paired with dimension i + d/2; this model differs; "
                    "use --extend ntk"
                )
            return Groups.of(trained, length, rotary[0])
        factor = ntk_factor(length / trained)
        for frequencies in rotary:
            frequencies.mul_(slowdown(len(frequencies), factor).to(frequencies))
    elif how in EXTENSIONS:
        _lengthen_table(model, how, length, stepping and how != "recurrent")
    else:
        raise UsageError(f"--extend {how}: write one of {', '.join(EXTENSIONS)}")
    return None


def _stride(trained: int, how: str, length: int) -> int:
    """Return `stride`; UsageError if the model reads so many positions without an extension."""
    if length <= trained:
        raise UsageError(
            f"--extend {how} has no effect: this model reads {trained} positions, and the length is "
            f"{length}; raise --max-length or drop --extend"
        )
    return stride(trained, length)


# Tables of positions


def position_table(model: Any) -> torch.nn.Embedding | None:
    """Return the table of absolute positions; None for a model with rotary or relative positions."""
    tables = (
        module
        for name, module in model.named_modules()
        if name.removesuffix(".base_layer").endswith(("position_embeddings", "wpe"))
    )
    return next((module for module in tables if isinstance(module, torch.nn.Embedding)), None)


def fixed_rows(model: Any) -> int | None:
    """Return the rows of a table of positions that lmk cannot lengthen; None without one.

    OPT, RoFormer, GPT-J and I-BERT have such tables. Those of OPT and I-BERT have rows before the first
    position (`offset`, `padding_idx`), that of GPT-J is a buffer, and that of I-BERT is no `Embedding`.
    """
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if name.endswith("position_embeddings") and torch.is_tensor(weight) and weight.ndim == 2:
            padding = getattr(module, "padding_idx", None)
            return len(weight) - (0 if padding is None else int(padding) + 1)
    for owner in model.modules():
        for name in ("embed_positions", "positions_embed", "pos_encoding"):
            table = getattr(owner, name, None)
            if isinstance(table, torch.nn.Embedding):
                return int(table.num_embeddings) - int(getattr(table, "offset", 0))
            if isinstance(table, torch.Tensor) and table.ndim == 2:
                return len(table)
    return None


def first_position(model: Any) -> int:
    """Return the first position id, which is the number of rows of the table before the first position.

    It is padding_idx + 1 for the RoBERTa family, 2 for Nyströmformer, YOSO and MRA, and 0 for most others.
    """
    table = position_table(model)
    if table is None:
        return 0
    if table.padding_idx is not None:
        return int(table.padding_idx) + 1
    owner = next(module for module in model.modules() if table in module.children())
    ids = getattr(owner, "position_ids", None)  # those of the longest input, [1, length]
    return max(int(table.num_embeddings) - ids.shape[-1], 0) if torch.is_tensor(ids) else 0


def _lengthen_table(model: Any, how: str, length: int, stepping: bool) -> None:
    table = position_table(model)
    if table is None:
        raise UsageError(
            f"--extend {how} lengthens a table of positions, and this model has none; for rotary "
            "positions use --extend ntk or selfextend"
        )
    first = first_position(model)
    trained = table.num_embeddings - first
    steps = _stride(trained, how, length)
    rows = exact_value(table.weight)
    exact = torch.cat([rows[:first].float(), lengthened(rows[first:].float(), steps, how)])
    weight = exact.to(table.weight)
    longer = torch.nn.Embedding(
        len(weight), weight.shape[1], padding_idx=table.padding_idx, _weight=weight
    )
    if rows.dtype != weight.dtype:
        remember(longer.weight, exact)
    for owner in list(model.modules()):
        for name, child in list(owner.named_children()):
            if child is table:
                setattr(owner, name, longer)
                _lengthen_buffers(owner, table.num_embeddings, len(weight), first)
    model.config.max_position_embeddings += len(weight) - table.num_embeddings
    if stepping:
        hook = SteppedPositions(trained, steps, first)
        model.register_forward_pre_hook(hook, with_kwargs=True)


def lengthened(rows: torch.Tensor, steps: int, how: str) -> torch.Tensor:
    """[L, d] -> [steps * L, d].

    With `grouped` and `interpolate`, row i moves to i * steps. The rows after it are copies of row i, or
    blends of rows i and i + 1; the rows after the last one are copies of it. With `recurrent`, row i is
    at i, i + L, i + 2L, and so on.
    """
    if how == "recurrent":
        return rows.repeat(steps, 1)
    grouped = rows.repeat_interleave(steps, 0)
    if how == "grouped":
        return grouped
    next_rows = torch.cat([rows[1:], rows[-1:]]).repeat_interleave(steps, 0)
    share = torch.arange(steps).repeat(len(rows)).to(rows)[:, None] / steps
    return grouped + share * (next_rows - grouped)


def _lengthen_buffers(owner: torch.nn.Module, old: int, new: int, first: int) -> None:
    """Lengthen the buffers of embeddings, which have one number for each position: [1, old].

    Those of Nyströmformer have none for the rows before the first position: [1, old - first].
    """
    for name, buffer in list(owner.named_buffers(recurse=False)):
        if buffer.shape in ((1, old), (1, old - first)):
            absent = old - buffer.shape[1]
            longer = torch.zeros(1, new - absent, dtype=buffer.dtype, device=buffer.device)
            if name == "position_ids":
                longer += torch.arange(absent, new, device=buffer.device)
            owner.register_buffer(name, longer, persistent=False)


@dataclass(frozen=True)
class SteppedPositions:
    """A forward hook that sets position ids: inputs of up to `trained` positions take every `stride`-th row.

    Handles packed calls (with a `pack`, where ids restart in each sequence) and padded calls (with a mask).
    """

    trained: int
    stride: int
    first: int

    def __call__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call with new `position_ids`."""
        pack = kwargs.get("pack")
        if pack is not None:
            given = kwargs["position_ids"]
            steps = [self.stride if length <= self.trained else 1 for length in pack.lengths]
            taken = torch.tensor(pack.taken, device=given.device)
            factors = torch.tensor(steps, device=given.device).repeat_interleave(taken)
            positions = self.first + (given - self.first) * factors
        else:  # positions continue over the padding, because expanded queries have tokens there
            mask = kwargs["attention_mask"].long()
            step = torch.where(mask.sum(1, keepdim=True) <= self.trained, self.stride, 1)
            numbers = torch.arange(mask.shape[1], device=mask.device)[None] * step
            positions = self.first + numbers.clamp(max=self.trained * self.stride - 1)
        return args, {**kwargs, "position_ids": positions}


# Rotary positions


def _rotary(model: Any, how: str, length: int) -> tuple[list[torch.Tensor], int]:
    """Return the rotary frequencies of a model, and the number of positions of its training."""
    if position_table(model) is not None:
        raise UsageError(
            f"--extend {how} is for rotary positions, and this model has a table of positions; use "
            "--extend grouped or --extend interpolate"
        )
    rotary = [table for module in model.modules() for table in _frequencies(module)]
    if not rotary:
        raise UsageError(
            f"--extend {how} is for plain rotary positions, and this model has none, or extends "
            "them itself; drop it"
        )
    trained = int(model.config.get_text_config().max_position_embeddings)
    _stride(trained, how, length)
    return rotary, trained


def _frequencies(module: Any) -> list[torch.Tensor]:
    """Return the inverse frequencies of a rotary module, without the frequencies of sliding windows.

    Within a sliding window, no distance exceeds those seen in training.
    """
    declared = getattr(module, "rope_type", {})
    kinds: dict[str, str] = {"": declared} if isinstance(declared, str) else declared
    full = [kind for kind in kinds if "sliding" not in kind]
    if any(kinds[kind] != "default" for kind in full):
        return []
    return [getattr(module, f"{kind}_inv_freq".lstrip("_")) for kind in full]


def _pairs_halves(model: Any) -> bool:
    """Return whether dimension i is rotated with dimension i + d/2, as in Llama, not with its neighbour."""
    rotate_half = getattr(sys.modules[type(model).__module__], "rotate_half", None)
    return rotate_half is not None and rotate_half(torch.arange(4.0)).tolist() == [-2, -3, 0, 1]


def ntk_factor(times: float) -> float:
    """Return the factor on the rotary base for inputs `times` longer: 3, 5 and 10 for 2, 4 and 8.

    Between these points the factor is interpolated in log-log space; beyond 8 it is proportional to `times`.
    """
    if times > 8:
        return 10 * times / 8
    at = math.log2(times)
    low = min(int(at), 2)
    share = at - low
    return math.exp(_LOG_FACTORS[low] * (1 - share) + _LOG_FACTORS[low + 1] * share)


def slowdown(count: int, factor: float) -> torch.Tensor:
    """Return the multipliers of the frequencies base ** (-2j / d) if the base grows by `factor`.

    The result is [count] for j = 0 … count - 1, with d = 2 * count.
    """
    return factor ** -(torch.arange(count, dtype=torch.float64) / count)


# Self-extension: attention with grouped positions


class Groups(NamedTuple):
    """SelfExtend (Jin et al., "LLM Maybe LongLM", arXiv 2401.01325): far positions are grouped.

    LongEmbed (arXiv 2404.12096) uses it for encoders too. In inputs of more than `trained` positions,
    keys nearer than `window` keep their exact distance i - j. Farther keys have the distance of their
    groups, i // size - j // size, plus `shift`, so that distances continue where the window ends. All
    keys share one softmax.
    """

    trained: int
    size: int  # positions in a group
    window: int  # distances below it are exact
    frequencies: torch.Tensor  # [rotated dimensions / 2], the model's own

    @classmethod
    def of(cls, trained: int, length: int, frequencies: torch.Tensor) -> "Groups":
        """Choose a window of trained / s for inputs s times longer, and the smallest groups that suffice.

        For s = 2, 4, 8 and 16 the groups have 3, 5, 9 and 17 positions, as in LongEmbed's scripts.
        """
        window = max(1, trained * trained // length)
        return cls(trained, -(-(length - window) // (trained - window)), window, frequencies)

    @property
    def shift(self) -> int:
        """The difference between exact distances and group distances at the edge of the window."""
        return self.window - self.window // self.size


class VisibleRange(NamedTuple):
    """A position sees `reach` positions on each side (only the left if `causal`).

    Only the first `filled[i]` positions of sequence i are tokens.
    """

    reach: int
    causal: bool
    filled: tuple[int, ...]


class _KeyRange(NamedTuple):
    """Queries and keys in one rotation, and the range of keys that a block of queries may see."""

    queries: torch.Tensor
    keys: torch.Tensor
    first: int
    stop: int

    def scores(self, rows: slice) -> torch.Tensor:
        """Return the scores of some queries, [sequences, heads, rows, keys]."""
        keys = self.keys[:, :, self.first : self.stop]
        return (self.queries[:, :, rows] @ keys.transpose(-1, -2)).float()


def grouped_attention(
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    groups: Groups,
    visible: VisibleRange,
    scaling: float | None,
) -> torch.Tensor:
    """Attention with grouped positions, [sequences, heads, length, width] -> the same shape.

    `states` are queries, keys and values. The model has already rotated queries and keys to the
    positions p = 0, 1, 2, and so on. Rotations add up, so a further rotation by p // size - p moves a
    state to its group. A query needs three versions: for keys before the window it moves on by `shift`,
    inside the window it is unchanged, and for keys after the window it moves back by `shift`. Each block
    of queries concatenates the scores of these three ranges of keys and applies one softmax.
    """
    query, key, value = states
    heads, length, width = query.shape[1:]
    if key.shape[1] != heads:
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    query = query * (width**-0.5 if scaling is None else scaling)
    at = torch.arange(length, device=query.device)
    to_group = at // groups.size - at
    far_keys = rotate_by(key, to_group, groups.frequencies)
    queries_before = rotate_by(query, to_group + groups.shift, groups.frequencies)
    queries_after = rotate_by(query, to_group - groups.shift, groups.frequencies)
    blocks = []
    for start in range(0, length, QUERY_BLOCK):
        rows = slice(start, min(start + QUERY_BLOCK, length))
        near = max(0, start - groups.window + 1), min(length, rows.stop + groups.window - 1)
        ranges = [
            _KeyRange(queries_before, far_keys, 0, max(0, rows.stop - groups.window)),
            _KeyRange(query, key, *near),
            _KeyRange(queries_after, far_keys, min(length, start + groups.window), length),
        ]
        scores = torch.cat([part.scores(rows) for part in ranges], -1)
        masks = [
            _range_mask(part, side, rows, (groups, visible))
            for side, part in zip((-1, 0, 1), ranges, strict=True)
        ]
        mask = torch.cat([each.to(scores.device) for each in masks], -1)
        weights = softmax(scores.masked_fill(~mask, -torch.inf), -1).to(value.dtype)
        values = torch.cat([value[:, :, part.first : part.stop] for part in ranges], 2)
        blocks.append(weights @ values)
    return torch.cat(blocks, 2)


def _range_mask(
    part: _KeyRange, side: int, rows: slice, limits: tuple[Groups, VisibleRange]
) -> torch.Tensor:
    """Return the mask of a range of keys, [sequences, 1, rows, keys].

    `side` is -1 for keys before the window, 0 inside it, 1 after it. Rows that are no tokens see the whole
    window, so that their softmax is finite.
    """
    groups, visible = limits
    queries = torch.arange(rows.start, rows.stop)[:, None]
    keys = torch.arange(part.first, part.stop)[None]
    distance = queries - keys
    own = distance.abs() < groups.window if side == 0 else -side * distance >= groups.window
    mask = own & (distance.abs() <= visible.reach)
    if visible.causal:
        mask &= distance >= 0
    filled = torch.tensor(visible.filled)[:, None, None]
    return ((mask & (keys < filled)) | (own & (queries >= filled) & (side == 0)))[:, None]


def rotate_by(x: torch.Tensor, by: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Rotate states […, length, width] by `by` [length] further positions.

    Dimension i is paired with dimension i + len(frequencies); dimensions after the pairs are not rotated.
    """
    angles = by[:, None] * frequencies.to(by.device, torch.float64)
    cos, sin = angles.cos().float(), angles.sin().float()
    half = len(frequencies)
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    pairs = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([*(each.to(x.dtype) for each in pairs), x[..., 2 * half :]], -1)
