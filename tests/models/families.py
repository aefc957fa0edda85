"""Tiny replicas of the model families that people use for retrieval, in real folder layouts.

Each family is a row: its configuration, its kind of tokenizer, how lmk runs it, and public models of it.
`test_conformance.py` compares each row with sentence-transformers, and docs/reference.py makes a page of it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests import tiny

SIZE, WIDTH = 424, 32
_SHAPE = {
    "vocab_size": SIZE, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 128, "initializer_range": 0.2,
}  # fmt: skip
_DECODER = _SHAPE | {
    "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


_SPECIAL = ("<pad>", "<s>", "</s>")
FAIRSEQ = ("<s>", "<pad>", "</s>")  # RoBERTa's order, so that its positions start at 2


def unigram(special: tuple[str, ...] = _SPECIAL) -> PreTrainedTokenizerFast:
    """SentencePiece's kind: T5, XLM-R, ALBERT and DeBERTa; pieces of letters and words."""
    words = sorted({f"▁{word}" for word in tiny.WORDS})
    letters = sorted({letter for text in tiny.TEXTS for letter in text if letter.isprintable()})
    pieces = [(piece, 0.0) for piece in (*special, "<unk>", "<mask>")] + [("▁", -3.0)]
    pieces += [(word, -4.0) for word in words]
    pieces += [(letter, -8.0) for letter in letters if letter != " "]
    tokenizer = Tokenizer(models.Unigram(pieces[:SIZE], unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[(name, special.index(name)) for name in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", mask_token="<mask>", cls_token="<s>", sep_token="</s>",
    )  # fmt: skip


def byte_level(
    template: str = "$A </s>", pad: str | None = "<pad>", special: tuple[str, ...] = _SPECIAL
) -> PreTrainedTokenizerFast:
    """GPT-2's kind: every byte has a token, so that white space has tokens too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tiny.TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, special.index(name)) for name in ("<s>", "</s>")]
    )
    padding = {"pad_token": pad} if pad else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **padding
    )


def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind, with its lower case."""
    tokenizer = tiny.wordpiece()
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    return tokenizer


class Family(NamedTuple):
    """A row: `runs` is packed, padded or equal (only inputs of equal lengths run together)."""

    config: Callable[[], Any]
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    runs: str
    public: str
    model: str = "AutoModel"
    left: bool = False  # whether public models pad at the left


def _of(name: str, shape: dict[str, Any] = _SHAPE, **more: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, name)(**(shape | more))


_BIG = {"vocab_size": tiny.VOCABULARY}  # the vocabulary of `tiny.wordpiece`
_T5 = {
    "vocab_size": SIZE, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "pad_token_id": 0,
}  # fmt: skip
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
_LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 5.0, 7.0],
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
_GQA = {key: value for key, value in _DECODER.items() if key != "head_dim"}
_ONE_KV = {key: value for key, value in _GQA.items() if key != "num_key_value_heads"}
_GPT = {"vocab_size": SIZE, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}


_FAIRSEQ_IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}


def _roberta_tokens() -> PreTrainedTokenizerFast:
    return byte_level("<s> $A </s>", special=FAIRSEQ)


def _xlmr_tokens() -> PreTrainedTokenizerFast:
    return unigram(FAIRSEQ)


def _decoder_tokens() -> PreTrainedTokenizerFast:
    """GPT-2's tokens: nothing around a text, and no token of its own for padding."""
    return byte_level("$A", "</s>")


FAMILIES: dict[str, Family] = {
    "BERT": Family(_of("BertConfig", **_BIG), wordpiece, "packed", "all-MiniLM-L6-v2, bge, e5, gte"),
    "DistilBERT": Family(
        _of(
            "DistilBertConfig", {}, dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=48, pad_token_id=0,
            max_position_embeddings=128, initializer_range=0.2, **_BIG,
        ),
        wordpiece, "packed", "msmarco-distilbert, distiluse",
    ),
    "RoBERTa": Family(
        _of("RobertaConfig", **_FAIRSEQ_IDS), _roberta_tokens, "packed", "all-distilroberta, simcse",
    ),
    "XLM-R": Family(
        _of("XLMRobertaConfig", **_FAIRSEQ_IDS), _xlmr_tokens, "packed",
        "bge-m3, multilingual-e5, arctic-embed-l-v2",
    ),
    "XLM-R XL": Family(
        _of("XLMRobertaXLConfig", **_FAIRSEQ_IDS), _xlmr_tokens, "packed", "XLM-R XL and XXL encoders"
    ),
    "data2vec": Family(
        _of("Data2VecTextConfig", **_FAIRSEQ_IDS), _roberta_tokens, "packed", "data2vec-text encoders"
    ),
    "I-BERT": Family(
        _of("IBertConfig", **_FAIRSEQ_IDS), _roberta_tokens, "padded", "ibert-roberta encoders"
    ),
    "MPNet": Family(_of("MPNetConfig", pad_token_id=1), _xlmr_tokens, "padded", "all-mpnet-base-v2"),
    "DeBERTa": Family(
        _of("DebertaV2Config", relative_attention=True, position_biased_input=False,
            pos_att_type=["p2c", "c2p"]),
        unigram, "padded", "deberta-v3 encoders",
    ),
    "DeBERTa v1": Family(
        _of("DebertaConfig", relative_attention=True, position_biased_input=False,
            pos_att_type=["p2c", "c2p"]),
        lambda: byte_level("<s> $A </s>"), "padded", "deberta-base encoders",
    ),
    "CamemBERT": Family(
        _of("CamembertConfig", **_FAIRSEQ_IDS), _xlmr_tokens, "packed",
        "sentence-camembert",
    ),
    "ERNIE": Family(_of("ErnieConfig", **_BIG), wordpiece, "packed", "ERNIE encoders"),
    "RoFormer": Family(
        _of("RoFormerConfig", embedding_size=WIDTH, **_BIG), wordpiece, "padded", "RoFormer encoders"
    ),
    "EuroBERT": Family(
        _of("EuroBertConfig", _DECODER), lambda: byte_level("<s> $A </s>"), "packed", "EuroBERT"
    ),
    "GTE (new)": Family(
        _of("GteConfig", **_BIG), wordpiece, "packed", "gte-base-en-v1.5, arctic-embed-m-v2"
    ),
    "Longformer": Family(
        _of("LongformerConfig", attention_window=[8, 8], **_FAIRSEQ_IDS),
        _roberta_tokens, "padded", "Longformer encoders",
    ),
    "XLNet": Family(
        _of("XLNetConfig", {}, vocab_size=SIZE, d_model=WIDTH, n_layer=2, n_head=4, d_inner=48,
            initializer_range=0.2, pad_token_id=0),
        unigram, "padded", "XLNet encoders",
    ),
    "ELECTRA": Family(
        _of("ElectraConfig", embedding_size=16, **_BIG), wordpiece, "packed", "ELECTRA retrievers"
    ),
    "ALBERT": Family(_of("AlbertConfig", embedding_size=16), unigram, "packed", "paraphrase-albert"),
    "ModernBERT": Family(
        _of("ModernBertConfig", pad_token_id=0, cls_token_id=2, bos_token_id=2, sep_token_id=3,
            eos_token_id=3, global_attn_every_n_layers=2, local_attention=16, **_BIG),
        wordpiece, "packed", "gte-modernbert-base, modernbert-embed",
    ),
    "NomicBERT": Family(_of("NomicBertConfig", **_BIG), wordpiece, "packed", "nomic-embed-text"),
    "JinaBERT v3": Family(
        _of("JinaEmbeddingsV3Config", pad_token_id=1), _xlmr_tokens, "packed", "jina-embeddings-v3"
    ),
    "T5": Family(
        _of("T5Config", _T5), unigram, "padded", "sentence-t5, gtr-t5, instructor", "T5EncoderModel"
    ),
    "T5 with decoder": Family(
        _of("T5Config", _T5), unigram, "padded", "t5 checkpoints", "T5ForConditionalGeneration"
    ),
    "mT5": Family(
        _of("MT5Config", _T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False), unigram,
        "padded", "mT5 encoders", "MT5EncoderModel",
    ),
    "UMT5": Family(_of("UMT5Config", _T5), unigram, "padded", "UMT5 encoders", "UMT5EncoderModel"),
    "LongT5": Family(
        _of("LongT5Config", _T5, local_radius=7), unigram, "padded", "LongT5 encoders",
        "LongT5EncoderModel",
    ),
    "LongT5, global": Family(
        _of("LongT5Config", _T5, local_radius=7, global_block_size=4,
            encoder_attention_type="transient-global"),
        unigram, "padded", "long-t5-tglobal encoders", "LongT5EncoderModel",
    ),
    "ESM": Family(
        _of("EsmConfig", pad_token_id=0, mask_token_id=4, position_embedding_type="rotary",
            token_dropout=True, **_BIG),
        wordpiece, "padded", "ESM-2 encoders of proteins",
    ),
    "FNet": Family(
        _of("FNetConfig", {}, hidden_size=WIDTH, num_hidden_layers=2, intermediate_size=48,
            max_position_embeddings=128, initializer_range=0.2, **_BIG),
        wordpiece, "equal", "FNet encoders",
    ),
    "Llama": Family(_of("LlamaConfig", _DECODER), byte_level, "packed", "RepLLaMA, NV-Embed's base"),
    "Llama, dynamic rope": Family(
        _of("LlamaConfig", _DECODER, max_position_embeddings=32, rope_scaling=_DYNAMIC),
        byte_level, "packed", "long-context Llamas",
    ),
    "Llama, yarn": Family(
        _of("LlamaConfig", _DECODER, rope_scaling=_YARN), byte_level, "packed", "yarn Llamas"
    ),
    "Mistral": Family(
        _of("MistralConfig", _DECODER, sliding_window=16), lambda: byte_level("<s> $A </s>"), "packed",
        "e5-mistral, SFR-Embedding", left=True,
    ),
    "Qwen2": Family(_of("Qwen2Config", _DECODER), byte_level, "packed", "gte-Qwen2", left=True),
    "Qwen3": Family(_of("Qwen3Config", _DECODER), byte_level, "packed", "Qwen3-Embedding", left=True),
    "Gemma": Family(_of("GemmaConfig", _DECODER), lambda: byte_level("<s> $A"), "packed", "Gemma"),
    "EmbeddingGemma": Family(
        _of("Gemma3TextConfig", _DECODER, use_bidirectional_attention=True, sliding_window=16,
            layer_types=["sliding_attention", "full_attention"]),
        lambda: byte_level("<s> $A </s>"), "packed", "embeddinggemma-300m",
    ),
    "EmbeddingGemma 2": Family(
        _of("EmbeddingGemma2TextConfig", _DECODER, embedding_dim=WIDTH, hidden_size=24,
            global_head_dim=8, hidden_size_per_layer_input=8, sliding_window=16,
            layer_types=["sliding_attention", "full_attention"]),
        lambda: byte_level("<s> $A </s>"), "packed", "its text encoder",
    ),
    "CodeGen": Family(
        _of("CodeGenConfig", _GPT, n_positions=128, rotary_dim=4), byte_level, "packed", "CodeGen"
    ),
    "RWKV": Family(
        _of("RwkvConfig", {}, vocab_size=SIZE, hidden_size=WIDTH, num_hidden_layers=2,
            context_length=128),
        byte_level, "padded", "RWKV",
    ),
    "Phi-3, longrope": Family(
        _of("Phi3Config", {k: v for k, v in _DECODER.items() if k != "head_dim"},
            original_max_position_embeddings=32, rope_scaling=_LONG),
        byte_level, "packed", "Phi-3 and Phi-4 embedders",
    ),
    "Granite": Family(
        _of("GraniteConfig", {k: v for k, v in _DECODER.items() if k != "head_dim"}), byte_level, "packed",
        "Granite decoders",
    ),
    "GPT-2": Family(
        _of("GPT2Config", {}, vocab_size=SIZE, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=128,
            initializer_range=0.2),
        lambda: byte_level("$A", "</s>"), "packed", "GPT-2",
    ),
    "GPT-Neo": Family(
        _of("GPTNeoConfig", {}, vocab_size=SIZE, hidden_size=WIDTH, num_layers=2, num_heads=4,
            attention_types=[[["global", "local"], 1]], window_size=16, max_position_embeddings=128,
            initializer_range=0.2, bos_token_id=2, eos_token_id=2),
        _decoder_tokens, "padded", "SGPT-125M, SGPT-1.3B",
    ),
    "GPT-J": Family(
        _of("GPTJConfig", _GPT, n_positions=128, rotary_dim=4), _decoder_tokens, "packed", "SGPT-5.8B"
    ),
    "GPT-NeoX": Family(
        _of("GPTNeoXConfig", _SHAPE, rotary_pct=0.5, bos_token_id=2, eos_token_id=2), _decoder_tokens,
        "packed", "Pythia",
    ),
    "BLOOM": Family(
        _of("BloomConfig", {}, vocab_size=SIZE, hidden_size=WIDTH, n_layer=2, n_head=4,
            initializer_range=0.2),
        byte_level, "padded", "sgpt-bloom",
    ),
    "OPT": Family(
        _of("OPTConfig", {}, vocab_size=SIZE, hidden_size=WIDTH, word_embed_proj_dim=WIDTH,
            num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, max_position_embeddings=128,
            init_std=0.2, pad_token_id=0),
        lambda: byte_level("</s> $A"), "packed", "OPT",
    ),
    "Llama, linear rope": Family(
        _of("LlamaConfig", _DECODER, rope_scaling=_LINEAR), byte_level, "packed", "long-context Llamas"
    ),
    "Llama, llama3 rope": Family(
        _of("LlamaConfig", _DECODER, rope_scaling=_LLAMA3), byte_level, "packed",
        "Llama 3.1 and 3.2, llama-embed-nemotron",
    ),
    "Gemma 2": Family(
        _of("Gemma2Config", _DECODER, sliding_window=16, query_pre_attn_scalar=8),
        lambda: byte_level("<s> $A </s>"), "padded", "bge-multilingual-gemma2", left=True,
    ),
    "MiniCPM 3": Family(
        _of("MiniCPM3Config", _ONE_KV, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8,
            qk_rope_head_dim=4, v_head_dim=8),
        byte_level, "packed", "MiniCPM-Embedding",
    ),
    "OLMo 2": Family(_of("Olmo2Config", _GQA), byte_level, "packed", "OLMo"),
    "SmolLM 3": Family(_of("SmolLM3Config", _GQA), byte_level, "packed", "SmolLM3"),
    "Phi": Family(_of("PhiConfig", _GQA), byte_level, "packed", "Phi-2"),
    "StableLM": Family(_of("StableLmConfig", _GQA), byte_level, "padded", "StableLM"),
    "Falcon": Family(
        _of("FalconConfig", {}, vocab_size=SIZE, hidden_size=WIDTH, num_hidden_layers=2,
            num_attention_heads=4, initializer_range=0.2),
        byte_level, "padded", "Falcon",
    ),
}  # fmt: skip


def save(folder: Path, name: str, seed: int = 5, dtype: str = "float32", **how: Any) -> Path:
    """Write the encoder and the tokenizer of a family; the same weights each time, in this dtype."""
    family = FAMILIES[name]
    torch.manual_seed(seed)
    kind = getattr(transformers, family.model)
    config = family.config()
    model = kind.from_config(config) if family.model == "AutoModel" else kind(config)
    model.eval().to(getattr(torch, dtype)).save_pretrained(folder, **how)
    tokenizer = family.tokenizer()
    if family.left:
        tokenizer.padding_side = "left"
    tokenizer.save_pretrained(folder)
    return folder


def add_pooling(folder: Path, mode: str | list[str], length: int | None, **more: Any) -> Path:
    """Add the files of sentence-transformers: Transformer, Pooling, and the settings in `more`.

    `before` and `modules` are the paths and kinds of modules before and after Pooling.
    """
    before, after = more.get("before", ()), more.get("modules", ())
    modules = [("", "Transformer"), *before, ("1_Pooling", "Pooling"), *after]
    (folder / "1_Pooling").mkdir()
    marks_prompt = more.get("include_prompt", True)
    pooling = {"word_embedding_dimension": WIDTH, "include_prompt": marks_prompt}
    _write(folder / "1_Pooling/config.json", pooling | {"pooling_mode": mode})
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    _write(folder / "modules.json", listed)
    settings = {"max_seq_length": length, "do_lower_case": False} | more.get("settings", {})
    _write(folder / "sentence_bert_config.json", settings)
    declared = {"prompts": more.get("prompts", {}), "similarity_fn_name": "cosine"}
    _write(folder / "config_sentence_transformers.json", declared)
    return folder


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
