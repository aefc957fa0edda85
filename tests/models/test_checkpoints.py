"""Layouts of checkpoints and tokenizers that people publish: the vectors of sentence-transformers.

Half precision, shards, tied weights, adapters, missing special tokens, code of the model, and drawn pairs of
settings together.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModel

import lmkcli
from lmkcli.errors import LmkError
from tests.levels import pairs, sample
from tests.models.families import FAMILIES, add_pooling, byte_level, save
from tests.models.test_conformance import (
    LENGTH,
    NEAR,
    PROMPTS,
    TEXTS,
    by_sentence_transformers,
    check,
)


def half(dtype: torch.dtype) -> Callable[[Path, str], None]:
    def rewrite(folder: Path, family: str) -> None:
        AutoModel.from_pretrained(folder).to(dtype).save_pretrained(folder)

    return rewrite


def shards(folder: Path, family: str) -> None:
    model = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1


def language_head(folder: Path, family: str) -> None:
    """The checkpoint of a causal model, with a head tied to the embeddings."""
    config = FAMILIES[family].config()
    config.tie_word_embeddings = True
    torch.manual_seed(4)
    transformers.AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)


def pickled(folder: Path, family: str) -> None:
    model = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


CHECKPOINTS: dict[str, Callable[[Path, str], None]] = {
    "bf16": half(torch.bfloat16),
    "fp16": half(torch.float16),
    "shards": shards,
    "pickled": pickled,
    "tied head": language_head,
}
KINDS = [
    (name, family)
    for name in CHECKPOINTS
    for family in ("BERT", "XLM-R", "Qwen3", "Gemma", "T5")
    if name != "tied head" or family in ("Qwen3", "Gemma")
]


@pytest.mark.parametrize(("name", "family"), sample("checkpoints", KINDS, 3))
def test_checkpoints(tmp_path: Path, name: str, family: str) -> None:
    """In fp32 on both sides: sentence-transformers would compute half precision in half precision."""
    folder = save(tmp_path / "model", family)
    CHECKPOINTS[name](folder, family)
    add_pooling(folder, "mean", LENGTH, settings={"model_args": {"torch_dtype": "float32"}})
    check(folder, "document")


@pytest.mark.parametrize("family", sample("adapters", ["BERT", "XLM-R", "Qwen3", "Llama", "T5"], 2))
def test_adapters(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an adapter in place of weights, and the modules of sentence-transformers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = save(tmp_path / "base", family)
    targets = {"BERT": ["query", "value"], "XLM-R": ["query", "value"], "T5": ["q", "v"]}
    torch.manual_seed(6)
    made = get_peft_model(
        (transformers.T5EncoderModel if family == "T5" else AutoModel).from_pretrained(base),
        LoraConfig(r=4, lora_alpha=16, target_modules=targets.get(family, ["q_proj", "v_proj"]),
                   init_lora_weights=False),
    )  # fmt: skip
    folder = tmp_path / "model"
    made.save_pretrained(folder)
    FAMILIES[family].tokenizer().save_pretrained(folder)
    add_pooling(folder, "mean", LENGTH)
    check(folder, "document")
    plain = by_sentence_transformers(add_pooling(base, "mean", LENGTH), "document", TEXTS[:1])
    assert np.abs(plain - by_sentence_transformers(folder, "document", TEXTS[:1])).max() > 1e-3


# Tokenizers without some special tokens: the template, and the names that the tokenizer has
TOKENS: dict[str, tuple[str, dict[str, str]]] = {
    "nothing": ("$A", {}),
    "eos in the template only": ("$A </s>", {}),
    "two at the end": ("<s> $A </s> </s>", {"eos_token": "</s>", "pad_token": "<pad>"}),
    "two at the start": ("<s> <s> $A", {"bos_token": "<s>", "pad_token": "<pad>"}),
    "pad is eos": ("$A </s>", {"eos_token": "</s>", "pad_token": "</s>"}),
    "pad is unknown": (
        "<s> $A </s>",
        {"unk_token": "<pad>", "pad_token": "<pad>", "bos_token": "<s>"},
    ),
}


@pytest.mark.parametrize(
    ("tokens", "family", "pool", "prompted", "cut"),
    pairs(
        tokens=tuple(TOKENS),
        family=("Qwen3", "GPT-2", "RoBERTa", "Llama, llama3 rope"),
        pool=("mean", "lasttoken", "weightedmean"),
        prompted=(True, False),
        cut=("left", "right"),
    ),
)
def test_special_tokens(
    tmp_path: Path, tokens: str, family: str, pool: str, prompted: bool, cut: str
) -> None:
    folder = save(tmp_path / "model", family)
    template, names = TOKENS[tokens]
    fast = byte_level(template).backend_tokenizer
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **names)
    tokenizer.truncation_side = cut
    tokenizer.save_pretrained(folder)
    more = {"include_prompt": prompted, "prompts": PROMPTS["both"]}
    add_pooling(folder, pool, LENGTH, **more)
    texts = [text for text in TEXTS if text.strip()]
    if (
        "pad_token" not in names
    ):  # the library then cannot encode; lmk can, each text without padding
        tokenizer.pad_token = "<pad>"
        padded = save(tmp_path / "padded", family)
        tokenizer.save_pretrained(padded)
        add_pooling(padded, pool, LENGTH, **more)
        wanted = by_sentence_transformers(padded, "query", texts)
        encoder = lmkcli.load_encoder(
            str(folder), settings=lmkcli.EncodeSettings(dtype="fp32", device="cpu"), offline=True
        )
        np.testing.assert_allclose(encoder.encode_queries(texts).vectors, wanted, atol=NEAR)
        return
    check(folder, "query", texts)


# A remote-code encoder in the layout of JinaBERT v2 and GTE: its own configuration, ALiBi or rotary buffers
# that no file contains, gated feed-forward, and a pad token that is masked
OWN = """
import math
import torch
from torch import nn
from torch.nn.functional import gelu
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling


class OwnConfig(PreTrainedConfig):
    model_type = "KIND"

    def __init__(self, vocab_size=1000, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                 intermediate_size=48, position_embedding_type="alibi", rope_theta=500.0,
                 max_position_embeddings=128, pad_token_id=0, **more):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.intermediate_size, self.rope_theta = intermediate_size, rope_theta
        self.position_embedding_type = position_embedding_type
        self.max_position_embeddings = max_position_embeddings
        super().__init__(pad_token_id=pad_token_id, **more)


class OwnLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, self.heads = config.hidden_size, config.num_attention_heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.gate = nn.Linear(d, 2 * config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, bias, turn):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = turn(q), turn(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        seen = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        x = self.norm1(x + self.out(seen))
        up, gate = self.gate(x).chunk(2, -1)
        return self.norm2(x + self.down(up * gelu(gate)))


class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "own"

    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config)
        d, n = config.hidden_size, config.max_position_embeddings
        self.words = nn.Embedding(config.vocab_size, d, padding_idx=config.pad_token_id)
        self.types = nn.Embedding(2, d)
        self.layers = nn.ModuleList([OwnLayer(config) for _ in range(config.num_hidden_layers)])
        self.pooler = nn.Linear(d, d) if add_pooling_layer else None
        place = torch.arange(n)
        slopes = 2.0 ** (-8 / config.num_attention_heads * torch.arange(1, config.num_attention_heads + 1))
        apart = (place[None] - place[:, None]).abs()
        self.register_buffer("alibi", -slopes[:, None, None] * apart[None], persistent=False)
        half = d // config.num_attention_heads // 2
        inverse = 1 / config.rope_theta ** (torch.arange(half) / half)
        self.register_buffer("inv_freq", inverse, persistent=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None,
                return_dict=None, **more):
        n = input_ids.shape[1]
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        bias = (1.0 - mask[:, None, None].to(self.types.weight.dtype)) * -1e4
        turn = lambda x: x
        if self.config.position_embedding_type == "alibi":
            bias = bias + self.alibi[:, :n, :n]
        else:
            angles = torch.arange(n)[:, None] * self.inv_freq
            cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
            def turn(x):
                a, b = x.chunk(2, -1)
                return x * cos + torch.cat([-b, a], -1) * sin
        x = self.words(input_ids) + self.types(types)
        for layer in self.layers:
            x = layer(x, bias, turn)
        pooled = None if self.pooler is None else self.pooler(x[:, 0]).tanh()
        return BaseModelOutputWithPooling(last_hidden_state=x, pooler_output=pooled)
"""


def own_model(folder: Path, positions: str) -> torch.nn.Module:
    """Write a model with its code in the folder, and return it."""
    folder.mkdir()
    code = OWN.replace("KIND", f"own-{positions}")
    names: dict[str, Any] = {"__name__": f"configuration_{positions}"}
    exec(code, names)
    torch.manual_seed(8)
    size = len(FAMILIES["BERT"].tokenizer())
    config = names["OwnConfig"](vocab_size=size, position_embedding_type=positions)
    model = names["OwnModel"](config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    FAMILIES["BERT"].tokenizer().save_pretrained(folder)
    declared = json.loads((folder / "config.json").read_text())
    declared["auto_map"] = {"AutoConfig": "modeling.OwnConfig", "AutoModel": "modeling.OwnModel"}
    (folder / "config.json").write_text(json.dumps(declared))
    (folder / "modeling.py").write_text(code)
    add_pooling(folder, "mean", LENGTH, prompts=PROMPTS["both"])
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("positions", ["alibi", "rope"])
def test_code_of_the_model(tmp_path: Path, positions: str) -> None:
    """The vectors of the model as constructed: no file has its buffers, and transformers leaves them out."""
    folder = tmp_path / "model"
    model, tokenizer = own_model(folder, positions), FAMILIES["BERT"].tokenizer()
    with pytest.raises(LmkError, match="trust"):
        lmkcli.load_encoder(str(folder), offline=True).encode_documents(TEXTS)
    encoder = lmkcli.load_encoder(
        str(folder), lmkcli.RecipeOptions(model=str(folder), trust_remote_code=True),
        lmkcli.EncodeSettings(dtype="fp32", device="cpu"), offline=True,
    )  # fmt: skip
    for prompt, encode in (
        ("text: ", encoder.encode_documents),
        ("query: ", encoder.encode_queries),
    ):
        wanted = []
        for text in TEXTS:
            ids = tokenizer(prompt + text, truncation=True, max_length=LENGTH, return_tensors="pt")
            with torch.inference_mode():
                vector = model(**ids).last_hidden_state[0].mean(0)
            wanted.append(torch.nn.functional.normalize(vector, dim=0).numpy())
        np.testing.assert_allclose(encode(TEXTS).vectors, wanted, atol=NEAR)
        np.testing.assert_allclose(encode(TEXTS[::-1]).vectors[::-1], wanted, atol=NEAR)
