"""Tiny models with random weights, real tokenizers and a tiny collection, made offline in a folder.

Not a test module: `conftest.py` hands what is made here to the tests.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PretrainedConfig, PreTrainedTokenizerFast

WIDTH, LAYERS, HEADS = 32, 2, 4
VOCABULARY = 512
POSITIONS = 128
WINDOW = 16  # of the sliding-window models; ModernBERT reaches half of it to either side

WORDS = (
    "landmark pooling averages the states of special tokens after every chunk of a long document "
    "dense retrieval ranks passages by the dot product of vectors for a query while lexical search "
    "counts words rivers carry water from mountains to the sea birds migrate south in autumn and "
    "bakers knead bread before dawn copper conducts electricity better than iron or lead"
).split()
STRANGE = {
    "nfc": "caf\u00e9 cr\u00e8me br\u00fbl\u00e9e",
    "nfd": "cafe\u0301 cre\u0300me bru\u0302le\u0301e",
    "emoji": "the family \U0001f468\u200d\U0001f469\u200d\U0001f467 waves \U0001f44b\U0001f3fd at you",
    "rtl": "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645 \u05e9\u05dc\u05d5\u05dd",
    "cjk": "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002\u4f60\u597d\u4e16\u754c",
    "separators": "one\u2028two\u2029three\x85four",
}


def sentence(number: int, length: int) -> str:
    """`length` words that depend on `number` alone."""
    return " ".join(WORDS[(number * 7 + i * (number % 11 + 1)) % len(WORDS)] for i in range(length))


TEXTS = [sentence(number, 5 + number % 40) for number in range(80)] + list(STRANGE.values())
LEARNED = Path(__file__).resolve().parent / "fixtures" / "tokenizers"


def learned(name: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer of a file in the fixtures, which is made by `train` if it is missing.

    WordPiece and Unigram trainers go through hash maps in another order in each process, and then learn other
    pieces. A seed could not reproduce a failure if each run trained its own. To change a tokenizer, remove
    its file.
    """
    path = LEARNED / f"{name}.json"
    if not path.exists():
        train().save(str(path), pretty=False)
    return Tokenizer.from_file(str(path))


def wordpiece(*, markers: bool = True) -> PreTrainedTokenizerFast:
    """BERT's kind: [CLS] text [SEP]; without `markers` there is nothing around the text."""

    def train() -> Tokenizer:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(
            vocab_size=VOCABULARY, special_tokens=special, show_progress=False
        )
        tokenizer.train_from_iterator(TEXTS, trainer)
        return tokenizer

    tokenizer = learned("wordpiece", train)
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    if markers:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_bpe(template: str = "<s> $A </s>", pad: str = "<pad>") -> PreTrainedTokenizerFast:
    """GPT-2's kind of vocabulary; the template as in RoBERTa, or '$A' as in most decoders."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token=pad
    )


def roberta_bpe() -> PreTrainedTokenizerFast:
    """The byte-level one with RoBERTa's names for its ends."""
    tokenizer = byte_bpe()
    tokenizer.cls_token, tokenizer.sep_token = "<s>", "</s>"
    return tokenizer


class Kind(NamedTuple):
    """An architecture: its configuration, its tokenizer, and whether lmk may run it packed."""

    config: Callable[[], PretrainedConfig]
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    packs: bool


def _shape(**more: object) -> dict[str, object]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3,  # large weights, so that wrong attention shows
        **more,
    }


def _modernbert() -> PretrainedConfig:
    return transformers.ModernBertConfig(
        **_shape(
            num_hidden_layers=3,
            max_position_embeddings=4096,
            global_attn_every_n_layers=3,
            local_attention=WINDOW,
            initializer_cutoff_factor=20.0,
            pad_token_id=0, cls_token_id=2, bos_token_id=2, sep_token_id=3, eos_token_id=3,
        )
    )  # fmt: skip


def _distilbert() -> PretrainedConfig:
    return transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=2 * WIDTH,
        max_position_embeddings=POSITIONS, initializer_range=0.3, pad_token_id=0,
    )  # fmt: skip


def _decoder(kind: type[PretrainedConfig], **more: object) -> PretrainedConfig:
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    return kind(**_shape(num_key_value_heads=2, **(ends | more)))


KINDS: dict[str, Kind] = {
    "bert": Kind(lambda: transformers.BertConfig(**_shape()), wordpiece, True),
    "roberta": Kind(
        lambda: transformers.XLMRobertaConfig(
            **_shape(pad_token_id=1, max_position_embeddings=POSITIONS + 2, type_vocab_size=1)
        ),
        roberta_bpe,
        True,
    ),
    "modernbert": Kind(_modernbert, wordpiece, True),
    "distilbert": Kind(_distilbert, wordpiece, True),
    "mpnet": Kind(
        lambda: transformers.MPNetConfig(
            **_shape(pad_token_id=1, max_position_embeddings=POSITIONS + 2)
        ),
        roberta_bpe,
        False,
    ),
    "qwen2": Kind(
        lambda: _decoder(transformers.Qwen2Config), lambda: byte_bpe("$A"), True
    ),
    "mistral": Kind(
        lambda: _decoder(
            transformers.MistralConfig, sliding_window=WINDOW, max_position_embeddings=4096
        ),
        lambda: byte_bpe("<s> $A"),
        True,
    ),
    "markless": Kind(  # no special tokens
        lambda: transformers.BertConfig(**_shape()), lambda: wordpiece(markers=False), True
    ),
}  # fmt: skip


def save(folder: Path, name: str, seed: int = 7) -> Path:
    """A model folder of the kind `name`, with the same weights each time for a seed."""
    kind = KINDS[name]
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(kind.config())
    model.eval().save_pretrained(folder)
    kind.tokenizer().save_pretrained(folder)
    return folder


def save_masked(folder: Path, name: str) -> Path:
    """A masked-language model of the kind `name`, the same weights each time: a SPLADE folder of Naver."""
    kind = KINDS[name]
    torch.manual_seed(7)
    model = transformers.AutoModelForMaskedLM.from_config(kind.config())
    model.eval().save_pretrained(folder)
    kind.tokenizer().save_pretrained(folder)
    return folder


def collection(folder: Path, docs: int = 60, queries: int = 12) -> Path:
    """A BEIR folder; three documents are judged for each query, and two queries for nothing."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {
            "_id": f"d{i:03d}",
            "title": f"Title {i}" if i % 3 else "",
            "text": sentence(i, 5 + i % 50),
        }
        for i in range(docs - len(STRANGE))
    ]
    corpus += [{"_id": f"s-{name}", "title": "", "text": text} for name, text in STRANGE.items()]
    asked = [{"_id": f"q{i}", "text": sentence(i, 6)} for i in range(queries)]
    asked += [{"_id": f"extra{i}", "text": sentence(40 + i, 4)} for i in range(2)]
    rows = [
        f"q{i}\t{corpus[(i + 13 * j) % docs]['_id']}\t{2 - j // 2}" for i in range(queries) for j in range(3)
    ]  # fmt: skip
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", asked)
    text = "query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n"
    (folder / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
    return folder


def write_jsonl(path: Path, records: list[dict[str, str]]) -> None:
    """One record a line, in UTF-8."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")
