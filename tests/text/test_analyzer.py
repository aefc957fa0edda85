from pathlib import Path

import pytest
import regex
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.errors import DataError, UnknownName
from lmkcli.text.analyzer import LANGUAGES, Analyzer, read_stopwords


@pytest.mark.parametrize(
    ("language", "text", "terms"),
    [
        ("en", "The dog's cats' and O'Reilly’s", ["dog", "cat", "o'reilli"]),
        (
            "en",
            "3.14 1,000 example.com wi-fi R&D C++",
            "3.14 1,000 example.com wi fi r d c".split(),
        ),
        ("en", "end. Next 5. x", ["end", "next", "5", "x"]),
        ("und", "snake_case __init__ _ ''", ["snake_case", "__init__"]),
        ("und", "the dogs", ["the", "dogs"]),
        (
            "en",
            "ﬁne ｆｕｌｌ １２ co\u00adoperate ❤️ İstanbul",
            "fine full 12 cooper istanbul".split(),
        ),
        ("de", "Straße Häuser", ["strass", "haus"]),
        ("fr", "L’école d'été aujourd'hui", ["écol", "été", "aujourd'hui"]),
        ("tr", "IRMAK İrmak", ["ırmak", "irmak"]),
        ("hi", "पैंथर्स ने", ["पैंथर्स", "न"]),
        ("ar", "الكِتَابُ العـــربي", ["كتاب", "عرب"]),
        (
            "zh",
            "我爱北京 iPhone15手机, 3月 中",
            ["我爱", "爱北", "北京", "iphone15", "手机", "3", "月", "中"],
        ),
        ("en", "中.国 of 東京 towers", ["中", "国", "東京", "tower"]),
        ("ja", "タワーへ ﾀﾜｰ", ["タワ", "ワー", "ーへ", "タワ", "ワー"]),
        ("th", "ที่ดี", ["ที่ดี"]),
        ("th", "ภาษา", ["ภา", "าษ", "ษา"]),
        ("ko", "한국어는 좋다", ["한국", "국어", "어는", "좋다"]),
        ("en", "", []),
    ],
)
def test_terms(language: str, text: str, terms: list[str]) -> None:
    assert Analyzer(language)(text) == terms


def test_combining_marks_do_not_break_words() -> None:
    word = "हिन्दी"
    assert Analyzer("und")(f"{word} {word}") == [word, word]


def test_persian_joiners_do_not_break_words() -> None:
    assert Analyzer("fa")("می‌خواهم") == ["میخواهم"]


def test_every_stemmer_exists() -> None:
    assert {name for name in LANGUAGES.values() if name} <= set(Stemmer.algorithms())


def test_an_unknown_language_is_refused_with_similar_names() -> None:
    with pytest.raises(UnknownName, match="did you mean en"):
        Analyzer("eng")


def test_identities_differ_when_terms_do() -> None:
    english, german = Analyzer("en").identity(), Analyzer("de").identity()
    assert english == Analyzer("en").identity() != german
    assert english["stop_words_sha256"] != german["stop_words_sha256"]
    assert english["snowball"] == Stemmer.version()


@pytest.mark.parametrize(
    ("stemmer", "stopwords", "terms"),
    [
        ("", None, ["dog", "fli"]),
        ("none", None, ["dogs", "flying"]),
        ("german", None, ["dog", "flying"]),
        ("", "", ["the", "dog", "fli"]),
        ("none", "Flying o'er", ["the", "dogs"]),  # split and folded like texts
    ],
)
def test_stemmer_and_stop_words_can_be_chosen(
    stemmer: str, stopwords: str | None, terms: list[str]
) -> None:
    chosen = Analyzer("en", stemmer, stopwords)
    assert chosen("The dogs flying") == terms
    assert (chosen.identity() == Analyzer("en").identity()) == (not stemmer and stopwords is None)


def test_an_unknown_stemmer_is_refused_with_similar_names() -> None:
    with pytest.raises(UnknownName, match="did you mean porter"):
        Analyzer("en", "portr")


def test_stop_words_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeff# articles\nthe  # definite\n\na an\n", "utf-8")
    assert read_stopwords(path) == "the a an"
    path.write_text("# nothing\n")
    with pytest.raises(DataError, match="no stop words"):
        read_stopwords(path)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="cannot be read"):
        read_stopwords(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_stopwords(tmp_path / "nowhere.txt")


@given(st.text(), st.sampled_from(sorted(LANGUAGES)))
def test_every_term_contains_a_letter_or_a_digit(text: str, language: str) -> None:
    terms = Analyzer(language)(text)
    assert all(regex.search(r"[\p{L}\p{N}]", term) for term in terms)
    assert not any(c.isspace() for term in terms for c in term)


@given(st.text(), st.text())
def test_a_space_separates_texts(one: str, other: str) -> None:
    analyzer = Analyzer("und")
    assert analyzer(f"{one} {other}") == analyzer(one) + analyzer(other)
