from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import processors

from lmkcli.errors import DataError
from lmkcli.models import crossencoder
from lmkcli.models.crossencoder import open_cross_encoder
from tests import tiny

TEXTS = [tiny.sentence(number, length) for number, length in enumerate([3, 60, 0, 20, 300, 9])]


def save(folder: Path, labels: int) -> Path:
    """A tiny BERT classifier that reads [CLS] query [SEP] text [SEP]."""
    torch.manual_seed(3)
    config = tiny.KINDS["bert"].config()
    config.num_labels = labels
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer = tiny.wordpiece()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save_pretrained(folder)
    return folder


def by_hand(folder: Path, query: str, texts: list[str]) -> list[float]:
    """Return the logits of each pair, run alone through the model in fp32."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    scores = []
    for text in texts:
        pair = tokenizer(
            query, text, truncation=True, max_length=tiny.POSITIONS, return_tensors="pt"
        )
        with torch.inference_mode():
            logits = model(**pair).logits[0]
        scores.append(float(logits[-1] - (logits[0] if len(logits) == 2 else 0.0)))
    return scores


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("query", ["dense retrieval", tiny.sentence(1, 400)])
def test_scores_equal_those_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: int, query: str
) -> None:
    folder = save(tmp_path, labels)
    model = open_cross_encoder(str(folder), "cpu", True)
    expected = by_hand(folder, query, TEXTS)
    assert model(query, TEXTS) == pytest.approx(expected, abs=0.05)  # in the CPU's native dtype
    monkeypatch.setattr(crossencoder, "native_dtype", lambda device: "fp32")
    model = open_cross_encoder(str(folder), "cpu", True)
    model.batch_tokens = 200  # several passes, padded in different ways
    assert model(query, TEXTS) == pytest.approx(expected, abs=1e-5)
    assert np.std(expected) > 1e-3


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 3 outputs"):
        open_cross_encoder(str(save(tmp_path / "three", 3)), "cpu", True)
    encoder = tiny.save(tmp_path / "encoder", "bert")
    with pytest.raises(DataError, match="weights for classifier"):
        open_cross_encoder(str(encoder), "cpu", True)
    (encoder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="cannot be loaded"):
        open_cross_encoder(str(encoder), "cpu", True)
