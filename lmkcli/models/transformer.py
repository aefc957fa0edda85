"""Any Hugging Face encoder or decoder: token ids to states."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from lmkcli.errors import DataError
from lmkcli.models import attention
from lmkcli.models.folder import ModelFolder
from lmkcli.placement import Ints

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NO_LIMIT = (1 << 31) - 1
_UNREADABLE = (
    OSError, ValueError, ImportError, KeyError, RuntimeError, UnpicklingError, SafetensorError,
)  # fmt: skip


@dataclass
class Transformer:
    """A loaded model. `states` runs sequences packed in one row, or padded where that is not right."""

    model: Any
    dim: int
    limit: int  # rows of its position table; without bound for rotary and other relative positions
    device: torch.device
    dtype: str
    packed: bool = False
    why_padded: str = ""
    _kwargs: dict[str, Any] = field(default_factory=dict)

    def states(self, sequences: list[Ints]) -> torch.Tensor:
        """The last hidden states of all sequences, one after another: [total positions, dim]."""
        with torch.inference_mode():
            return self._packed(sequences) if self.packed else self._padded(sequences)

    def _packed(self, sequences: list[Ints]) -> torch.Tensor:
        ids = torch.from_numpy(np.concatenate(sequences)).long()
        positions = torch.cat([torch.arange(len(s)) for s in sequences]) + self._first_position()
        output = self.model(
            input_ids=self._move(ids)[None],
            position_ids=self._move(positions)[None],
            lengths=tuple(len(s) for s in sequences),
            **self._kwargs,
        )
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def _padded(self, sequences: list[Ints]) -> torch.Tensor:
        lengths = torch.tensor([len(s) for s in sequences])
        mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        ids = torch.full(mask.shape, self.model.config.pad_token_id or 0, dtype=torch.long)
        ids[mask] = torch.from_numpy(np.concatenate(sequences)).long()
        mask = self._move(mask)
        output = self.model(input_ids=self._move(ids), attention_mask=mask.long(), **self._kwargs)
        return output.last_hidden_state[mask]  # type: ignore[no-any-return]

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _first_position(self) -> int:
        return first_position(self.model)

    def choose_attention(self) -> None:
        """Pack when the packed result equals each sequence run alone; else pad, and say why."""
        own = self.model.config._attn_implementation
        sequences = self._probes()
        alone = torch.cat([self._padded_alone(s) for s in sequences])
        try:
            self.model.set_attn_implementation(attention.NAME)
            with torch.inference_mode():
                together = self._packed(sequences)
            apart: float | str = _distance(alone, together)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
            apart = f"{type(error).__name__}: {error}".splitlines()[0]
        tolerance = 1e-5 if self.dtype == "fp32" else 2e-3
        self.packed = isinstance(apart, float) and apart < tolerance
        if not self.packed:
            self.why_padded = f"packed and padded states differ ({apart})"
            self.model.set_attn_implementation(own)

    def _padded_alone(self, sequence: Ints) -> torch.Tensor:
        with torch.inference_mode():
            return self._padded([sequence])

    def _probes(self) -> list[Ints]:
        """A few sequences of different lengths, one longer than a sliding window where there is one."""
        longest = min(self.limit, 600 if getattr(self.model.config, "sliding_window", None) else 40)
        random = np.random.default_rng(0)
        size = min(self.model.config.get_text_config().vocab_size, 30000)
        lengths = sorted({min(n, longest) for n in (3, 7, 20, longest)})
        return [
            random.integers(size // 2, size, n).astype(np.int32) for n in lengths for _ in range(2)
        ]


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """1 - mean cosine of the states."""
    cosine = torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=-1)
    return float(1 - cosine.mean())


def open_model(folder: ModelFolder, dtype: str, device: str, trust: bool) -> Transformer:
    """The model of a folder on a device, ready to run; DataError when it cannot be loaded.

    `dtype` is fp32, bf16, fp16 or auto: bf16 where the hardware computes it natively, else fp32.
    """
    chosen = choose_device(device)
    dtype = native_dtype(chosen) if dtype == "auto" else dtype
    try:
        config = AutoConfig.from_pretrained(str(folder.encoder), trust_remote_code=trust)
        model, loaded = AutoModel.from_pretrained(
            str(folder.encoder), config=config, dtype=TORCH[dtype], trust_remote_code=trust,
            output_loading_info=True,
        )  # fmt: skip
    except _UNREADABLE as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        hint = (
            "; code from a model folder runs only with --trust-remote-code"
            if "trust_remote_code" in str(error)
            else ""
        )
        raise DataError(f"the model of {folder.name} cannot be loaded: {first}{hint}") from None
    _check_whole(folder, loaded["missing_keys"])
    model = model.to(chosen).eval()
    text = config.get_text_config()
    kwargs = {"use_cache": False} if folder.causal else {}
    made = Transformer(
        model, int(text.hidden_size), position_limit(model), chosen, dtype, _kwargs=kwargs
    )
    made.choose_attention()
    return made


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
            return position_limit(AutoModel.from_config(config, trust_remote_code=trust))
    except _UNREADABLE:
        return NO_LIMIT


def _position_table(model: Any) -> Any:
    found = (
        m for name, m in model.named_modules() if name.endswith(("position_embeddings", "wpe"))
    )
    return next((module for module in found if isinstance(module, torch.nn.Embedding)), None)


def first_position(model: Any) -> int:
    """Where position ids begin: padding_idx + 1 for the RoBERTa family, 0 for everyone else."""
    table = _position_table(model)
    return 0 if table is None or table.padding_idx is None else int(table.padding_idx) + 1


def position_limit(model: Any) -> int:
    """The longest input that a table of positions allows; 2**31 - 1 where there is none."""
    table = _position_table(model)
    return NO_LIMIT if table is None else int(table.num_embeddings) - first_position(model)


def choose_device(name: str) -> torch.device:
    """'auto' is the first GPU, else the CPU; DataError for a GPU that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DataError(f"--device {name}: write auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DataError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu"
        )
    return device


def native_dtype(device: torch.device) -> str:
    """bf16 where it is computed natively (AMX, AVX512-BF16, Ampere and later), else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "bf16" if native else "fp32"
