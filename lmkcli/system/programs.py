"""Other programs, asked a question that they must answer in time."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Answer(NamedTuple):
    """What a program said on stdout or stderr, and why it counts for nothing ('' where it counts)."""

    text: str
    wrong: str


def ask(words: Sequence[str | Path], seconds: float) -> Answer:
    """Run a program without input. One that fails, or is not done in time, is an answer too."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Answer("", f"no answer within {seconds:g} s")
    except (OSError, UnicodeDecodeError) as error:
        return Answer("", str(error))
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        return Answer("", last or f"it ended with exit code {done.returncode}")
    return Answer((done.stdout.strip() or done.stderr.strip()), "")
