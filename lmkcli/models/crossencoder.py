"""Cross-encoders: models that read a query and a document together and return one score."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BatchEncoding
from transformers.utils import logging as transformers_logging

from lmkcli.artifact.manifest import digest
from lmkcli.data.run import Scored
from lmkcli.errors import DataError
from lmkcli.models.architectures import check_text_config
from lmkcli.models.buffers import compute_buffers
from lmkcli.models.consent import opening
from lmkcli.models.devices import TORCH_DTYPES, choose_device, native_dtype
from lmkcli.models.forward import packs
from lmkcli.models.loaded_weights import REPORTED, check_loaded, check_states
from lmkcli.models.lookup import read_model
from lmkcli.models.rotary_lengths import RotaryLengths
from lmkcli.models.transformer import position_limit
from lmkcli.models.unmapped import unmapped

_PROBE = 24  # words of the longer text that shows whether padding changes scores
transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass
class SequenceClassifier:
    """A Hugging Face sequence classifier with one output, or with two: the second is 'relevant'."""

    name: str
    digest: str
    model: Any
    tokenizer: Any
    limit: int
    device: torch.device
    prompt: str = ""  # precedes queries
    batch_tokens: int = 8192
    equal: bool = (
        False  # whether only pairs of equal lengths run together, since padding changes scores
    )
    rotary: RotaryLengths = field(default_factory=RotaryLengths)

    def __call__(self, query: str, texts: list[str]) -> Scored:
        """Return one raw score (logit) per text, and the number of pairs that were cut.

        If a query and a text are too long together, the longer one is cut.
        """
        queries = [self.prompt + query] * len(texts)
        # in lists, because transformers would read a query with an empty text as a single text
        read = self.tokenizer(queries, texts, truncation="longest_first", max_length=self.limit)
        encoded = [{name: values[i] for name, values in read.items()} for i in range(len(texts))]
        lengths = [len(item["input_ids"]) for item in encoded]
        scores = np.empty(len(texts))
        size = len(texts) if self.tokenizer.pad_token_id is not None else 1
        for group in self._groups(read["input_ids"]):
            for pack in packs([lengths[i] for i in group], self.batch_tokens, size, padded=True):
                rows = [group[i] for i in pack]
                scores[rows] = self._scores([encoded[i] for i in rows])
        return Scored(scores, sum(self._cut(read, queries, texts)))

    def _groups(self, inputs: list[list[int]]) -> list[list[int]]:
        """Return the numbers of the pairs that may run together; no score depends on the other pairs."""
        groups: dict[Any, list[int]] = {}
        for number, ids in enumerate(inputs):
            length = len(ids)
            key = length if self.equal else 0, self.rotary.changed_by(length), self._ends(ids)
            groups.setdefault(key, []).append(number)
        return list(groups.values())

    def _ends(self, ids: list[int]) -> int:
        """Count the end tokens of a pair, which may be in its texts; 0 if the model ignores them.

        Classifiers with a decoder, such as T5, refuse pairs with different numbers in one batch.
        """
        config = self.model.config
        return ids.count(config.eos_token_id) if config.is_encoder_decoder else 0

    def _scores(self, encoded: list[Any]) -> NDArray[np.float64]:
        """Return the scores of encoded pairs that run together."""
        self.rotary.reset()
        with torch.inference_mode():
            logits = self.model(**self._batch(encoded)).logits.double()
        check_states(self.model, logits, self.name)
        one_output = logits.shape[1] == 1
        score = logits[:, 0] if one_output else logits[:, 1] - logits[:, 0]
        found: NDArray[np.float64] = score.cpu().numpy()
        return found

    def depends_on_padding(self) -> bool:
        """Return whether the score of a short pair is another one next to a long pair.

        Some classifiers read the last position of a row, as XLNet, or count positions from its start.
        """
        if self.tokenizer.pad_token_id is None:
            return False
        long = min(_PROBE, max(1, self.limit - _PROBE))
        read = self.tokenizer(
            ["a", "a b"], ["b", "c " * long], truncation="longest_first", max_length=self.limit
        )
        encoded = [{name: values[i] for name, values in read.items()} for i in range(2)]
        together = self._scores(encoded)
        alone = np.concatenate([self._scores([one]) for one in encoded])
        exact = next(self.model.parameters()).dtype == torch.float32
        allowed = (1e-4 if exact else 0.03) * max(1.0, float(np.abs(alone).max()))
        return not bool(np.all(np.abs(together - alone) <= allowed))

    def _cut(self, read: Any, queries: list[str], texts: list[str]) -> Iterator[bool]:
        """Yield whether each of the encoded pairs lost tokens."""
        for number, ids in enumerate(read["input_ids"]):
            if len(ids) < self.limit:
                yield False
            elif read.is_fast:
                yield bool(read.encodings[number].overflowing)
            else:
                whole = self.tokenizer(queries[number : number + 1], texts[number : number + 1])
                yield len(whole["input_ids"][0]) > self.limit

    def _batch(self, encoded: list[Any]) -> Any:
        """Return encoded pairs as one padded batch; without a padding token there is only one pair."""
        if self.tokenizer.pad_token_id is None:
            return BatchEncoding(dict(encoded[0]), tensor_type="pt", prepend_batch_axis=True).to(
                self.device
            )
        return self.tokenizer.pad(encoded, return_tensors="pt").to(self.device)


def _set_padding(model: Any, tokenizer: Any) -> None:
    """Give a decoder the padding of its tokenizer: its score is that of the last token before the padding.

    Its configuration may lack the id, as those of converted rerankers do.
    """
    config = model.config.get_text_config()
    if config.pad_token_id is None and tokenizer.pad_token_id is not None:
        for each in {id(one): one for one in (model.config, config)}.values():
            each.pad_token_id = tokenizer.pad_token_id


def open_cross_encoder(
    name: str, device: str, offline: bool, trust_remote_code: bool = False, dtype: str | None = None
) -> SequenceClassifier:
    """Load the classifier of a folder or a hub name, in fp32 unless `dtype` is another one.

    In half precision, close scores become ties. DataError if it is not a classifier or has more than two
    outputs. The folder's own code runs only with `trust_remote_code`.
    """
    folder = read_model(name, None, offline)
    chosen = choose_device(device)
    computed = native_dtype(chosen) if dtype == "auto" else dtype or "fp32"
    identity = digest([folder.weights_digest, folder.tokenizer_digest])
    with (
        opening(folder.encoder, f"the cross-encoder {name}", trust_remote_code),
        unmapped(folder.encoder) as arguments,
    ):
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder.encoder),
            trust_remote_code=trust_remote_code,
            **dict(folder.tokenizer_options),
        )
        model, report = AutoModelForSequenceClassification.from_pretrained(
            str(folder.encoder), dtype=TORCH_DTYPES[computed], return_dict=True,
            trust_remote_code=trust_remote_code, **REPORTED, **arguments,
        )  # fmt: skip
        check_text_config(model.config)
        compute_buffers(model, TORCH_DTYPES[computed])
    folder.check_unchanged()
    missing, encoder = sorted(report["missing_keys"]), f"{model.base_model_prefix}."
    if missing and not any(each.startswith(encoder) for each in missing):
        raise DataError(
            f"{name} is no cross-encoder: it has no weights for {', '.join(missing[:3])}"
            f"{' …' * (len(missing) > 3)}"
        )
    check_loaded(name, report)
    if model.config.num_labels > 2:
        raise DataError(
            f"{name} has {model.config.num_labels} outputs; a cross-encoder for ranking has one or two"
        )
    _set_padding(model, tokenizer)
    # as in sentence-transformers, a declared length may exceed the positions of the training
    declared = folder.max_length or min(tokenizer.model_max_length, folder.positions or 512)
    limit = min(declared, position_limit(model))
    opened = SequenceClassifier(
        name,
        identity,
        model.to(chosen).eval(),
        tokenizer,
        int(limit),
        chosen,
        folder.query_prompt,
        rotary=RotaryLengths.of(model),
    )
    opened.equal = opened.depends_on_padding()
    return opened
