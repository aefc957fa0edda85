"""Headings of Markdown and HTML, and the headings above a position."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.text.headings import Outline, headings

GUIDE = """# Guide

Before anything.

## Install ##

Get it.

### From source

```sh
# not a heading
make
```

## Use

Run it.
"""


def above(text: str, words: str) -> list[str]:
    return Outline(text).above(text.index(words))


def test_the_headings_of_the_section_are_above_it() -> None:
    assert above(GUIDE, "Before") == ["Guide"]
    assert above(GUIDE, "Get it") == ["Guide", "Install"]
    assert above(GUIDE, "make") == ["Guide", "Install", "From source"]
    assert above(GUIDE, "Run it") == ["Guide", "Use"]


def test_a_heading_is_not_above_itself() -> None:
    assert above(GUIDE, "# Guide") == []
    assert above(GUIDE, "## Use") == above(GUIDE, "Use") == ["Guide"]
    assert Outline(GUIDE).above(0) == []
    assert Outline("").above(0) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("# one", "one"), ("   ###### six  ", "six"), ("# C#", "C#"), ("## two ##  ", "two"),
        ("#\ttab", "tab"), ("# a # b", "a # b"), ("\none\n===", "one"), ("\n a  b\n  =  ", "a b"),
        ("\n#b\n===", "#b"), ("# one\n===", "one"),
    ],
)  # fmt: skip
def test_lines_that_are_headings(line: str, words: str) -> None:
    assert [one.words for one in headings(f"text\n{line}\ntext")] == [words]


@pytest.mark.parametrize(
    "line",
    ["#hashtag", "####### seven", "    # code", "a # b", "#", "# ##", "<h7>no</h7>", "<hr>",
     "\n===", "\n===\n===", "a\n===b", "a\n---", "    a\n===", "```\na\n==="],
)  # fmt: skip
def test_lines_that_are_not_headings(line: str) -> None:
    assert headings(f"text\n{line}\ntext") == []


def test_a_code_block_that_is_never_closed_extends_to_the_end() -> None:
    assert headings("~~~\n# a\n```\n# b") == []
    assert [one.words for one in headings("````\n# a\n```\n# b\n````\n# c")] == ["c"]
    assert [one.words for one in headings("``` a`b\n# c")] == ["c"]  # no fence: inline code


def test_a_line_above_equal_signs_has_the_highest_level() -> None:
    text = "Guide\n=====\none\n## Use\ntwo\nMore\n====\nthree"
    assert above(text, "two") == ["Guide", "Use"]
    assert above(text, "three") == ["More"]


def test_html() -> None:
    page = (
        '<H1 class="x">All\n <b>of</b> it</H1><p>p<h2>R&amp;D</h2 >lab<h3>open <p>q<h2>Next</h2>end'
    )
    found = [(one.level, one.words) for one in headings(page)]
    assert found == [(1, "All of it"), (2, "R&D"), (2, "Next")]
    assert above(page, "lab") == ["All of it", "R&D"]
    assert above(page, "end") == ["All of it", "Next"]
    assert above(page, "<b>of") == []  # inside the heading


def test_markdown_and_html_in_one_text() -> None:
    text = "<h1>Page</h1>\n\n## Part\ntext"
    assert above(text, "text") == ["Page", "Part"]


@given(st.lists(st.integers(1, 6), max_size=12))
def test_levels_nest(levels: list[int]) -> None:
    """Above a section: the headings before it without a later heading of the same or a higher level."""
    text = "\n".join(
        f"{'#' * level} h{number}\nbody{number}." for number, level in enumerate(levels)
    )
    for number in range(len(levels)):
        before = range(number + 1)
        wanted = [
            f"h{i}" for i in before if all(levels[j] > levels[i] for j in range(i + 1, number + 1))
        ]
        assert above(text, f"body{number}.") == wanted


@pytest.mark.parametrize(
    "text", ["<h1" * 200_000, "<h1>" * 200_000, "# " * 400_000, "#" * 800_000, "```\n" * 200_000,
             "# " + " #" * 300_000 + "x", "# a" + " " * 600_000 + "b", "a\n=" * 200_000, "=\n" * 400_000,
             "a\n" + "=" * 600_000 + " " * 600_000 + "b"]
)  # fmt: skip
def test_long_texts_take_linear_time(text: str) -> None:
    start = time.process_time()
    headings(text)
    assert time.process_time() - start < 5
