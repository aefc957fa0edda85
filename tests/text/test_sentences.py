"""Sentences: the official cases, a literal implementation of the rules, spans, and linear time."""

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from lmkcli.errors import UsageError
from lmkcli.text.sentences import languages, sentence_spans, split

WORDS = [*"Mr etc U.S Ph.D No pp A b 12 é 中 x-y a@b % .A -".split()]
MARKS = [".", "..", "?", "!", " ", "   ", "\n", "\t", "\r", "\xa0", *"'\"()[]¿¡«»“”"]
texts = st.lists(st.sampled_from(WORDS + MARKS), max_size=40).map("".join)


def collapsed(text: str) -> str:
    return regex.sub(" +", " ", text)


def literal(text: str, always: set[str], numeric: set[str]) -> list[str]:
    """The rules implemented word by word, without spans and without regard to time."""
    opening, closing, upper = r"['\"(\[¿¡\p{Pi}]", r"['\")\]\p{Pf}]", r"[\p{Lu}\p{Lo}]"
    for before, after in (
        (r"[?!]", rf"{opening}*{upper}"),
        (r"\.\.+", rf"{opening}*{upper}"),
        (rf"[?!.] *{closing}+", rf"{opening}* *{upper}"),
        (r"[?!.]", rf"(?:(?!\(){opening})+ *{upper}"),
    ):
        text = regex.sub(rf"({before}) +({after})", "\\1\n\\2", text)
    words = regex.split(" +", text)
    for i, (word, following) in enumerate(pairwise(words)):
        end = regex.search(r"([\w.\-]*)((?:[%]|['\")\]\p{Pf}])*)\.+\Z", word)
        if not end or (end[1] in always and not end[2]):
            continue
        if regex.search(r"\.[\p{Lu}\p{Lo}\-]+\.+\Z", word):
            continue
        is_number = end[1] in numeric and not end[2] and following[:1] in set("0123456789")
        if regex.match(rf"{opening}*(?:{upper}|[0-9])", following) and not is_number:
            words[i] = word + "\n"
    lines = regex.sub(" *\n *", "\n", " ".join(words))
    return [collapsed(line) for line in lines.strip().split("\n")] if text else []


def test_official_cases(parity: Callable[[str], Path]) -> None:
    cases = json.loads(parity("lmk/splitter.json").read_text("utf-8"))
    assert len(cases) == 38
    for case in cases:
        assert split(case["text"], case["lang"]) == case["sentences"], case["text"]


@given(texts)
@example(".\" ' A")
@example('? "A')
@example("Mr... A (Mr). B Mr.). C")
@example("No. 5 No. A No). 5")
def test_agrees_with_a_literal_implementation(text: str) -> None:
    always = {"Mr", "etc", "Ph.D", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    assert split(text) == literal(text, always, {"No", "pp", "Art"})


@given(texts, st.sampled_from(["en", "de", "ru"]))
def test_spans_cover_the_sentences(text: str, language: str) -> None:
    spans = sentence_spans(text, language)
    sentences = [sentence for sentence in split(text, language) if sentence.strip()]
    assert [collapsed(text[start:end]) for start, end in spans] == sentences
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    assert not "".join(text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)).strip()


@given(st.text())
def test_any_text_keeps_its_characters(text: str) -> None:
    joined = "".join(text[start:end] for start, end in sentence_spans(text))
    assert "".join(joined.split()) == "".join(text.split())


def test_blank_text() -> None:
    assert split("") == []
    assert split("  ") == [""]
    assert sentence_spans("") == sentence_spans(" \n\t ") == []


def test_spans_point_into_the_original() -> None:
    text = "  One   two.  Three!\n\n Four  "
    assert sentence_spans(text) == [(2, 12), (14, 20), (23, 27)]
    assert split(text) == ["One two.", "Three!", "", "Four"]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("ca", "El Sr. Puig ve. Marxa."),
        ("cs", "Přišel 3. Května Ing. Novák. Odešel."),
        ("da", "Hr. Jensen kom 3. Maj. Han gik."),
        ("de", "Dr. Groß kam z. B. am 3. Mai. Er ging."),
        ("el", "Ο κ. Παπάς ήρθε. Έφυγε."),
        ("en", "Dr. Jones came. He left."),
        ("es", "La Sra. Ruiz vino. Salió."),
        ("fi", "Prof. Virtanen tuli. Hän lähti."),
        ("fr", "Mme. Petit vient. Elle part."),
        ("hu", "Dr. Nagy jött. Elment."),
        ("is", "Hr. Jón kom. Hann fór."),
        ("it", "Il Sig. Rossi viene. Parte."),
        ("lt", "Prof. Kazlauskas atėjo. Jis išėjo."),
        ("lv", "Prof. Bērziņš nāca. Viņš aizgāja."),
        ("nl", "Dhr. Jansen kwam. Hij ging."),
        ("no", "Hr. Hansen kom 3. Mai. Han gikk."),
        ("pl", "Prof. Nowak przyszedł. Wyszedł."),
        ("pt", "O Sr. Silva veio. Saiu."),
        ("ro", "Dl. Popescu vine. Pleacă."),
        ("ru", "Пришёл проф. Иванов. Он ушёл."),
        ("sk", "Prišiel Ing. Novák. Odišiel."),
        ("sl", "Prišel je dr. Novak. Odšel je."),
        ("sv", "Dr. Berg kom. Han gick."),
        ("tr", "Prof. Yılmaz geldi. Gitti."),
    ],
)
def test_every_language_has_an_abbreviated_title(language: str, text: str) -> None:
    assert len(split(text, language)) == 2
    assert language in languages()


def test_all_language_codes_of_the_original() -> None:
    known = "ca cs da de el en es fi fr hu is it lt lv nl no pl pt ro ru sk sl sv tr"
    assert languages() == known.split()


@pytest.mark.parametrize("language", ["xx", "", "../en", "EN"])
def test_an_unknown_language_is_refused_with_the_known_ones(language: str) -> None:
    with pytest.raises(UsageError, match=r"ca, cs, .*, tr"):
        sentence_spans("A text.", language)


@pytest.mark.parametrize(
    "unit", ["word ", "a", " ", ".", "'", "-", "a@", "A.", ".A", "? ", '." ', ". (", "a.\n", "中"]
)
def test_two_million_characters_take_linear_time(unit: str) -> None:
    text = "x. '" + unit * (2_000_000 // len(unit)) + "@."
    start = time.process_time()
    sentence_spans(text)
    assert time.process_time() - start < 10  # about 1; quadratic time would be hours
