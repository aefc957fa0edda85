"""What a shell is offered, and that offering it imports nothing heavy."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from lmkcli.cli.main import app
try:
    app(prog_name="lmk")
finally:
    print(*sorted({"numpy", "torch", "transformers"} & sys.modules.keys()), file=sys.stderr)
"""


def offered(line: str, **variables: str) -> set[str]:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {
        "_LMK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    env = {**os.environ, **asked, **variables}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stderr.strip() == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("lmk encode beir/sci", {"beir/scifact/test", "beir/scidocs"}),
        ("lmk search index beir/scif", {"beir/scifact/test"}),
        ("lmk encode x --pool l", {"last", "lmk", "latent"}),
        ("lmk eval run.trec -m nDCG@1", {"nDCG@10"}),
        ("lmk encode x --dtype f", {"fp32", "fp16"}),
    ],
)
def test_names_are_completed(line: str, names: set[str]) -> None:
    assert names <= offered(line)


def test_models_of_the_cache_are_completed(tmp_path: object) -> None:
    os.makedirs(f"{tmp_path}/hub/models--Some--encoder-base")
    assert offered("lmk encode x -m S", HF_HOME=str(tmp_path)) == {"Some/encoder-base"}
