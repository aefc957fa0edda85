"""Objectives of pre-training: official losses, and plain loops in float64 for what has no number."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.models import prediction_head
from lmkcli.models.attention import QueryKeyLengths
from lmkcli.plugins.pretrain import enhanced_decoder, retromae
from lmkcli.plugins.pretrain.enhanced_decoder import masked_attention
from lmkcli.plugins.pretrain.masking import MaskedText, Masking, MaskingVocabulary
from lmkcli.plugins.pretrain.pretext import (
    EncodedTexts,
    HeadOptions,
    PretextStep,
    PretrainBatch,
    Pretraining,
)
from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.plugins.pretrain.pretraining_request import check_encoder
from lmkcli.plugins.tite import pretexts as tite
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.model import TiteModel
from lmkcli.pooling.placement import Input
from lmkcli.training.step.gradients import Budget
from tests import levels

Parity = Callable[[str], Path]
Models = Callable[[str], Path]
NONE = np.zeros(0, np.int64)


@pytest.mark.parametrize("name", catalog.PRETEXTS)
def test_the_catalog_says_which_settings_an_objective_has(name: str) -> None:
    """A pool of masks is for decoders with a mask a row, and a decoder is whatever is no head of tokens."""
    row, kind = catalog.PRETEXTS[name], catalog.PRETEXTS.load(name)
    assert (
        {"mask", "whole_words"} <= set(row.settings) <= {f.name for f in fields(PretrainSettings)}
    )
    assert ("mask_pool" in row.settings) == bool(kind.masking.decoder_rows)
    assert ("decoder_mask" in row.settings) == bool({"decoder", "mae"} & kind.weights.keys())


class Plain:
    """An encoder as a Model: padded, on the CPU, in the dtype that its weights have."""

    device = torch.device("cpu")
    dtype = "fp32"
    packed, why_padded, pad_to = False, "", 0

    def __init__(self, module: Any, one_vector: bool = False) -> None:
        self.module, self.one_vector = module, one_vector
        self.dim = module.config.hidden_size
        self.limit = module.config.max_position_embeddings
        self.weight_bytes = 0

    def states(self, sequences: list[Any], attended: Any = None) -> Tensor:
        if self.one_vector:
            lengths = np.array([len(ids) for ids in sequences])
            return self.module.packed(torch.tensor(np.concatenate(sequences)).long(), lengths)
        rows = [
            self.module(torch.tensor(ids)[None].long()).last_hidden_state[0] for ids in sequences
        ]
        return torch.cat(rows)

    def token_states(self, sequences: list[Any]) -> Tensor | None:
        return None if self.one_vector else self.states(sequences)


def marked(ids: Any, marks: list[int]) -> Input:
    ids = np.asarray(ids, np.int32)
    return Input(ids, np.array(marks, np.int32), np.zeros(len(marks), np.int32), len(ids))


def renamed(weights: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """The weights under `names`, theirs to ours by prefix; what has no prefix among them is left out."""
    return {
        ours + key.removeprefix(theirs): value
        for theirs, ours in names.items()
        for key, value in weights.items()
        if key.startswith(theirs)
    }


HEAD = {
    "lm.cls.predictions.transform.dense.": "dense.",
    "lm.cls.predictions.transform.LayerNorm.": "norm.",
    "lm.cls.predictions.bias": "bias",
}
LAYER = {
    **{f"c_head.attention.self.{name}.": f"{name}." for name in ("query", "key", "value")},
    "c_head.attention.output.dense.": "dense.",
    "c_head.attention.output.LayerNorm.": "norm.",
    "c_head.intermediate.dense.": "intermediate.",
    "c_head.output.dense.": "output.",
    "c_head.output.LayerNorm.": "output_norm.",
}


def retro(
    parity: Parity, raw: bool, kind: type[retromae.RetroMae] = retromae.RetroMae
) -> tuple[Pretraining, list[MaskedText], float]:
    """The official tiny RetroMAE with its masks, each row of them one of the pool."""
    weights = load_file(parity("retromae/retromae.safetensors"))
    given = np.load(parity("retromae/retromae.npz"))
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=40, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    encoder = transformers.BertModel(config, add_pooling_layer=False)
    encoder.load_state_dict(renamed(weights, {"lm.bert.": ""}))
    encoder.eval()
    heads = kind(Plain(encoder), HeadOptions(raw=raw)).eval()
    heads.language.load_state_dict(renamed(weights, HEAD))
    heads.decoder.load_state_dict(renamed(weights, LAYER))
    texts = []
    for row, seen in enumerate(given["am"]):
        n = int(seen.sum())
        ids = given["dec_ids"][row, :n]
        hidden = ~given["dec_matrix"][row, :n, :n].astype(bool)
        np.fill_diagonal(hidden, False)
        texts.append(
            MaskedText(
                marked(ids, [0]),
                given["enc"][row, :n].astype(np.int32),
                np.flatnonzero(given["enc_labels"][row, :n] >= 0),
                given["dec_labels"][row, :n] >= 0,
                hidden,
                np.arange(n),
                0,
            )
        )
    return Pretraining(Plain(encoder), heads), texts, float(given["loss"])


def loss_of(module: Pretraining, texts: list[MaskedText]) -> float:
    heads: Any = module.heads
    sums = module(texts) / torch.tensor(heads.counts(texts))
    return float(sums.detach() @ torch.tensor(list(heads.weights.values())))


@pytest.mark.parametrize("raw", [True, False])
def test_retromae_has_the_official_loss(parity: Parity, raw: bool) -> None:
    """Weights so small hardly tell the streams of queries apart; the plain loops below do."""
    module, texts, wanted = retro(parity, raw)
    assert loss_of(module, texts) == pytest.approx(wanted, abs=1e-4)
    assert wanted == pytest.approx(8.1589, abs=1e-4)


def test_dupmae_has_the_official_loss(parity: Parity) -> None:
    """The fixture's number (specs/retromae.md); its weights and masks are those of RetroMAE."""
    module, texts, _ = retro(parity, raw=False, kind=retromae.DupMae)
    assert loss_of(module, texts) == pytest.approx(8.5642, abs=1e-4)


class Official(NamedTuple):
    """TITE's heads, what its encoder made of three texts, all numbers, and the heads' own tables."""

    heads: tite.TitePretraining
    read: EncodedTexts
    given: Any
    tables: list[Tensor]


@pytest.fixture(scope="module")
def official(parity: Parity) -> Official:
    """TITE's official heads over its official encoder, and what it reads."""
    weights = load_file(parity("tite/pretrain_late2_intra.safetensors"))
    given = np.load(parity("tite/pretrain_late2_intra.npz"))
    kernels = [None] * 3 + [2] * 9
    config = TiteConfig(
        vocab_size=97, num_hidden_layers=12, hidden_sizes=48, num_attention_heads=4,
        intermediate_sizes=96, max_position_embeddings=64, norm_location="post", norm_type="layer",
        absolute_positional_embedding_type="learned", relative_positional_embedding_type="rotary",
        pooling_location="intra", kernel_sizes=kernels, strides=kernels, dropout_prob=0.0,
    )  # fmt: skip
    encoder = TiteModel(config)
    encoder.load_state_dict(renamed(weights, {"tite.": ""}))
    model = Plain(encoder.eval(), one_vector=True)
    heads = tite.TitePretraining(model, HeadOptions()).eval()
    decoder = "heads.enhanced_masked_auto_encoding."
    heads.decoder.load_state_dict(
        renamed(weights, {f"{decoder}enhanced_attention.": "", f"{decoder}mlp.": "mlp."})
    )
    heads.decoder_head.bias = nn.Parameter(heads.bow_head.bias.detach().clone())  # untied there
    tables = []
    for ours, theirs in (
        (heads.decoder_head, decoder),
        (heads.bow_head, "heads.bow_auto_encoding."),
    ):
        named = {f"{theirs}lm_head.{name}.": f"{name}." for name in ("dense", "norm")}
        named[f"{theirs}lm_head.decoder.bias"] = "bias"
        ours.load_state_dict(renamed(weights, named))
        tables.append(weights[f"{theirs}lm_head.decoder.weight"])
    texts = []
    for ids, mask in zip(given["input_ids"], given["attention_mask"], strict=True):
        own = marked(ids[mask == 1], [0])
        n = len(own.ids)
        texts.append(
            MaskedText(own, own.ids, NONE, np.ones(n, bool), np.zeros((0, n), bool), NONE, 0)
        )
    return Official(heads, Pretraining(model, heads).encode(texts), given, tables)


def test_tite_decodes_with_the_official_loss(official: Official) -> None:
    """Their decoder sees padding, which here is made part of the texts."""
    heads, given, table = official.heads, official.given, official.tables[0]
    texts = [
        text._replace(input=marked(ids, [0]), shown=ids.astype(np.int32), ordinary=mask == 1)
        for text, ids, mask in zip(
            official.read.texts, given["input_ids"], given["attention_mask"], strict=True
        )
    ]
    read = official.read._replace(texts=texts)
    drawn = torch.tensor(given["mask_uniform"])
    states = heads.states(
        read, lambda text, rows: tite.attention_mask(drawn[text, rows], 0.5, rows)
    )
    labels = torch.tensor(given["mae_labels"]).flatten()
    kept = labels >= 0
    assert torch.equal(kept, read.tensor([text.ordinary for text in texts]))
    logits = torch.tensor(given["mae_logits"]).flatten(0, 1)
    torch.testing.assert_close(
        heads.decoder_head(states, table)[kept], logits[kept], rtol=0, atol=1e-4
    )
    loss = heads.decoder_head.summed_loss(states[kept], labels[kept], table) / kept.sum()
    assert float(loss.detach()) == pytest.approx(float(given["loss_mae"]), abs=1e-4)


def test_tite_predicts_bags_with_the_official_loss(official: Official) -> None:
    heads, read, given = official.heads, official.read, official.given
    torch.testing.assert_close(
        read.vectors, torch.tensor(given["last_hidden_state"])[:, 0], rtol=0, atol=1e-4
    )
    table = official.tables[1]
    logits = heads.bow_head(read.vectors, table)
    torch.testing.assert_close(logits, torch.tensor(given["bow_logits"])[:, 0], rtol=0, atol=1e-4)
    untied = read._replace(encoder=_Untied(table))
    loss = heads.bags(untied) / heads.counts(read.texts)[1]
    assert float(loss.detach()) == pytest.approx(float(given["loss_bow"]), abs=1e-4)


class _Untied:
    """An encoder of which the heads are asked to use another table of tokens."""

    def __init__(self, table: Tensor) -> None:
        self._table = nn.Embedding.from_pretrained(table)

    def get_input_embeddings(self) -> nn.Embedding:
        return self._table


class Loops:
    """RetroMAE and DupMAE by plain loops, in the dtype of the module; dropout is off."""

    def __init__(self, module: Pretraining, raw: bool) -> None:
        self.encoder: Any = module.encoder
        self.heads: Any = module.heads
        self.raw = raw
        self.table = self.encoder.get_input_embeddings().weight

    def vector(self, text: MaskedText, states: Tensor) -> Tensor:
        return torch.stack([states[mark] for mark in text.input.marks.tolist()]).mean(0)

    def states(self, ids: Any) -> Tensor:
        return self.encoder(torch.tensor(ids).long()[None]).last_hidden_state[0]

    def surprise(self, state: Tensor, target: int) -> Tensor:
        return -self.logits(state).log_softmax(0)[target]

    def logits(self, state: Tensor) -> Tensor:
        head = self.heads.language
        return self.table @ head.norm(torch.nn.functional.gelu(head.dense(state))) + head.bias

    def mlm(self, text: MaskedText) -> list[Tensor]:
        states = self.states(text.shown)
        return [self.surprise(states[i], int(text.input.ids[i])) for i in text.hidden.tolist()]

    def embedded(self, value: Tensor, place: int) -> Tensor:
        """One row of BERT's embeddings, or of ModernBERT's."""
        module = self.encoder.embeddings
        if not hasattr(module, "position_embeddings"):
            return module.norm(value)
        types = module.token_type_embeddings.weight[0]
        return module.LayerNorm(value + types + module.position_embeddings.weight[place])

    def decoder(self, text: MaskedText) -> list[Tensor]:
        n, layer = len(text.shown), self.heads.decoder
        vector = self.vector(text, self.states(text.shown))
        ids = text.input.ids.tolist()
        context = [vector, *(self.embedded(self.table[ids[j]], j) for j in range(1, n))]
        terms = []
        for i in range(1, n - 1):
            if not text.ordinary[i]:
                continue
            if self.raw:
                query = vector + self.encoder.embeddings.position_embeddings.weight[i]
            else:
                query = self.embedded(vector, i)
            hidden = text.pool[text.rows[i]]
            seen = [j for j in range(n) if j != i and not hidden[j]]
            mixed = layer.dense(self.attended(layer, query, [(j, context[j]) for j in seen], i))
            state = layer.norm(mixed + query)
            inner = torch.nn.functional.gelu(layer.intermediate(state))
            terms.append(self.surprise(layer.output_norm(layer.output(inner) + state), ids[i]))
        return terms

    def attended(self, layer: Any, query: Tensor, seen: list[tuple[int, Tensor]], i: int) -> Tensor:
        width = len(query) // layer.heads
        made = []
        for head in range(layer.heads):
            own = slice(head * width, (head + 1) * width)
            q, scores = layer.query(query)[own], []
            for j, given in seen:
                k = layer.key(given)[own]
                score = q @ k
                if layer.relative is not None:
                    distance = layer.relative.weight[i - j + len(layer.relative.weight) // 2]
                    score = score + q @ distance + k @ distance
                scores.append(score / width**0.5)
            shares = torch.stack(scores).softmax(0)
            values = [layer.value(given)[own] for _, given in seen]
            made.append(sum(share * value for share, value in zip(shares, values, strict=True)))
        return torch.cat(made)

    def bow(self, text: MaskedText) -> Tensor:
        states = self.states(text.shown)
        best = torch.stack([self.logits(state) for state in states[1:]]).max(0).values
        words = [
            int(i) for i, ordinary in zip(text.input.ids, text.ordinary, strict=True) if ordinary
        ]
        logs = best.log_softmax(0)
        return -sum(logs[word] for word in set(words)) / len(words)


def texts_of(pool: str) -> list[MaskedText]:
    """Three texts as BERT's tokenizer would frame them, masked by chance."""
    chance = np.random.default_rng(5)
    masking = Masking(decoder_rows=6)
    vocabulary = MaskingVocabulary(
        np.ones(60, bool), np.zeros(60, bool), np.isin(np.arange(60), [2, 3]), 4
    )
    made = []
    for n in (9, 6, 9):
        body = chance.integers(5, 60, n)
        if pool == "lmk":
            ids, marks = [2, *body[:4], 3, *body[4:], 3], [5, n + 2]
        else:
            ids, marks = [2, *body, 3], [0]
        made.append(masking(marked(ids, marks), vocabulary, chance))
    return made


def encoder_of(name: str) -> Any:
    shape: dict[str, Any] = {
        "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 24, "initializer_range": 0.5,
    }  # fmt: skip
    torch.manual_seed(3)
    if name == "bert":
        return transformers.BertModel(transformers.BertConfig(**shape)).double().eval()
    ends = {
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    return (
        transformers.ModernBertModel(transformers.ModernBertConfig(**shape, **ends)).double().eval()
    )


def made(name: str, objective: str, raw: bool = False) -> Pretraining:
    model = Plain(encoder_of(name))
    heads = catalog.PRETEXTS.load(objective)
    module = Pretraining(model, heads(model, HeadOptions(raw=raw, reach=24)))
    for parameter in module.heads.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double().eval()


@pytest.mark.parametrize(
    ("model", "pool", "block"),
    levels.pairs(
        model=[("bert", False), ("bert", True), ("modernbert", False)],
        pool=["cls", "lmk"],
        block=[None, 40],
    ),
)
def test_plain_loops_give_the_same(
    model: tuple[str, bool], pool: str, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where masks and logits exist a few rows at a time."""
    name, raw = model
    if block:
        monkeypatch.setattr(enhanced_decoder, "MASK_BLOCK", block)
        monkeypatch.setattr(prediction_head, "LOGITS_BLOCK", 2 * 60)
    module, texts = made(name, "dupmae", raw), texts_of(pool)
    loops = Loops(module, raw)
    mlm = torch.stack([term for text in texts for term in loops.mlm(text)])
    decoder = torch.stack([term for text in texts for term in loops.decoder(text)])
    bow = torch.stack([loops.bow(text) for text in texts])
    heads: Any = module.heads
    assert heads.counts(texts) == [len(mlm), len(decoder), len(bow)]
    wanted = torch.stack([mlm.sum(), decoder.sum(), bow.sum()])
    torch.testing.assert_close(module(texts), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tokens", [1, 20])
def test_packs_give_the_gradients_of_the_whole(tokens: int) -> None:
    found = []
    for budget in (10_000, tokens):
        module = made("bert", "dupmae")
        step = PretextStep(module.heads, Budget(module.model, budget))
        loss = step(module, PretrainBatch(0, ["a", "b", "c"], texts_of("lmk")))
        found.append((loss, {n: p.grad for n, p in module.named_parameters()}))
    (whole, wanted), (parts, gradients) = found
    assert float(parts.total) == pytest.approx(float(whole.total), rel=1e-6)
    assert set(whole.parts) == {"mlm", "decoder", "bow"}
    for name, gradient in wanted.items():
        if gradient is not None:
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-5, atol=1e-7)


def test_masks_of_a_decoder_do_not_grow_with_the_square_of_the_length() -> None:
    """What the backward pass keeps of attention is queries, keys and values."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        q, k, v = (torch.randn(2 * 300, 2, 4, requires_grad=True) for _ in range(3))
        seen = torch.rand(300, 300) < 0.5
        seen[:, 0] = True
        lengths = QueryKeyLengths(np.array([300, 300]), np.array([300, 300]))
        made = masked_attention(q, (k, v), lengths, lambda _, rows: seen[rows])
    assert sum(kept) < 300 * 300
    made.sum().backward()
    assert q.grad is not None


TITE = {"model_type": "tite", "kernel_sizes": [None, 2]}
OTHERS = ({"model_type": "bert"}, {"model_type": "m2-bert"})


@pytest.mark.parametrize("objective", ["mlm", "retromae", "dupmae"])
def test_a_tite_that_pools_predicts_no_masked_token(objective: str) -> None:
    for config in (*OTHERS, {"model_type": "tite"}):
        check_encoder(config, objective)
    with pytest.raises(UsageError, match="tite do not keep; use tite or tite-mae or tite-bow"):
        check_encoder(TITE, objective)


@pytest.mark.parametrize("objective", ["tite", "tite-mae", "tite-bow"])
def test_tites_objectives_are_tites(objective: str) -> None:
    check_encoder(TITE, objective)
    for config in OTHERS:
        with pytest.raises(UsageError, match="for models of the kind tite only"):
            check_encoder(config, objective)


def test_tites_losses_are_added_and_stand_alone(official: Official) -> None:
    model = Plain(official.read.encoder, one_vector=True)
    texts = [text._replace(seed=3 + i) for i, text in enumerate(official.read.texts)]
    sums = {}
    for objective in ("tite", "tite-mae", "tite-bow"):
        heads = catalog.PRETEXTS.load(objective)(model, HeadOptions())
        heads.load_state_dict(official.heads.state_dict(), strict=False)
        sums[objective] = Pretraining(model, heads.eval())(texts).detach()
    torch.testing.assert_close(sums["tite"], torch.cat([sums["tite-mae"], sums["tite-bow"]]))
