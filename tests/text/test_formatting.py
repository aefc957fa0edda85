"""Control characters become visible, and lines for a shell are single lines."""

import subprocess

import pytest

from lmkcli.text.formatting import shell_line, visible


def test_control_characters_are_escaped_and_other_text_is_kept() -> None:
    controls = "\x1b]0;owned\x07\x9b2J\u202etxt.exe\x7f\r\x08"
    assert visible(controls) == r"\u001b]0;owned\u0007\u009b2J\u202etxt.exe\u007f\u000d\u0008"
    assert visible("\udcff") == r"\udcff"  # a byte of a file name
    kept = "a\tb\nc caf\u00e9 \u0627\u0644 \U0001f469\u200d\U0001f467 \\ \u200f"
    assert visible(kept) == kept


@pytest.mark.parametrize(
    "word",
    [
        "plain",
        "two words",
        "it's",
        "a\nb",
        "a'b\\n\n\t$HOME`id`",
        "\x1b[2J",
        "\x85\u202e",
        "\udcff",
        "",
    ],
)
def test_bash_reads_the_same_words_from_one_line(word: str) -> None:
    line = shell_line("printf", "%s", word, "end")
    assert visible(line) == line
    assert "\n" not in line
    bash = ["bash", "-c", line]
    found = subprocess.run(bash, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}).stdout
    assert found == f"{word}end".encode("utf-8", "surrogateescape")


def test_ordinary_words_are_quoted_as_usual() -> None:
    assert shell_line("lmk", "show", "my folder", "it's") == """lmk show 'my folder' 'it'"'"'s'"""
