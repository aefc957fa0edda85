import sys
import time

from lmkcli.system.programs import ask


def test_what_a_program_says_or_why_it_counts_for_nothing() -> None:
    assert ask([sys.executable, "-c", "print('3.1')"], 60) == ("3.1", "")
    assert ask([sys.executable, "-c", "import sys; print(4, file=sys.stderr)"], 60) == ("4", "")
    assert ask([sys.executable, "-c", "import nosuch"], 60).wrong.endswith("'nosuch'")
    assert (
        ask([sys.executable, "-c", "raise SystemExit(9)"], 60).wrong == "it ended with exit code 9"
    )
    assert "Not a directory" in ask(["/dev/null/none"], 60).wrong


def test_a_program_that_never_answers_is_left() -> None:
    begun = time.monotonic()
    assert ask(["sleep", "60"], 0.2).wrong == "no answer within 0.2 s"
    assert time.monotonic() - begun < 30
