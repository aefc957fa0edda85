"""Cross-encoders: a query and a document read together, one score."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lmkcli.errors import DataError
from lmkcli.models.folder import read_model
from lmkcli.models.transformer import TORCH, choose_device, native_dtype
from lmkcli.packing import packs


@dataclass
class CrossEncoder:
    """Any Hugging Face sequence classifier with one output (or two: the second is 'relevant')."""

    name: str
    digest: str
    model: Any
    tokenizer: Any
    limit: int
    device: torch.device
    batch_tokens: int = 8192

    def __call__(self, query: str, texts: list[str]) -> NDArray[np.float64]:
        """One raw score (logit) for each text; documents are cut to what fits beside the query."""
        encoded = [
            self.tokenizer(query, text, truncation="only_second", max_length=self.limit)
            for text in texts
        ]
        lengths = [len(item["input_ids"]) for item in encoded]
        scores = np.empty(len(texts))
        for pack in packs(lengths, self.batch_tokens, len(texts), padded=True):
            batch = self.tokenizer.pad([encoded[i] for i in pack], return_tensors="pt").to(
                self.device
            )
            with torch.inference_mode():
                logits = self.model(**batch).logits.float()
            scores[pack] = (
                (logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0])
                .cpu()
                .numpy()
            )
        return scores


def open_cross_encoder(name: str, device: str, offline: bool) -> CrossEncoder:
    """The classifier of a folder or hub name; DataError when it has more than two outputs."""
    folder = read_model(name, None, offline)
    chosen = choose_device(device)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder.path))
        model = AutoModelForSequenceClassification.from_pretrained(
            str(folder.path), dtype=TORCH[native_dtype(chosen)]
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"the cross-encoder {name} cannot be loaded: {str(error).splitlines()[0]}"
        ) from None
    if model.config.num_labels > 2:
        raise DataError(
            f"{name} has {model.config.num_labels} outputs; a cross-encoder for ranking has one or two"
        )
    limit = min(tokenizer.model_max_length, folder.positions or 512)
    return CrossEncoder(
        name, folder.weights_digest, model.to(chosen).eval(), tokenizer, int(limit), chosen
    )
