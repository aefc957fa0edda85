"""Rotary frequencies that depend on the length of an input.

Models with rotary positions of type 'dynamic' change their frequencies with the length of an input that is
longer than those of their training, and models of type 'longrope' have a second set of frequencies for such
inputs. transformers takes the length of the longest input of a batch, and 'dynamic' also remembers the
longest input before. Therefore inputs run together only if they have the same frequencies, and the
frequencies start anew for each such group.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_BY_LENGTH = ("dynamic", "longrope")
# Names of these types in the configurations of models with code of their own
_NAMES = (*_BY_LENGTH, "su", "ntk", "dynamic_ntk")


@dataclass(frozen=True)
class _Frequencies:
    """The frequencies of one rotary module, or of one kind of its layers."""

    module: Any
    kind: str
    prefix: str
    trained: int  # the longest input with the original frequencies

    def changed_by(self, length: int) -> int:
        """Return a number that is equal for lengths with equal frequencies; 0 for the original ones."""
        if length <= self.trained:
            return 0
        return 1 if self.kind == "longrope" else length

    def reset(self) -> None:
        """Set the original frequencies, as in a model that has read no input."""
        if self.kind == "longrope":
            return  # transformers chooses them anew for each batch
        name = f"{self.prefix}inv_freq"
        now = getattr(self.module, name)
        original = getattr(self.module, f"{self.prefix}original_inv_freq").to(now.device)
        self.module.register_buffer(name, original, persistent=False)
        setattr(self.module, f"{self.prefix}max_seq_len_cached", self.trained)


@dataclass(frozen=True)
class RotaryLengths:
    """All frequencies of a model that depend on the length of an input; most models have none."""

    frequencies: tuple[_Frequencies, ...] = ()

    @classmethod
    def of(cls, model: torch.nn.Module) -> "RotaryLengths":
        """Return the frequencies of a loaded model."""
        return cls(tuple(each for module in model.modules() for each in _of_module(module)))

    def changed_by(self, length: int) -> tuple[int, ...]:
        """Return a key that is equal for inputs with equal frequencies; `length` is the last position + 1."""
        return tuple(each.changed_by(length) for each in self.frequencies)

    def reset(self) -> None:
        """Set the original frequencies of all modules."""
        for each in self.frequencies:
            each.reset()


def _of_module(module: Any) -> Iterator[_Frequencies]:
    declared = getattr(module, "rope_type", None)
    kinds = {"": declared} if isinstance(declared, str) else declared
    if not isinstance(kinds, dict):
        return
    for layer, kind in kinds.items():
        if kind not in _BY_LENGTH:
            continue
        prefix = f"{layer}_" if layer else ""
        parameters = module.config.rope_parameters
        parameters = parameters[layer] if layer else parameters
        trained = module.original_max_seq_len
        if kind == "longrope":
            trained = parameters["original_max_position_embeddings"]
        yield _Frequencies(module, kind, prefix, int(trained))


def trained_length(model: Any) -> int | None:
    """Return the trained length of a model whose own code changes frequencies by the length of an input.

    lmk cannot reset such frequencies, so it reads no longer inputs with the model. None for other models.
    """
    if RotaryLengths.of(model).frequencies:
        return None
    config = model.config.get_text_config()
    declared = getattr(config, "rope_scaling", None) or {}
    kind = declared.get("rope_type", declared.get("type")) if isinstance(declared, dict) else None
    if kind not in _NAMES and not getattr(config, "use_dynamic_ntk", False):
        return None
    for name in ("original_max_position_embeddings", "seq_length", "max_position_embeddings"):
        length = declared.get(name) or getattr(config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None
