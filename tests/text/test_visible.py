"""What a terminal obeys is shown, and nothing else is changed."""

from lmkcli.text.visible import visible


def test_what_a_terminal_obeys_is_shown_and_all_else_is_kept() -> None:
    obeyed = "\x1b]0;owned\x07\x9b2J\u202etxt.exe\x7f\r\x08"
    assert visible(obeyed) == r"\u001b]0;owned\u0007\u009b2J\u202etxt.exe\u007f\u000d\u0008"
    assert visible("\udcff") == r"\udcff"  # a byte of a file name
    kept = "a\tb\nc caf\u00e9 \u0627\u0644 \U0001f469\u200d\U0001f467 \\ \u200f"
    assert visible(kept) == kept
