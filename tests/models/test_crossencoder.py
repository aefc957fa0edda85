import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder
from tokenizers import processors

from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, UsageError
from lmkcli.models import crossencoder
from lmkcli.models.crossencoder import open_cross_encoder
from lmkcli.spec.recipe import RecipeOptions
from tests import tiny
from tests.levels import sample
from tests.models.families import FAMILIES

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
            [query], [text], truncation=True, max_length=tiny.POSITIONS, return_tensors="pt"
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
    assert model(query, TEXTS).scores == pytest.approx(
        expected, abs=0.05
    )  # in the CPU's native dtype
    monkeypatch.setattr(crossencoder, "native_dtype", lambda device: "fp32")
    model = open_cross_encoder(str(folder), "cpu", True)
    model.batch_tokens = 200  # several passes, padded in different ways
    assert model(query, TEXTS).scores == pytest.approx(expected, abs=1e-5)
    assert np.std(expected) > 1e-3


KINDS = (
    *("BERT", "XLM-R", "MPNet", "DeBERTa", "ELECTRA", "ModernBERT", "XLNet", "ALBERT"),
    *("GPT-2", "Llama, dynamic rope", "Phi-3, longrope", "Qwen3", "Mistral"),
)
SURE = [(kind, side) for kind in ("XLNet", "GPT-2") for side in ("left", "right")]
SURE += [("Llama, dynamic rope", "right"), ("Phi-3, longrope", "left")]
OTHERS = [case for case in itertools.product(KINDS, ("left", "right")) if case not in SURE]


@pytest.mark.parametrize(("family", "padding"), SURE + sample("classifiers", OTHERS, 2))
def test_no_score_depends_on_other_pairs(tmp_path: Path, family: str, padding: str) -> None:
    """Each pair has the score that the model gives it alone, together with short and long ones."""
    row = FAMILIES[family]
    config = row.config()
    config.num_labels, config.pad_token_id = 1, row.tokenizer().pad_token_id
    torch.manual_seed(3)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "plain")
    tokenizer = row.tokenizer()
    tokenizer.padding_side = padding
    tokenizer.save_pretrained(tmp_path / "plain")
    folder = str(tmp_path / "saved")
    CrossEncoder(str(tmp_path / "plain"), device="cpu", max_length=100).save_pretrained(folder)
    made = open_cross_encoder(folder, "cpu", True)
    texts = [tiny.sentence(number, length) for number, length in enumerate([3, 60, 20, 9, 3, 4])]
    library = CrossEncoder(folder, device="cpu")
    alone = []
    for text in texts:
        if "rope" in family:  # it remembers the longest input
            library = CrossEncoder(folder, device="cpu")
        alone.append(library.predict([("tea", text)], activation_fn=torch.nn.Identity())[0])
    assert made("tea", texts).scores == pytest.approx(alone, abs=1e-4)
    assert made("tea", texts[::-1]).scores[::-1] == pytest.approx(alone, abs=1e-4)
    assert np.std(alone) > 1e-3


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 3 outputs"):
        open_cross_encoder(str(save(tmp_path / "three", 3)), "cpu", True)
    encoder = tiny.save(tmp_path / "encoder", "bert")
    with pytest.raises(DataError, match="weights for classifier"):
        open_cross_encoder(str(encoder), "cpu", True)
    (encoder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="has no weights"):
        open_cross_encoder(str(encoder), "cpu", True)


def test_scores_are_in_fp32_unless_another_dtype_is_given(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    expected = by_hand(folder, "dense retrieval", TEXTS)
    exact = open_cross_encoder(str(folder), "cpu", True)("dense retrieval", TEXTS).scores
    assert exact == pytest.approx(expected, abs=1e-5)
    rounded = open_cross_encoder(str(folder), "cpu", True, dtype="bf16")(
        "dense retrieval", TEXTS
    ).scores
    assert rounded == pytest.approx(expected, abs=0.05)
    assert rounded != pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("pad", ["<pad>", None])
def test_a_decoder_without_a_padding_id(tmp_path: Path, pad: str | None) -> None:
    """Each pair is scored at its last token, as by the model alone."""
    torch.manual_seed(3)
    config = tiny.KINDS["qwen2"].config()
    config.num_labels, config.pad_token_id = 1, None
    transformers.Qwen2ForSequenceClassification(config).eval().save_pretrained(tmp_path)
    tokenizer = tiny.byte_bpe("$A")
    tokenizer.pad_token = pad
    tokenizer.save_pretrained(tmp_path)
    scores = open_cross_encoder(str(tmp_path), "cpu", True)("dense retrieval", TEXTS).scores
    assert scores == pytest.approx(by_hand(tmp_path, "dense retrieval", TEXTS), abs=1e-5)


@pytest.mark.parametrize("slow", [False, True])
def test_pairs_that_lose_tokens_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """A pair of exactly the limit loses nothing. Tokenizers without Rust do not return what they cut."""
    if slow:
        monkeypatch.setattr(transformers.BatchEncoding, "is_fast", False)
    model = open_cross_encoder(str(save(tmp_path, 1)), "cpu", True)
    room = model.limit - 4  # special tokens, and the query
    assert model("dense", ["dense " * room]).cut == 0
    assert model("dense", ["dense", "dense " * (room + 1), "", "dense " * 500]).cut == 2
    assert model("dense " * 500, ["dense", ""]).cut == 2


@pytest.mark.parametrize("prompt", ["", "find documents: "])
def test_folders_that_sentence_transformers_saves(tmp_path: Path, prompt: str) -> None:
    """With modules.json, a length, and a default prompt before the query."""
    made = CrossEncoder(
        str(save(tmp_path / "plain", 1)), device="cpu", max_length=40,
        prompts={"own": prompt}, default_prompt_name="own" if prompt else None,
    )  # fmt: skip
    made.save_pretrained(str(tmp_path / "saved"))
    library = CrossEncoder(str(tmp_path / "saved"), device="cpu")
    pairs = [("dense retrieval", text) for text in TEXTS]
    expected = library.predict(pairs, activation_fn=torch.nn.Identity(), batch_size=1)
    found = open_cross_encoder(str(tmp_path / "saved"), "cpu", True)("dense retrieval", TEXTS)
    assert found.scores == pytest.approx(expected, abs=1e-5)
    assert found.cut == 2
    with pytest.raises(UsageError, match="cross-encoder, which scores pairs"):
        resolve(RecipeOptions(model=str(tmp_path / "saved")))


def test_cross_encoders_that_lmk_lacks_are_refused(tmp_path: Path) -> None:
    """A chat template, or a head that compares the logits of two words."""
    made = CrossEncoder(str(save(tmp_path / "plain", 1)), device="cpu")
    made.save_pretrained(str(tmp_path / "saved"))
    for name, change, message in (
        ("sentence_bert_config.json", {"modality_config": {"text": {}, "message": {}}}, "chat template"),
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "text-generation"),
        ("modules.json", [{"path": path, "type": f"sentence_transformers.models.{kind}"}
                          for path, kind in (("", "Transformer"), ("1", "LogitScore"))], "LogitScore"),
    ):  # fmt: skip
        file = tmp_path / "saved" / name
        before = file.read_text()
        changed = json.loads(before) | change if isinstance(change, dict) else change
        file.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=message):
            open_cross_encoder(str(tmp_path / "saved"), "cpu", True)
        file.write_text(before)


def test_a_text_may_contain_the_end_token(tmp_path: Path) -> None:
    """The classifier of T5 refuses a batch of pairs with different numbers of end tokens."""
    row = FAMILIES["T5"]
    config = row.config()
    config.num_labels, config.eos_token_id, config.decoder_start_token_id = 1, 2, 0
    torch.manual_seed(3)
    transformers.T5ForSequenceClassification(config).eval().save_pretrained(tmp_path)
    row.tokenizer().save_pretrained(tmp_path)
    texts = ["bread", "iron </s> or lead", "the </s> sea </s>", "copper"]
    library = CrossEncoder(str(tmp_path), device="cpu")
    expected = [
        float(library.predict([("water", text)], activation_fn=torch.nn.Identity())[0])
        for text in texts
    ]
    found = open_cross_encoder(str(tmp_path), "cpu", True)("water", texts)
    assert found.scores == pytest.approx(expected, abs=1e-5)
