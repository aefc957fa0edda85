"""Any Hugging Face encoder or decoder: token ids to states."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers.utils import logging as transformers_logging

from lmkcli.errors import DataError, UsageError
from lmkcli.models import attention
from lmkcli.models.architectures import check_text_config, encoder_class
from lmkcli.models.buffers import compute_buffers
from lmkcli.models.consent import opening
from lmkcli.models.devices import TORCH_DTYPES, choose_device, native_dtype, to_device
from lmkcli.models.exact_weights import keep_exact
from lmkcli.models.extension import (
    Groups,
    extend_positions,
    first_position,
    fixed_rows,
    parse_extension,
    position_table,
)
from lmkcli.models.fast_paths import (
    FastPath,
    ReplacedModules,
    Together,
    cached_fast_path,
    can_fuse,
    fast_path_key,
    fuse,
)
from lmkcli.models.forward import ModelOptions
from lmkcli.models.language_head import GivenStates, VocabularyHead
from lmkcli.models.loaded_weights import POOLER, REPORTED, check_loaded, check_states
from lmkcli.models.model_files import loading
from lmkcli.models.model_folder import NO_LIMIT, ModelFolder, no_language_head
from lmkcli.models.rotary_lengths import RotaryLengths, trained_length
from lmkcli.models.unmapped import unmapped
from lmkcli.store.ragged import ranges
from lmkcli.store.token_blocks import Ints

# Types of layers that packed attention computes; others may differ only for inputs longer than the probes
_PACKED_LAYERS = {"full_attention", "sliding_attention"}

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass
class Transformer:
    """A loaded model. `states` packs sequences in one row, or pads them if packing changes the results."""

    module: Any
    dim: int
    limit: int  # rows of the position table; NO_LIMIT for rotary and other relative positions
    device: torch.device
    dtype: str
    packed: bool = False
    why_padded: str = ""
    together: Together = "any"
    rotary: RotaryLengths = field(default_factory=RotaryLengths)
    one_vector: bool = False
    pad_to: int = 0
    groups: Groups | None = None  # of far positions, with --extend selfextend
    _kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in bytes."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters())

    def states(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states of all sequences, concatenated: [total positions, dim].

        With `attended`, only the first `attended[i]` positions of sequence i are attended to.
        `positions` are the position ids of each sequence; the default is 0, 1, 2, and so on.
        """
        if self.together == "any" and not self.rotary.frequencies:
            return self._together(sequences, attended, positions)
        groups: dict[Any, list[int]] = {}
        for number, sequence in enumerate(sequences):
            given = None if positions is None else positions[number]
            groups.setdefault(self._group(number, sequence, given), []).append(number)
        parts = []
        for numbers in groups.values():
            self.rotary.reset()
            parts.append(
                self._together(
                    [sequences[i] for i in numbers],
                    attended and [attended[i] for i in numbers],
                    positions and [positions[i] for i in numbers],
                )
            )
        if len(parts) == 1:
            return parts[0]
        order = [number for numbers in groups.values() for number in numbers]
        lengths = np.array([len(s) for s in sequences])
        starts = np.empty_like(lengths)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        rows = self._move(torch.from_numpy(ranges(starts, lengths)))
        return torch.cat(parts).index_select(0, rows)

    def _group(self, number: int, sequence: Ints, positions: Ints | None) -> Any:
        """Return the key of the sequences that run together with this one."""
        if self.together == "one":
            return number
        length = len(sequence)
        if positions is not None and self.rotary.frequencies:
            length = int(positions.max(initial=-1)) + 1
        equal = len(sequence) if self.together == "equal" else 0
        return equal, self.rotary.changed_by(length)

    def _together(
        self, sequences: list[Ints], attended: list[int] | None, positions: list[Ints] | None
    ) -> torch.Tensor:
        """Return the states of `states` from one call of the model."""
        if not self.packed:
            return self._padded(sequences, attended, positions)
        lengths = [len(s) for s in sequences]
        if attended is not None:
            pack = attention.Pack(tuple(attended), tuple(lengths))
            return self._packed(sequences, positions, pack)
        pack = attention.Pack.of(lengths, self._aligned())
        states = self._packed(sequences, positions, pack)
        return states if pack.taken == pack.lengths else self._without_gaps(states, pack)

    def token_states(self, sequences: list[Ints]) -> torch.Tensor:
        """Return `states`: each state belongs to one token."""
        return self.states(sequences)

    def _packed(
        self, sequences: list[Ints], positions: list[Ints] | None, pack: attention.Pack
    ) -> torch.Tensor:
        """Return the states of all positions of a pack, gaps included: [sum(pack.taken), dim]."""
        lengths, taken = np.array([len(s) for s in sequences]), np.array(pack.taken)
        ids = np.concatenate(sequences).astype(np.int64)
        position_ids = (
            self._counted(ids, lengths)
            if positions is None
            else np.concatenate(positions).astype(np.int64)
        )
        if (taken != lengths).any():
            filled = ranges(np.cumsum(taken) - taken, lengths)
            gapless, ids = (ids, position_ids), np.zeros(int(taken.sum()), np.int64)
            position_ids = np.zeros_like(ids)
            ids[filled], position_ids[filled] = gapless
        output = self.module(
            input_ids=self._move(torch.from_numpy(ids))[None],
            position_ids=self._move(torch.from_numpy(position_ids + self._first_position))[None],
            pack=pack,
            **({"groups": self.groups} if self.groups else {}),
            **self._kwargs,
        )
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def _counted(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the default position ids of sequences, [total positions], from 0.

        The RoBERTa family does not count padding tokens, and a text can contain the name of that token.
        """
        plain = ranges(np.zeros_like(lengths), lengths)
        table = position_table(self.module)
        stepped = bool(self.module._forward_pre_hooks)  # of extended positions
        if table is None or table.padding_idx is None or stepped:
            return plain
        padding = ids == table.padding_idx
        if not padding.any():
            return plain
        counts = np.cumsum(~padding)
        starts = np.cumsum(lengths) - lengths
        before = np.concatenate([[0], counts])[starts]
        return np.where(padding, -1, counts - np.repeat(before, lengths) - 1)

    def _without_gaps(self, states: torch.Tensor, pack: attention.Pack) -> torch.Tensor:
        """[sum(pack.taken), dim] -> [sum(pack.lengths), dim]."""
        lengths, taken = np.array(pack.lengths), np.array(pack.taken)
        filled = ranges(np.cumsum(taken) - taken, lengths)
        return states.index_select(0, self._move(torch.from_numpy(filled)))

    def _aligned(self) -> bool:
        """Return whether packs round lengths up to whole steps: bf16 kernels on CPUs are slow otherwise."""
        window = getattr(self.module.config, "sliding_window", None)
        return self.device.type == "cpu" and self.dtype == "bf16" and not window

    def _padded(
        self,
        sequences: list[Ints],
        attended: list[int] | None = None,
        positions: list[Ints] | None = None,
    ) -> torch.Tensor:
        """Return the states of `states`, computed from one padded batch [sequences, longest]."""
        lengths = [len(s) for s in sequences]
        filled = _first(lengths, max(lengths))
        seen = filled if attended is None else _first(attended, max(lengths))
        # some configurations have -1, others none
        padding = max(getattr(self.module.config, "pad_token_id", None) or 0, 0)
        ids = torch.full(filled.shape, padding, dtype=torch.long)
        ids[filled] = torch.from_numpy(np.concatenate(sequences)).long()
        position_ids = {}
        if positions is not None:
            if "position_ids" not in signature(self.module.forward).parameters:
                raise UsageError(
                    f"--skip-positions needs a model that accepts position ids, and "
                    f"{type(self.module).__name__} does not; drop it"
                )
            given = torch.zeros(filled.shape, dtype=torch.long)
            given[filled] = torch.from_numpy(np.concatenate(positions)).long()
            position_ids["position_ids"] = self._move(given + self._first_position)
        output = self.module(
            input_ids=self._move(ids),
            attention_mask=self._move(seen.long()),
            **position_ids,
            **self._kwargs,
        )
        # A mask on the GPU would have to be counted first. Row numbers need no waiting.
        width = max(lengths)
        rows = np.concatenate([np.arange(n) + i * width for i, n in enumerate(lengths)])
        return output.last_hidden_state.flatten(0, 1).index_select(  # type: ignore[no-any-return]
            0, self._move(torch.from_numpy(rows))
        )

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return to_device(tensor, self.device)

    @cached_property
    def _first_position(self) -> int:
        return first_position(self.module)

    @torch.inference_mode()
    def check(self, fusing: bool, name: str = "the model") -> FastPath:
        """Compare fast paths with each sequence run alone and unfused; return the fastest that agrees.

        The candidates are packed and fused (only if `fusing`), packed, padded, batches of equal lengths, and
        each sequence alone. States agree if 1 - their mean cosine is below 1e-8 in fp32 and 2e-3
        in bf16. DataError if the states of a sequence are not finite, or differ from call to call.
        """
        sequences = self._probes()
        alone = [self.states([sequence]) for sequence in sequences]
        dim = alone[0].shape[1]
        check_states(self.module, torch.cat(alone), name)
        own = self.module.config._attn_implementation
        tolerance = 1e-8 if self.dtype == "fp32" else 2e-3
        if self._difference(alone[:1], self.states(sequences[:1])) > tolerance:
            raise DataError(
                "the states of this model for a text depend on the texts before it, or on chance, so its "
                "vectors could not be compared; give another model"
            )
        packed: float | str = ""
        for fused in (True, False) if fusing else (False,):
            replaced = fuse(self.module, self.device) if fused else ReplacedModules()
            packed = self._try_packed(sequences, alone)
            replaced.restore()
            if isinstance(packed, float) and packed < tolerance:
                break
        self.module.set_attn_implementation(own)
        if isinstance(packed, float) and packed < tolerance:
            return FastPath(fused, packed=True, dim=dim)
        reason = f"packed and padded states differ ({packed})"
        ways: tuple[Together, ...] = ("any", "equal")
        for self.together in ways:
            if self._difference(alone, self.states(sequences)) < tolerance:
                return FastPath(False, False, reason, self.together, dim)
            reason = "padding changes its states"
        return FastPath(False, False, "other texts in a batch change its states", "one", dim)

    def use(self, fast_path: FastPath) -> None:
        """Use this fast path from now on."""
        self.packed, self.why_padded = fast_path.packed, fast_path.why_padded
        self.together, self.dim = fast_path.together, fast_path.dim or self.dim
        if fast_path.fused:
            fuse(self.module, self.device)
        if fast_path.packed:
            self.module.set_attn_implementation(attention.NAME)

    def _try_packed(self, sequences: list[Ints], alone: list[torch.Tensor]) -> float | str:
        """Return the `_difference` of the packed states and `alone`, or the error of the model."""
        kinds = set(getattr(self.module.config.get_text_config(), "layer_types", None) or ())
        if unknown := kinds - _PACKED_LAYERS:
            return f"it has layers of the type {min(unknown)}"
        try:
            self.module.set_attn_implementation(attention.NAME)
            self.packed = True
            return self._difference(alone, self.states(sequences))
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            self.packed = False

    def _difference(self, alone: list[torch.Tensor], states: torch.Tensor) -> float:
        """Return 1 - the mean cosine of the states; in fp32, of the sequence that differs most."""
        split: Any = torch.split
        parts = split(states, [len(one) for one in alone])
        cosines = [
            torch.nn.functional.cosine_similarity(one.double(), part.double(), dim=-1)
            for one, part in zip(alone, parts, strict=True)
        ]
        if self.dtype != "fp32":  # the rounding of a short sequence has no mean
            cosines = [torch.cat(cosines)]
        worst = max(float(1 - each.mean()) for each in cosines)
        return worst if np.isfinite(worst) else float("inf")

    def _probes(self) -> list[Ints]:
        """Return a few random sequences, one longer than the blocks of a sliding window.

        Every other one contains the special tokens of the configuration: ESM scales the states of an input
        by its number of mask tokens, so that a pack with such a text changes all its texts.
        """
        window = getattr(self.module.config, "sliding_window", None)
        longest = min(
            self.limit, 40 if not window or window > 256 else attention.block_from(window) + 100
        )
        rng = np.random.default_rng(0)
        text = self.module.config.get_text_config()
        size = min(text.vocab_size, 30000)
        lengths = sorted({min(n, longest) for n in (3, 7, 20, 37, longest)})
        probes = [
            rng.integers(size // 2, size, n).astype(np.int32) for n in lengths for _ in range(2)
        ]
        special = _special_tokens(text)
        for probe in probes[1::2]:
            places = rng.permutation(len(probe))[: len(special)]
            probe[places] = rng.permutation(special)[: len(places)]
        return probes


def _special_tokens(config: Any) -> Ints:
    """Return the ids of special tokens that a configuration names, such as `mask_token_id`.

    Without padding: its states may be zero, and the cosine of zeros is no measure.
    """
    named = {name: value for name, value in config.to_dict().items() if name.endswith("_token_id")}
    padding = named.pop("pad_token_id", None)
    ids = {value for value in named.values() if type(value) is int and value != padding}
    return np.array(sorted(value for value in ids if 0 <= value < config.vocab_size), np.int32)


def _first(counts: list[int], width: int) -> torch.Tensor:
    """Return True for the first `counts[i]` positions of row i, [n, width]."""
    return torch.arange(width)[None] < torch.tensor(counts)[:, None]


def open_model(folder: ModelFolder, options: ModelOptions) -> Transformer:
    """Load the model of a folder onto a device. DataError if it cannot be loaded."""
    options = _decided(options)
    model, loaded = _load(None, folder, options)
    check_loaded(folder.name, loaded, unused=POOLER)
    return _opened(model, folder, options)


def open_masked(folder: ModelFolder, options: ModelOptions) -> tuple[Transformer, VocabularyHead]:
    """Load a masked-language model onto a device: its encoder, and its head.

    DataError if it cannot be loaded, or if the folder has no such head.
    """
    options = _decided(options)
    masked, loaded = _load(AutoModelForMaskedLM, folder, options)
    prefix = masked.base_model_prefix
    head = sorted(name for name in loaded["missing_keys"] if not name.startswith(f"{prefix}."))
    if head:
        raise DataError(no_language_head(folder, f"its weights lack {head[0]}"))
    check_loaded(folder.name, loaded, unused=POOLER)
    encoder = getattr(masked, prefix)
    setattr(masked, prefix, GivenStates())
    masked = masked.to(choose_device(options.device)).eval().requires_grad_(options.trainable)
    return _opened(encoder, folder, options), VocabularyHead(masked)


def _decided(options: ModelOptions) -> ModelOptions:
    """Replace the dtype 'auto' by a dtype of the device."""
    if options.dtype != "auto":
        return options
    return replace(options, dtype=native_dtype(choose_device(options.device)))


def _load(kind: Any, folder: ModelFolder, options: ModelOptions) -> tuple[Any, Mapping[str, Any]]:
    """Return a model of an auto class of transformers, and which weights it lacks (`check_loaded`).

    Without a class, the model is an encoder or a decoder, and makes states.
    """
    where, trust = str(folder.encoder), options.trust_remote_code
    with (
        opening(folder.encoder, f"the model of {folder.name}", trust),
        unmapped(folder.encoder) as arguments,
    ):
        config = AutoConfig.from_pretrained(where, trust_remote_code=trust)
        config.return_dict = True  # states are read by name, whatever the file says
        stored, kind = config.dtype, kind or encoder_class(config.model_type)
        check_text_config(config)
        _check_reads_text(kind, config, folder)
        _check_attention(folder, config)

        def load(dtype: torch.dtype) -> Any:
            return kind.from_pretrained(
                where, config=config, dtype=dtype, trust_remote_code=trust, **REPORTED,
                **arguments,
            )  # fmt: skip

        model, loaded = load(TORCH_DTYPES[options.dtype])
        if adapted := sorted(name for name in loaded["unexpected_keys"] if "lora_" in name):
            raise DataError(
                f"the weights of {folder.name} contain an adapter that its architecture does not have "
                f"({adapted[0]} …); merge it with the weights, for instance with merge_and_unload of peft"
            )
        compute_buffers(model, TORCH_DTYPES[options.dtype])
        if options.trainable:
            keep_exact(model, lambda: load(torch.float32)[0], stored)
    return model, loaded


def _check_reads_text(kind: Any, config: Any, folder: ModelFolder) -> None:
    """Raise DataError for an architecture whose input is an image or sound. Some of them download parts."""
    if type(config) in kind._model_mapping:
        known = kind._model_mapping[type(config)]
        for each in known if isinstance(known, tuple) else (known,):
            if each.main_input_name != "input_ids":
                raise DataError(
                    f"{folder.name} is a model of the kind {config.model_type}, which does not read text; "
                    "choose a text encoder"
                )


def _opened(model: Any, folder: ModelFolder, options: ModelOptions) -> Transformer:
    """Move an encoder to its device, extend its positions, and choose its fast path."""
    device, dtype, extend = choose_device(options.device), options.dtype, options.extend
    config = model.config
    model = model.to(device).eval().requires_grad_(options.trainable)
    groups = None
    if extend:
        how, length = parse_extension(extend)
        with loading(f"{folder.name} with positions extended to {extend}"):
            groups = extend_positions(model, how, length, stepping=not options.trainable)
    text = config.get_text_config()
    kwargs = {"use_cache": False} if folder.causal else {}
    opened = Transformer(
        model, int(text.hidden_size), position_limit(model), device, dtype, _kwargs=kwargs
    )
    opened.rotary = RotaryLengths.of(model)
    fusing = can_fuse(device, options.trainable)
    key = fast_path_key(folder.weights_digest, dtype, device, (extend, fusing))
    with loading(f"the model of {folder.name}", "cannot be run"):
        opened.use(cached_fast_path(key, lambda: opened.check(fusing, folder.name)))
    opened.groups = groups  # set after the check, because padded attention has no groups
    if groups and not opened.packed:
        raise UsageError(
            f"--extend selfextend needs packed attention, which gives wrong states for {folder.name} "
            f"({opened.why_padded}); use --extend ntk"
        )
    return opened


def _check_attention(folder: ModelFolder, config: Any) -> None:
    """Raise DataError for block-sparse attention: transformers turns it off after the first short text."""
    if getattr(config, "attention_type", None) == "block_sparse":
        raise DataError(
            f"the attention of {folder.name} is block-sparse, and changes with the texts that it has read "
            'before; write "attention_type": "original_full" into its config.json'
        )


def length_limit(folder: ModelFolder, trust: bool) -> int:
    """Return the `position_limit` of a folder without reading weights; NO_LIMIT if it cannot be computed."""
    try:
        with opening(folder.encoder, folder.name, trust), torch.device("meta"):
            config = AutoConfig.from_pretrained(str(folder.encoder), trust_remote_code=trust)
            kind = encoder_class(config.model_type)
            _check_reads_text(kind, config, folder)
            model = kind.from_config(config, trust_remote_code=trust)
            return position_limit(model)
    except Exception:  # open_model will report the error
        return NO_LIMIT


def position_limit(model: Any) -> int:
    """Return the longest input that the positions allow: a table, or frequencies that cannot be reset.

    NO_LIMIT for other models.
    """
    table = position_table(model)
    if table is None:
        return fixed_rows(model) or trained_length(model) or NO_LIMIT
    return int(table.num_embeddings) - first_position(model)
