"""Any Hugging Face encoder or decoder: token ids to states."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from lmkcli.errors import DataError, UsageError
from lmkcli.models import attention
from lmkcli.models.devices import TORCH, choose_device, native_dtype
from lmkcli.models.extend import extend as extend_positions
from lmkcli.models.extend import first_position, parse, position_table
from lmkcli.models.files import loading
from lmkcli.models.folder import NO_LIMIT, ModelFolder
from lmkcli.models.forward import ModelOptions
from lmkcli.models.fused import Undo, fuse
from lmkcli.models.routes import Route, remembered, route_key
from lmkcli.models.selfextend import Groups
from lmkcli.pooling.placement import Ints

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass
class Transformer:
    """A loaded model. `states` runs sequences packed in one row, or padded where that is not right."""

    module: Any
    dim: int
    limit: int  # rows of its position table; without bound for rotary and other relative positions
    device: torch.device
    dtype: str
    packed: bool = False
    why_padded: str = ""
    one_vector: bool = False
    pad_to: int = 0
    groups: Groups | None = None  # far positions, where a rotary model is extended by itself
    _kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters())

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """The last hidden states of all sequences, one after another: [total positions, dim].

        Where `attended` is given, no position sees more than so many of its sequence. `positions`
        number those of each sequence; otherwise they are 0, 1, 2 and so on.
        """
        if not self.packed:
            return self._padded(sequences, attended, positions)
        positions = positions or _counted(sequences)
        lengths = [len(s) for s in sequences]
        if attended is not None:
            pack = attention.Pack(tuple(attended), tuple(lengths))
            return self._packed(sequences, positions, pack)
        pack = attention.Pack.of(lengths, self._aligned())
        states = self._packed(sequences, positions, pack)
        return states if pack.taken == pack.lengths else self._filled(states, pack)

    def token_states(self, sequences: list[Ints]) -> torch.Tensor:
        """The same: its states are those of its tokens."""
        return self.states(sequences)

    def _packed(
        self, sequences: list[Ints], positions: list[Ints], pack: attention.Pack
    ) -> torch.Tensor:
        """States of all positions that the pack takes."""
        ids = np.zeros(sum(pack.taken), np.int64)
        places = np.zeros_like(ids)
        starts = np.cumsum([0, *pack.taken[:-1]])
        for start, sequence, places_of_it in zip(starts, sequences, positions, strict=True):
            ids[start : start + len(sequence)] = sequence
            places[start : start + len(sequence)] = places_of_it
        output = self.module(
            input_ids=self._move(torch.from_numpy(ids))[None],
            position_ids=self._move(torch.from_numpy(places + self._first_position))[None],
            pack=pack,
            **({"groups": self.groups} if self.groups else {}),
            **self._kwargs,
        )
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def _filled(self, states: torch.Tensor, pack: attention.Pack) -> torch.Tensor:
        starts = np.cumsum([0, *pack.taken[:-1]])
        filled = np.concatenate(
            [np.arange(n) + s for s, n in zip(starts, pack.lengths, strict=True)]
        )
        return states.index_select(0, self._move(torch.from_numpy(filled)))

    def _aligned(self) -> bool:
        """Whether sequences are laid out in whole steps: where bf16 kernels are slow on odd lengths."""
        window = getattr(self.module.config, "sliding_window", None)
        return self.device.type == "cpu" and self.dtype == "bf16" and not window

    def _padded(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        lengths = [len(s) for s in sequences]
        there = _first(lengths, max(lengths))
        seen = there if attended is None else _first(attended, max(lengths))
        ids = torch.full(there.shape, self.module.config.pad_token_id or 0, dtype=torch.long)
        ids[there] = torch.from_numpy(np.concatenate(sequences)).long()
        places = {} if positions is None else {"position_ids": self._places(positions, there)}
        output = self.module(
            input_ids=self._move(ids),
            attention_mask=self._move(seen.long()),
            **places,
            **self._kwargs,
        )
        return output.last_hidden_state[self._move(there)]  # type: ignore[no-any-return]

    def _places(self, positions: list[Ints], there: torch.Tensor) -> torch.Tensor:
        """[sequences, longest] position ids; UsageError for a model that takes none."""
        if "position_ids" not in signature(self.module.forward).parameters:
            raise UsageError(
                f"{type(self.module).__name__} takes no position ids, so that its positions cannot "
                "skip; drop --skip-positions"
            )
        places = torch.zeros(there.shape, dtype=torch.long)
        places[there] = torch.from_numpy(np.concatenate(positions)).long()
        return self._move(places + self._first_position)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    @cached_property
    def _first_position(self) -> int:
        return first_position(position_table(self.module))

    @torch.inference_mode()
    def check(self, fusing: bool) -> Route:
        """Packed, and fused if `fusing`, where that equals each sequence run alone; else less."""
        sequences = self._probes()
        alone = torch.cat([self._padded([sequence]) for sequence in sequences])
        own = self.module.config._attn_implementation
        tolerance = 1e-5 if self.dtype == "fp32" else 2e-3
        apart: float | str = ""
        for fused in (True, False) if fusing else (False,):
            undo = fuse(self.module) if fused else Undo()
            apart = self._try_packed(sequences, alone)
            undo()
            if isinstance(apart, float) and apart < tolerance:
                break
        self.module.set_attn_implementation(own)
        if isinstance(apart, float) and apart < tolerance:
            return Route(fused, packed=True)
        return Route(
            fused=False, packed=False, why_padded=f"packed and padded states differ ({apart})"
        )

    def take(self, route: Route) -> None:
        """Run as a check found right."""
        self.packed, self.why_padded = route.packed, route.why_padded
        if route.fused:
            fuse(self.module)
        if route.packed:
            self.module.set_attn_implementation(attention.NAME)

    def _try_packed(self, sequences: list[Ints], alone: torch.Tensor) -> float | str:
        """How far the packed states are from those of each sequence alone, or what went wrong."""
        try:
            self.module.set_attn_implementation(attention.NAME)
            pack = attention.Pack.of([len(s) for s in sequences], self._aligned())
            packed = self._packed(sequences, _counted(sequences), pack)
            return _distance(alone, self._filled(packed, pack))
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]

    def _probes(self) -> list[Ints]:
        """A few sequences of different lengths, one longer than the blocks of a sliding window."""
        window = getattr(self.module.config, "sliding_window", None)
        longest = min(
            self.limit, 40 if not window or window > 256 else attention.block(window) + 100
        )
        random = np.random.default_rng(0)
        size = min(self.module.config.get_text_config().vocab_size, 30000)
        lengths = sorted({min(n, longest) for n in (3, 7, 20, 37, longest)})
        return [
            random.integers(size // 2, size, n).astype(np.int32) for n in lengths for _ in range(2)
        ]


def _counted(sequences: list[Ints]) -> list[Ints]:
    return [np.arange(len(sequence), dtype=np.int32) for sequence in sequences]


def _first(counts: list[int], width: int) -> torch.Tensor:
    """[n, width]: which positions are among the first `counts[i]` of a row."""
    return torch.arange(width)[None] < torch.tensor(counts)[:, None]


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """1 - mean cosine of the states."""
    cosine = torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=-1)
    return float(1 - cosine.mean())


def open_model(folder: ModelFolder, options: ModelOptions) -> Transformer:
    """The model of a folder on a device, ready to run; DataError when it cannot be loaded."""
    device, dtype, extend = choose_device(options.device), options.dtype, options.extend
    dtype = native_dtype(device) if dtype == "auto" else dtype
    trust = options.trust_remote_code
    with loading(f"the model of {folder.name}"):
        config = AutoConfig.from_pretrained(str(folder.encoder), trust_remote_code=trust)
        model, loaded = AutoModel.from_pretrained(
            str(folder.encoder), config=config, dtype=TORCH[dtype], trust_remote_code=trust,
            output_loading_info=True,
        )  # fmt: skip
    _check_whole(folder, loaded["missing_keys"])
    model = model.to(device).eval().requires_grad_(options.trainable)
    groups = None
    if extend:
        with loading(f"{folder.name} with positions extended to {extend}"):
            groups = extend_positions(model, *parse(extend), stepping=not options.trainable)
    text = config.get_text_config()
    kwargs = {"use_cache": False} if folder.causal else {}
    opened = Transformer(
        model, int(text.hidden_size), position_limit(model), device, dtype, _kwargs=kwargs
    )
    fusing = device.type == "cpu" and not options.trainable
    key = route_key(folder.weights_digest, dtype, device, (extend, fusing))
    opened.take(remembered(key, lambda: opened.check(fusing)))
    opened.groups = groups  # after the check, which compares with what knows no groups
    if groups and not opened.packed:
        raise UsageError(
            f"--extend selfextend works in packed attention, which is not right for {folder.name} "
            f"({opened.why_padded}); use --extend ntk"
        )
    return opened


def _check_whole(folder: ModelFolder, missing: Iterable[str]) -> None:
    """DataError for weights that are not there, which would be drawn at random; no one pools the pooler's."""
    lost = sorted(name for name in missing if "pooler" not in name)
    if lost:
        raise DataError(
            f"the weights of {folder.name} lack {len(lost)} tensors of its architecture ({lost[0]} …); "
            "give a folder whose weights belong to its config.json"
        )


def length_limit(folder: ModelFolder, trust: bool) -> int:
    """`position_limit` of a folder whose weights need not be there; unbounded if they are not known.

    What is wrong with a folder is said when its model is opened.
    """
    try:
        config = AutoConfig.from_pretrained(str(folder.encoder), trust_remote_code=trust)
        with torch.device("meta"):
            model = AutoModel.from_config(config, trust_remote_code=trust)  # type: ignore[no-untyped-call]
            return position_limit(model)
    except Exception:  # it will be raised again where the model is opened
        return NO_LIMIT


def position_limit(model: Any) -> int:
    """The longest input that a table of positions allows; 2**31 - 1 where there is none."""
    table = position_table(model)
    return NO_LIMIT if table is None else int(table.num_embeddings) - first_position(table)
