"""Content tokens and their spans, for the three kinds of fast tokenizers, made offline."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Fast
from transformers import PreTrainedTokenizerFast

from lmkcli.errors import DataError
from lmkcli.models import tokenizer, tokenizer_folder
from lmkcli.models.model_folder import ModelFolder
from lmkcli.models.tokenizer import TextTokens, Tokenizer
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.pooling.table import SpecialTokens
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.text.sentences import sentence_spans
from tests import tiny

TEXTS = [
    "The cat sat on the mat. Dr. Smith saw it!  Did he? Yes.",
    "query: what is dense retrieval over documents of any length",
    "日本語のテキスト。中文也可以",
    "שלום עולם مرحبا بالعالم",
    "Käse café naïve Übergröße",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 and \U0001f1e9\U0001f1ea flags",
]
STRANGE = [
    *TEXTS,
    "",
    "   ",
    " \t\n leading and trailing \u2028 ",
    "e\u0301 composed \u00e9",
    "İSTANBUL ǅ ß",
    "x" * 300,
    "null \x00 byte",
    "「引用」！？。",
]
KINDS = ("wordpiece", "bytes", "unigram")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
Save = Callable[..., ModelFolder]


def wordpiece() -> Fast:
    fast = Fast(models.WordPiece(unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    fast.train_from_iterator(TEXTS, trainer)
    return fast


def byte_level() -> Fast:
    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    fast.train_from_iterator(TEXTS, trainer)
    return fast


def unigram() -> Fast:
    fast = Fast(models.Unigram())
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
    )
    fast.train_from_iterator(TEXTS * 3, trainer)
    return fast


MAKERS = {
    kind: partial(tiny.learned, f"strange-{kind}", train)
    for kind, train in {"wordpiece": wordpiece, "bytes": byte_level, "unigram": unigram}.items()
}


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Save a tokenizer of a kind with a template and names; return the folder."""

    def save(kind: str, template: str = "[CLS] $A [SEP]", **names: str) -> ModelFolder:
        fast = MAKERS[kind]()
        fast.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(name, fast.token_to_id(name)) for name in SPECIAL]
        )
        folder = tmp_path_factory.mktemp(kind)
        names = names or {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        PreTrainedTokenizerFast(
            tokenizer_object=fast, unk_token="[UNK]", pad_token="[PAD]", **names
        ).save_pretrained(folder)
        return ModelFolder(folder, kind, encoder=folder)

    return save


@pytest.fixture(scope="module")
def folders(save: Save) -> dict[str, ModelFolder]:
    return {kind: save(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, folders: dict[str, ModelFolder]) -> ModelFolder:
    return folders[request.param]


def opened(folder: ModelFolder, prompt: str = "", gran: str = "") -> Tokenizer:
    return open_tokenizer(folder, EncoderConfig("", "", "", prompt=prompt, gran=gran))


def cut(text: str, made: TextTokens) -> list[str]:
    return [text[a:b] for a, b in made.spans.tolist()]


def check(text: str, made: TextTokens) -> None:
    """Check that spans are in the text, in order, one per token."""
    assert made.ids.dtype == made.spans.dtype == made.prompt.dtype == np.int32
    assert made.spans.shape == (len(made.ids), 2)
    assert (made.spans >= 0).all()
    assert (made.spans <= len(text)).all()
    assert (made.spans[:, 0] <= made.spans[:, 1]).all()
    assert (np.diff(made.spans[:, 0]) >= 0).all()
    assert (np.diff(made.spans[:, 1]) >= 0).all()


def bytes_of(tokens: list[str]) -> bytes:
    """Return the bytes of byte-level tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    return bytes(table[letter] for token in tokens for letter in token)


def test_spans_are_in_order_in_the_text(folder: ModelFolder) -> None:
    tokenizer = opened(folder)
    for text, made in zip(STRANGE, tokenizer(STRANGE), strict=True):
        check(text, made)
        assert (len(made.prompt), made.ends) == (0, None)


def test_half_a_surrogate_pair_is_refused(folder: ModelFolder) -> None:
    """A '?' in its place would be another text."""
    tokenizer = opened(folder)
    for read in (tokenizer, tokenizer.contexts):
        with pytest.raises(DataError, match=r"half of a surrogate.*lone"):
            read(["green tea", "a lone \ud83d surrogate"])


def test_wordpieces_are_the_words_in_lower_case(folders: dict[str, ModelFolder]) -> None:
    tokenizer = opened(folders["wordpiece"])
    for text, made in zip(STRANGE, tokenizer(STRANGE), strict=True):
        for token, piece in zip(tokenizer.tokens(made.ids), cut(text, made), strict=True):
            if token != "[UNK]":
                bare = normalizers.BertNormalizer(lowercase=True).normalize_str(piece)
                assert bare.strip() == token.removeprefix("##")  # CJK comes with spaces


def test_bytes_equal_those_of_the_text(folders: dict[str, ModelFolder]) -> None:
    tokenizer = opened(folders["bytes"])
    for text, made in zip(STRANGE, tokenizer(STRANGE), strict=True):
        tokens = tokenizer.tokens(made.ids)
        assert bytes_of(tokens).decode() == text.strip()
        for token, piece in zip(tokens, cut(text, made), strict=True):
            assert bytes_of([token]).strip() in piece.encode()


def test_unigrams_are_pieces_of_the_text(folders: dict[str, ModelFolder]) -> None:
    tokenizer = opened(folders["unigram"])
    for text, made in zip(STRANGE, tokenizer(STRANGE), strict=True):
        for token, piece in zip(tokenizer.tokens(made.ids), cut(text, made), strict=True):
            if token != "[UNK]":
                assert token.strip("▁") in (piece.strip(), "")  # '▁' alone has the span of a letter


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gran", ["", "sentence"])
@given(text=st.text(), spaces=st.integers(0, 3))
def test_every_text_has_spans_in_order(
    folders: dict[str, ModelFolder], kind: str, gran: str, text: str, spaces: int
) -> None:
    text = " " * spaces + text
    [made] = prompted(folders[kind], gran)([text])
    check(text, made)


@cache
def prompted(folder: ModelFolder, gran: str) -> Tokenizer:
    return opened(folder, "query: ", gran)


def test_texts_are_stripped_and_spans_count_in_the_given_text(folder: ModelFolder) -> None:
    tokenizer = opened(folder)
    bare, led = tokenizer(["The cat sat.", " \n The cat sat. \u3000"])
    np.testing.assert_array_equal(bare.ids, led.ids)
    np.testing.assert_array_equal(bare.spans + 3, led.spans)


def test_a_text_does_not_depend_on_its_neighbours(folder: ModelFolder) -> None:
    tokenizer = opened(folder, "query: ")
    together = tokenizer(STRANGE)
    for text, made in zip(STRANGE, together, strict=True):
        [alone] = tokenizer([text])
        assert alone.ids.tolist() == made.ids.tolist()
        assert alone.spans.tolist() == made.spans.tolist()
    assert not tokenizer([])


@pytest.mark.parametrize("prompt", ["query: ", "Find what answers. \n", "q"])
def test_prompt_and_content_together_are_the_tokens_of_both(
    folder: ModelFolder, prompt: str
) -> None:
    """No token is lost or added, and content contains no token of the prompt only."""
    tokenizer = opened(folder, prompt)
    for text, made in zip(STRANGE, tokenizer(STRANGE), strict=True):
        whole = tokenizer.fast.encode(prompt + text.strip(), add_special_tokens=False)
        assert [*made.prompt, *made.ids] == whole.ids
        head = len(made.prompt)
        assert all(b <= len(prompt) for _, b in whole.offsets[:head])
        assert all(b > len(prompt) for _, b in whole.offsets[head:])
        check(text, made)


def test_a_token_of_prompt_and_text_is_content(folders: dict[str, ModelFolder]) -> None:
    """Without a space between them, prompt and text may share one: here 'queryable'."""
    [made] = opened(folders["wordpiece"], "doc")(["uments of any length"])
    assert cut("uments of any length", made)[0] == "uments"
    assert made.prompt.tolist() == []


def test_an_empty_text_with_a_prompt_has_no_content(folder: ModelFolder) -> None:
    for gran in ("", "sentence"):
        [made] = opened(folder, "query: what", gran)(["  "])
        assert len(made.prompt) > 0
        assert (len(made.ids), made.spans.shape) == (0, (0, 2))
        assert gran == "" or made.ends is not None


def test_sentences_are_tokenized_separately(folder: ModelFolder) -> None:
    text = " The cat  sat on the mat. Dr. Smith  saw it! Did he? Yes, he did.\nIt was. "
    tokenizer = opened(folder, "query: ", "sentence")
    [made] = tokenizer([text])
    assert made.ends is not None
    assert made.prompt.tolist() == tokenizer.fast.encode("query:", add_special_tokens=False).ids
    spans = sentence_spans(text)
    assert len(made.ends) == len(spans) == 5
    for start, end, (a, b) in zip([0, *made.ends[:-1]], made.ends, spans, strict=True):
        sentence = " ".join(text[a:b].split())
        assert (
            made.ids[start:end].tolist()
            == tokenizer.fast.encode(sentence, add_special_tokens=False).ids
        )
        assert (made.spans[start, 0], made.spans[end - 1, 1]) == (a, b)
    check(text, made)


def test_the_first_tokens_of_a_text(folder: ModelFolder) -> None:
    """With every splitter, ids, spans and chunks end there, and no chunk is empty."""
    for gran in ("", "sentence"):
        (text,) = opened(folder, "query: ", gran)([TEXTS[0]])
        total = len(text.ids)
        for tokens in range(1, total + 3):
            first = text.first(tokens)
            assert first.ids.tolist() == text.ids[:tokens].tolist()
            assert first.spans.tolist() == text.spans[:tokens].tolist()
            assert first.prompt.tolist() == text.prompt.tolist()
            if text.ends is None:
                assert first.ends is None
                continue
            assert first.ends is not None
            before = [end for end in text.ends.tolist() if end < tokens]
            assert first.ends.tolist() == [*before, *([tokens] if tokens < total else [])] or (
                tokens >= total and first.ends.tolist() == text.ends.tolist()
            )


def test_a_text_that_loses_a_tenth_is_one_sentence(folder: ModelFolder) -> None:
    """The official rule: if sentences make up less than nine tenths of the text."""
    text = "One. " + " " * 40 + "Two."
    [made] = opened(folder, gran="sentence")([text])
    assert made.ends is not None
    assert made.ends.tolist() == [len(made.ids)]
    assert [made.spans[0, 0], made.spans[-1, 1]] == [0, len(text)]


def test_sentences_of_unusual_texts_end_at_chunk_ends(folder: ModelFolder) -> None:
    for text, made in zip(STRANGE, opened(folder, gran="sentence")(STRANGE), strict=True):
        check(text, made)
        assert made.ends is not None
        assert made.ends.dtype == np.int32
        assert (np.diff([0, *made.ends]) > 0).all()
        assert (made.ends[-1] if len(made.ends) else 0) == len(made.ids)


def test_spans_count_collapsed_spaces(folders: dict[str, ModelFolder]) -> None:
    text = "The   cat     sat  on   the mat."
    [made] = opened(folders["wordpiece"], gran="sentence")([text])
    words = "".join(cut(text, made))
    assert words == "Thecatsatonthemat."


def test_lower_case_comes_before_the_normalizer(save: Save) -> None:
    plain = save("bytes")
    lower = ModelFolder(plain.path, "lower", encoder=plain.encoder, lower_case=True)
    one, other = opened(plain), opened(lower)
    assert one(["The CAT"])[0].ids.tolist() != one(["the cat"])[0].ids.tolist()
    assert other(["The CAT"])[0].ids.tolist() == one(["the cat"])[0].ids.tolist()
    text = "İSTANBUL ÀB"
    [made] = other([text])
    check(text, made)
    assert made.spans[-1].tolist()[1] == len(text)


def test_truncation_and_padding_of_the_file_are_switched_off(save: Save) -> None:
    folder = save("wordpiece")
    fast = Fast.from_file(str(folder.encoder / "tokenizer.json"))
    fast.enable_truncation(4)
    fast.enable_padding(length=16)
    fast.save(str(folder.encoder / "tokenizer.json"))
    short, long = opened(folder)(["cat", "the cat sat on the mat " * 50])
    assert len(short.ids) < 10
    assert len(long.ids) > 200


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("template", "names", "append", "expected"),
    [
        (
            "[CLS] $A [SEP]",
            {"cls_token": "[CLS]", "sep_token": "[SEP]"},
            False,
            ((2,), (3,), 2, 3, 3),
        ),
        ("[CLS] $A", {"bos_token": "[CLS]", "eos_token": "[SEP]"}, False, ((2,), (), 2, 3, 0)),
        ("[CLS] $A", {"bos_token": "[CLS]", "eos_token": "[SEP]"}, True, ((2,), (3,), 2, 3, 0)),
        ("$A [SEP]", {"eos_token": "[SEP]"}, True, ((), (3,), None, 3, 0)),
        ("$A", {"eos_token": "[SEP]"}, False, ((), (), None, 3, 0)),
        ("$A", {"bos_token": "[CLS]"}, True, ((), (), 2, None, 0)),
    ],
)
def test_special_tokens_follow_the_template_of_the_tokenizer(
    save: Save, kind: str, template: str, names: dict[str, str], append: bool, expected: Any
) -> None:
    side = EncoderConfig("", "", "", append_eos=append)
    tokenizer = open_tokenizer(save(kind, template, **names), side)
    ids = [tokenizer.fast.token_to_id(name) for name in SPECIAL]

    def real(value: Any) -> Any:
        return tuple(map(real, value)) if isinstance(value, tuple) else value and ids[value]

    assert tokenizer.special == SpecialTokens(*map(real, expected))


def test_a_prefix_token_follows_cls(save: Save) -> None:
    """The prefix tokens of late interaction, as in PyLate."""
    folder = save(KINDS[0], "[CLS] $A [SEP]", cls_token="[CLS]", sep_token="[SEP]")
    special = open_tokenizer(folder, EncoderConfig("", "", "", prefix_token=7)).special
    assert special.prefix == (special.cls, 7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_feed_is_white_space_without_given_chunks(save: Save, kind: str) -> None:
    """Some normalizers would delete it and join the words."""
    tokenizer = open_tokenizer(save(kind, "$A"), EncoderConfig("", "", ""))
    one, other = tokenizer(["cat\fsat", "cat sat"])
    assert one.ids.tolist() == other.ids.tolist()
    assert one.spans.tolist() == other.spans.tolist()


def test_a_slow_tokenizer_is_refused(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        is_fast = False

    monkeypatch.setattr(tokenizer_folder.AutoTokenizer, "from_pretrained", lambda *_, **__: Slow())
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        opened(folder)


def test_a_folder_without_a_tokenizer_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "modernbert"}')
    with pytest.raises(DataError, match="bare cannot be loaded"):
        opened(ModelFolder(tmp_path, "bare", encoder=tmp_path))


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "mpnet", "deberta-v2", "t5", "gpt2"])
def test_a_tokenizer_without_a_vocabulary_is_refused(tmp_path: Path, kind: str) -> None:
    """transformers would invent a vocabulary in which every word is unknown."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(DataError, match="bare has no vocabulary"):
        opened(ModelFolder(tmp_path, "bare", encoder=tmp_path))


def test_tokens_have_names(folder: ModelFolder) -> None:
    tokenizer = opened(folder)
    cls = tokenizer.special.cls
    assert tokenizer.tokens(np.array([cls, 10**6], np.int32)) == ["[CLS]", "<1000000>"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model", "unk_token"), "nope"),  # fails at the first unknown word
        (("post_processor", "special_tokens"), {}),  # panics
    ],
)
def test_a_tokenizer_that_fails_later_is_a_data_error(
    tiny_model: Callable[[str], Path], tmp_path: Path, place: tuple[str, str], value: Any
) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "model")
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings[place[0]][place[1]] = value
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    side = EncoderConfig("", "", str(folder))
    with pytest.raises(DataError, match="tokenize"):
        open_tokenizer(ModelFolder(folder, "model", encoder=folder), side)(["\u0e01"])


@pytest.mark.parametrize("token", ["", "\ud800"])
def test_an_impossible_unknown_token_is_a_data_error(
    tiny_model: Callable[[str], Path], tmp_path: Path, token: str
) -> None:
    """transformers looks up the id of an empty unknown token without end."""
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"unk_token": token}))
    side = EncoderConfig("", "", str(folder))
    with pytest.raises(DataError, match="tokenizer of model "):
        open_tokenizer(ModelFolder(folder, "model", encoder=folder), side)


def test_without_spans_the_ids_are_the_same(folder: ModelFolder) -> None:
    tokenizer = opened(folder)
    with_spans, without = tokenizer(STRANGE), replace(tokenizer, spans=False)(STRANGE)
    assert [text.ids.tolist() for text in with_spans] == [text.ids.tolist() for text in without]
    assert not len(without.spans)


# Spaces, letters and marks of several scripts: every kind of neighbours of a cut
PIECES = st.sampled_from([
    *(" ", "  ", "\n", "a", "B", "7", "_", ".", "'s", "\u0301", "\u00e9", "\u0130", "\u03a3"),
    *("\u00b4", "\ufb01", "\u4e2d", "\u0e33", "\u1100", "\u1161", "\u200d", "[SEP]"),
    *("<x>", "the cat", "\x00"),
])  # fmt: skip
LONG = st.lists(PIECES, min_size=1, max_size=60).map("".join)


class Recorder:
    """A tokenizer that notes the longest text that it gets."""

    def __init__(self, fast: Any) -> None:
        self.fast, self.longest = fast, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fast, name)

    def encode_batch(self, texts: list[str], **more: Any) -> Any:
        self.longest = max(self.longest, sum(map(len, texts)))
        return self.fast.encode_batch(texts, **more)

    def encode_batch_fast(self, texts: list[str], **more: Any) -> Any:
        self.longest = max(self.longest, sum(map(len, texts)))
        return self.fast.encode_batch_fast(texts, **more)


def same(first: TextTokens, second: TextTokens) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("ids", "spans", "prompt")
    )


def with_rules(fast: Fast, normalizer: Any, splitter: Any, processor: Any) -> Fast:
    """A copy of a tokenizer with other rules."""
    copy = Fast.from_str(fast.to_str())
    copy.normalizer, copy.pre_tokenizer = normalizer, splitter
    if processor is not None:
        copy.post_processor = processor
    return copy


N, P, T = normalizers, pre_tokenizers, processors
RULES: dict[str, tuple[str, Any, Any, Any]] = {
    "bert": ("wordpiece", N.BertNormalizer(), P.BertPreTokenizer(), None),
    "cased": ("wordpiece", N.BertNormalizer(lowercase=False), P.BertPreTokenizer(), None),
    "words": ("wordpiece", N.Sequence([N.NFKC(), N.Lowercase()]), P.Whitespace(), None),
    "accents": ("wordpiece", N.Sequence([N.NFD(), N.StripAccents()]), P.WhitespaceSplit(), None),
    "bytes": ("bytes", N.NFC(), P.ByteLevel(add_prefix_space=False), T.ByteLevel(add_prefix_space=False)),
    "prefix": ("bytes", None, P.ByteLevel(), T.ByteLevel()),
    "digits": ("bytes", None, P.Sequence([P.Digits(True), P.ByteLevel(add_prefix_space=False)]), None),
    "unigram": ("unigram", None, P.Metaspace(), None),
    "first": ("unigram", N.NFKC(), P.Metaspace(prepend_scheme="first"), None),
    "both": ("unigram", None, P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), None),
    "whole": ("unigram", None, P.Metaspace(split=False), None),
    "strip": ("wordpiece", N.Strip(), P.BertPreTokenizer(), None),
    "replace": ("wordpiece", N.Replace(" a", "b c"), P.BertPreTokenizer(), None),
}  # fmt: skip
WHOLE = {"whole", "strip", "replace"}  # rules that do not work word by word


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("spans", [True, False])
@given(text=LONG)
def test_the_parts_of_a_long_text_have_the_tokens_of_the_whole(
    rules: str, spans: bool, text: str
) -> None:
    kind, *parts = RULES[rules]
    fast = with_rules(MAKERS[kind](), *parts)
    made = Tokenizer(fast, SpecialTokens(), spans=spans)
    prompted = replace(made, prompt="the a ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "CHARACTERS", 1 << 20)
        whole = [*made([text, "a b"]), *prompted([text])]
        patch.setattr(tokenizer, "CHARACTERS", 3)
        cut = [*made([text, "a b"]), *prompted([text])]
    assert all(same(*each) for each in zip(whole, cut, strict=True))


def test_the_last_part_of_a_long_text_is_tokenized_with_the_next_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spans count from the start of their own text: the part moves by its place, the next text does not."""
    made = Tokenizer(MAKERS["wordpiece"](), SpecialTokens())
    texts = ["the cat sat on the mat", "a b", "the cat"]
    whole = [*made(texts)]
    monkeypatch.setattr(tokenizer, "CHARACTERS", 12)
    assert all(same(*each) for each in zip(whole, made(texts), strict=True))


@pytest.mark.parametrize("rules", RULES)
def test_a_long_text_is_tokenized_in_parts(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes about 100 bytes for each character of a text."""
    monkeypatch.setattr(tokenizer, "CHARACTERS", 1000)
    kind, *parts = RULES[rules]
    recorder = Recorder(with_rules(MAKERS[kind](), *parts))
    text = "the cat sat on the mat " * 1000
    Tokenizer(recorder, SpecialTokens(), spans=False)([text])
    assert (recorder.longest > 1100) == (rules in WHOLE)
    for gran in ("", "sentence"):
        recorder.longest = 0
        Tokenizer(recorder, SpecialTokens(), splitter=gran)([text.replace("mat", "mat. The")])
        assert (recorder.longest > 1100) == (rules in {*WHOLE, "prefix"} and not gran)


@pytest.mark.parametrize(
    "more",
    [{"rstrip": True}, {"lstrip": True}, {"single_word": True}, {"content": "x a"}],
    ids=lambda more: next(iter(more)),
)
@given(text=LONG)
def test_added_tokens_do_not_change_at_cuts(more: dict[str, Any], text: str) -> None:
    fast = MAKERS["wordpiece"]()
    fast.add_tokens([AddedToken(**{"content": "<x>", "normalized": False, **more})])
    made = Tokenizer(fast, SpecialTokens())
    text = text.replace("B", " x a a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "CHARACTERS", 1 << 20)
        (whole,) = made([text])
        patch.setattr(tokenizer, "CHARACTERS", 2)
        (cut,) = made([text])
    assert same(whole, cut)


@pytest.mark.parametrize(
    "first",
    [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Metaspace(split=False, prepend_scheme="never"),
    ],
    ids=["bytes", "metaspace"],
)
def test_a_rule_that_replaces_spaces_before_they_are_found_makes_texts_whole(first: Any) -> None:
    space = first.pre_tokenize_str("a b")[0][0][1]
    letters = ["a", "b", space, f"a{space}", f"a{space}b"]
    vocabulary = {token: number for number, token in enumerate(letters)}
    fast = Fast(models.BPE(vocab=vocabulary, merges=[("a", space), (f"a{space}", "b")]))
    fast.pre_tokenizer = pre_tokenizers.Sequence([first, pre_tokenizers.WhitespaceSplit()])
    made = Tokenizer(fast, SpecialTokens(), spans=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "CHARACTERS", 1)
        (tokens,) = made(["a b"])
    assert made.tokens(tokens.ids) == [f"a{space}b"]
