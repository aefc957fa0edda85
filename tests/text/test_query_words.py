"""The words of a question that matter, in snippets and marks."""

import time

import pytest

from lmkcli.text.analyzer import Analyzer
from lmkcli.text.query_words import QueryWords

MANUAL = (
    "The tower stands on the hill. The gate is at the road, and the key is in the office of the farm. "
    "The staff of the site can open the doors of the tower. In the case of a fire, call the brigade. "
    "To start it, release the lock. To stop the turbines, press the red button at the base of the tower. "
) + "The wind turns it. " * 40


def test_a_snippet_follows_the_words_that_matter() -> None:
    """Not the stop words, which are everywhere; another form of a word counts too."""
    words = QueryWords("how can I stop the turbine")
    assert "stop the turbines" in words.snippet(MANUAL, 80)
    assert words.forms([MANUAL]) == ["stop", "turbines"]
    assert {MANUAL[begin:end] for begin, end, _ in words.spans(MANUAL)} == {"stop", "turbines"}


def test_rare_words_count_more_than_frequent_ones() -> None:
    weights = {"wind": 0.2, "brigad": 3.0}
    words = QueryWords("wind brigade", Analyzer("en"), weights)
    assert "brigade" in words.snippet(MANUAL, 80)
    assert words.forms([MANUAL]) == ["brigade"], "a word that is everywhere is not marked"
    assert words.coverage("wind") < 0.1 < 0.9 < words.coverage("the brigade")


def test_words_of_questions_do_not_count() -> None:
    assert QueryWords("how do I renew the certificate").coverage("Certificates: renew them.") == 1


def test_a_question_of_stop_words_keeps_them() -> None:
    assert QueryWords("who are you").weights
    assert QueryWords("").snippet("Some words.") == "Some words."
    assert QueryWords("").coverage("Some words.") == 0.0


def test_words_without_spaces_and_other_languages() -> None:
    words = QueryWords("点検はいつですか", Analyzer("ja"))
    assert words.coverage("保守点検は毎年四月に行われます") > 0
    german = QueryWords(
        "Wo ist der Schlüssel", Analyzer("de"), {"schlussel": 2.0, "der": 0.1, "ist": 0.1}
    )
    assert "schlüssel" in german.forms(["Der Schlüssel ist im Büro."])


def test_a_long_text_of_matches_takes_linear_time() -> None:
    started = time.process_time()
    assert QueryWords("turbine").snippet("turbine " * 200_000)
    # Copies of all later matches would take two minutes.
    assert time.process_time() - started < 40


def test_the_search_for_a_snippet_can_be_limited_to_the_start_of_a_text() -> None:
    words, text = QueryWords("turbine"), "a " * 1000 + "the turbine stops " + "b " * 1000
    assert "turbine" in words.snippet(text)
    assert "turbine" in words.snippet(text, most_read=2020)
    start = words.snippet(text, most_read=1900)
    assert start.startswith("a a")
    assert start.endswith("…")


@pytest.mark.parametrize(
    ("question", "text", "marked"),
    [
        ("北京", "北京是中国的首都，我爱北京。", ["北京", "北京"]),
        ("四川的山", "生活在四川的山里，四川tower", ["四川的山", "四川"]),
        ("ภาษาไทย", "เมืองหลวงของประเทศไทย", ["ไทย"]),
        ("서울", "서울에서 살다", ["서울"]),
        ("tower", "四川tower", ["tower"]),
        ("कहानी", "एक कहानी और", ["कहानी"]),
        ("5.00 by jane.doe", "5.00, not 5, by jane.doe and doe", ["5.00", "jane.doe"]),
        ("CO₂ m²", "CO₂ and m² of land", ["CO₂", "m²"]),
        ("istanbul", "İSTANBUL, İstanbul", ["İSTANBUL", "İstanbul"]),
        ("o'clock jack\u2019s", "o'clock, jack\u2019s", ["o'clock", "jack\u2019s"]),
    ],
)
def test_what_is_marked_in_other_scripts(question: str, text: str, marked: list[str]) -> None:
    """In a script without spaces, only the shared piece; marks, small digits and dots belong to words."""
    words = QueryWords(question)
    assert [text[begin:end] for begin, end, _ in words.spans(text)] == marked
    assert words.forms([text]) == sorted({each.replace("İ", "i").lower() for each in marked})


def test_a_snippet_of_a_script_without_spaces_keeps_the_match() -> None:
    for text in (
        "熊猫 " + "生活在四川的山里，" * 80,
        "生活在北京的山里，" * 80 + "四川 " + "生活在北京的山里，" * 80,
    ):
        shown = QueryWords("四川").snippet(text)
        assert "四川" in shown
        assert len(shown) > 200
