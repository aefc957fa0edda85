"""Positions beyond training, without training (after LongEmbed, arXiv 2404.12096).

A model that was trained on L positions is made to read up to N. Those with a table of positions get a
longer one: `grouped` repeats each row s = ceil(N / L) times, `interpolate` blends neighbouring rows.
Inputs of up to L positions step through it s rows at a time, so that they find the rows they were
trained with. `recurrent` repeats the table as a whole, so that they find them without. Rotary models
turn more slowly (`ntk`), whatever the length of the input, or see what is far in long inputs by groups
(`selfextend`).
"""

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch

from lmkcli.errors import UsageError
from lmkcli.models.selfextend import Groups
from lmkcli.recipe import EXTENSIONS, ROTARY, is_count

# Of the factors on the base of a rotary model, for inputs 1, 2, 4 and 8 times longer.
_LOG_FACTORS = tuple(map(math.log, (1, 3, 5, 10)))


def parse(text: str) -> tuple[str, int]:
    """'grouped:4096' -> ('grouped', 4096); UsageError for what is no such extension."""
    how, _, length = text.partition(":")
    if how in EXTENSIONS and is_count(length):
        return how, int(length)
    raise UsageError(f"the extension '{text}' is not one of {', '.join(EXTENSIONS)} with a length")


def extended_limit(limit: int, how: str, length: int) -> int:
    """The longest input after `extend`, where it was `limit` before (unbounded for rotary models)."""
    return limit if how in ROTARY else limit * stride(limit, length)


def stride(trained: int, length: int) -> int:
    """How many times longer than `trained` positions a table becomes that holds `length`."""
    return -(-length // trained)


def extend(model: Any, how: str, length: int, stepping: bool = True) -> Groups | None:
    """Change a loaded Hugging Face model in place so that it reads `length` positions.

    `selfextend` changes nothing in it: the groups that are returned belong to its packed attention.

    Without `stepping` short inputs count one by one too: what a model needs whose longer table is to be
    trained. Call it before the model is packed: what packs is then checked with the longer positions.
    UsageError where the model's positions are of another kind, or reach that far already.
    """
    if how == "selfextend":
        return _group(model, length)
    if how == "ntk":
        _slow_down(model, length)
    elif how in EXTENSIONS:
        _lengthen(model, how, length, stepping and how != "recurrent")
    else:
        raise UsageError(f"--extend {how}: write one of {', '.join(EXTENSIONS)}")
    return None


def position_table(model: Any) -> torch.nn.Embedding | None:
    """The model's table of absolute positions; None where positions are rotary or relative."""
    tables = (
        module
        for name, module in model.named_modules()
        if name.removesuffix(".base_layer").endswith(("position_embeddings", "wpe"))
    )
    return next((module for module in tables if isinstance(module, torch.nn.Embedding)), None)


def first_position(table: torch.nn.Embedding | None) -> int:
    """Where position ids begin: padding_idx + 1 for the RoBERTa family, 0 for everyone else."""
    return 0 if table is None or table.padding_idx is None else int(table.padding_idx) + 1


def _lengthen(model: Any, how: str, length: int, stepping: bool) -> None:
    table = position_table(model)
    if table is None:
        raise UsageError(
            f"--extend {how} lengthens a table of positions, and this model has none; for rotary "
            "positions use --extend ntk or selfextend"
        )
    first = first_position(table)
    trained = table.num_embeddings - first
    steps = _needed(trained, how, length)
    rows = longer(table.weight.detach()[first:].float(), steps, how).to(table.weight)
    weight = torch.cat([table.weight.detach()[:first], rows])
    lengthened = torch.nn.Embedding(
        len(weight), weight.shape[1], padding_idx=table.padding_idx, _weight=weight
    )
    for owner in list(model.modules()):
        for name, child in list(owner.named_children()):
            if child is table:
                setattr(owner, name, lengthened)
                _lengthen_buffers(owner, table.num_embeddings, len(weight))
    model.config.max_position_embeddings = len(weight)
    if stepping:
        model.register_forward_pre_hook(Positions(trained, steps, first), with_kwargs=True)


def longer(rows: torch.Tensor, steps: int, how: str) -> torch.Tensor:
    """[L, d] -> [steps * L, d]: row i stands at i * steps, its neighbours are it or blends with i + 1.

    What follows the last row repeats it. With `recurrent` row i stands at i, i + L, i + 2L and so on.
    """
    if how == "recurrent":
        return rows.repeat(steps, 1)
    grouped = rows.repeat_interleave(steps, 0)
    if how == "grouped":
        return grouped
    next_rows = torch.cat([rows[1:], rows[-1:]]).repeat_interleave(steps, 0)
    share = torch.arange(steps).repeat(len(rows)).to(rows)[:, None] / steps
    return grouped + share * (next_rows - grouped)


def _lengthen_buffers(owner: torch.nn.Module, old: int, new: int) -> None:
    """The embeddings of BERT's family keep ids for every position beside the table."""
    for name, buffer in list(owner.named_buffers(recurse=False)):
        if buffer.shape == (1, old):
            longer = torch.zeros(1, new, dtype=buffer.dtype, device=buffer.device)
            if name == "position_ids":
                longer += torch.arange(new, device=buffer.device)
            owner.register_buffer(name, longer, persistent=False)


@dataclass(frozen=True)
class Positions:
    """Sets position ids before each forward pass: inputs of up to `trained` step by `stride`.

    Knows packed calls (a `pack` and ids that begin anew in each sequence) and padded ones (a mask).
    """

    trained: int
    stride: int
    first: int

    def __call__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with its `position_ids` set."""
        pack = kwargs.get("pack")
        positions = (
            self._padded(kwargs) if pack is None else self._packed(pack, kwargs["position_ids"])
        )
        return args, {**kwargs, "position_ids": positions}

    def _packed(self, pack: Any, given: torch.Tensor) -> torch.Tensor:
        steps = [self.stride if length <= self.trained else 1 for length in pack.lengths]
        taken = torch.tensor(pack.taken, device=given.device)
        factors = torch.tensor(steps, device=given.device).repeat_interleave(taken)
        return self.first + (given - self.first) * factors

    def _padded(self, kwargs: dict[str, Any]) -> torch.Tensor:
        """They go on over the padding: what expands a query stands there."""
        mask = kwargs["attention_mask"].long()
        steps = torch.where(mask.sum(1, keepdim=True) <= self.trained, self.stride, 1)
        numbers = torch.arange(mask.shape[1], device=mask.device)[None] * steps
        return self.first + numbers.clamp(max=self.trained * self.stride - 1)


def _slow_down(model: Any, length: int) -> None:
    """Rotary frequencies of a base that is `ntk_factor` times as large."""
    rotary, trained = _rotary(model, "ntk", length)
    factor = ntk_factor(length / trained)
    for frequencies in rotary:
        frequencies.mul_(slower(len(frequencies), factor).to(frequencies))


def _group(model: Any, length: int) -> Groups:
    rotary, trained = _rotary(model, "selfextend", length)
    if any(not torch.equal(rotary[0], other) for other in rotary[1:]) or not _pairs_halves(model):
        raise UsageError(
            "--extend selfextend turns all layers of a model alike, by halves of their dimensions, and "
            "this model's turn otherwise; use --extend ntk"
        )
    return Groups.of(trained, length, rotary[0])


def _pairs_halves(model: Any) -> bool:
    """Whether dimension i turns with dimension i + d / 2, as in Llama, and not with its neighbour."""
    turn = getattr(sys.modules[type(model).__module__], "rotate_half", None)
    return turn is not None and turn(torch.arange(4.0)).tolist() == [-2, -3, 0, 1]


def _rotary(model: Any, how: str, length: int) -> tuple[list[torch.Tensor], int]:
    """The rotary frequencies of a model, and the positions that it was trained on."""
    if position_table(model) is not None:
        raise UsageError(
            f"--extend {how} is for rotary positions, and this model has a table of positions; use "
            "--extend grouped or --extend interpolate"
        )
    rotary = [table for module in model.modules() for table in _frequencies(module)]
    if not rotary:
        raise UsageError(
            f"--extend {how} is for plain rotary positions, and this model has none (or extends "
            "them in a way of its own); drop it"
        )
    trained = int(model.config.get_text_config().max_position_embeddings)
    _needed(trained, how, length)
    return rotary, trained


def _frequencies(module: Any) -> list[torch.Tensor]:
    """The inverse frequencies of a rotary module; not those of sliding windows, where none is far."""
    declared = getattr(module, "rope_type", {})
    kinds: dict[str, str] = {"": declared} if isinstance(declared, str) else declared
    far = [kind for kind in kinds if "sliding" not in kind]
    if any(kinds[kind] != "default" for kind in far):
        return []
    return [getattr(module, f"{kind}_inv_freq".lstrip("_")) for kind in far]


def ntk_factor(times: float) -> float:
    """The factor on the rotary base for inputs so many times longer: 3, 5 and 10 for 2, 4 and 8.

    In between powers of the ratio, beyond in proportion to it.
    """
    if times > 8:
        return 10 * times / 8
    at = math.log2(times)
    low = min(int(at), 2)
    share = at - low
    return math.exp(_LOG_FACTORS[low] * (1 - share) + _LOG_FACTORS[low + 1] * share)


def slower(count: int, factor: float) -> torch.Tensor:
    """[count]: what base ** (-2j / d) is multiplied by for j = 0 … count - 1, d = 2 * count."""
    return factor ** -(torch.arange(count, dtype=torch.float64) / count)


def _needed(trained: int, how: str, length: int) -> int:
    if length <= trained:
        raise UsageError(
            f"--extend {how} has no effect: this model reads {trained} positions, and {length} were "
            "asked for; raise --max-length or drop --extend"
        )
    return stride(trained, length)
