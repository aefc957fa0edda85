"""A model folder that another program changes while lmk computes with it."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.forkserver import ForkServer

CODE = """
import os, sys
from pathlib import Path
from transformers import modeling_utils
from lmkcli import RecipeOptions, load_encoder

folder = Path(sys.argv[1])
texts = ["green tea and water", "copper conducts electricity"]
load = modeling_utils.convert_and_load_state_dict_in_model

def truncated(*words, **named):
    for file in folder.rglob("*.safetensors"):
        os.truncate(file, 100)
    return load(*words, **named)

modeling_utils.convert_and_load_state_dict_in_model = truncated
encoder = load_encoder(str(folder), RecipeOptions(pool="mean"))
assert encoder.encode_documents(texts).vectors.any()
print("vectors of the whole file")
"""


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_shortened_file_of_weights_does_not_kill_the_process(
    forkserver: "ForkServer", tiny_model: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    """A mapped file would: the system sends SIGBUS when its missing pages are read."""
    folder = copytree(tiny_model(kind), tmp_path / "model")
    assert "vectors of the whole file" in forkserver.execute(CODE, folder)
