"""A model folder that another program changes while lmk reads it: an error, no crash and no mixed weights."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import modeling_utils

from lmkcli.errors import DataError
from lmkcli.models.tensors import chosen_tensors
from lmkcli.models.unmapped import unmapped
from tests import tiny

if TYPE_CHECKING:
    from tests.forkserver import ForkServer

# The change comes between the digest of the weights and their use.
CODE = """
import os, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import modeling_utils
from lmkcli.cli import main

folder = Path(sys.argv[1])

def weights():
    return [*folder.rglob("*.safetensors"), *folder.rglob("*.bin")]

def truncated():
    for file in weights():
        os.truncate(file, 100)

def rewritten():
    for file in weights():
        tensors = load_file(file)
        data = {name: value + 1 for name, value in tensors.items()}
        save_file(data, file.with_suffix(".new"), metadata={"format": "pt"})
        with open(file, "r+b") as opened:
            opened.write(file.with_suffix(".new").read_bytes())

def gone():
    for file in weights():
        file.unlink()

load = modeling_utils.convert_and_load_state_dict_in_model

def during(*words, **named):
    globals()[sys.argv[2]]()
    return load(*words, **named)

modeling_utils.convert_and_load_state_dict_in_model = during
out = str(folder.parent / "out")
sys.argv = ["lmk", "encode", sys.argv[3], "-m", str(folder), "--pool", "mean", "-o", out]
try:
    main.main()
except SystemExit as left:
    print("exit", left.code)
"""


def pickled(folder: Path) -> None:
    """Store the weights of a folder as older models do."""
    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()


CHANGES = [
    *(("safetensors", change) for change in ("truncated", "rewritten", "gone")),
    *(("pickled", change) for change in ("truncated", "gone")),
]


@pytest.mark.parametrize(("stored", "change"), CHANGES)
def test_a_folder_that_changes_meanwhile_is_an_error(
    forkserver: "ForkServer",
    tiny_model: Callable[[str], Path],
    beir: Path,
    tmp_path: Path,
    stored: str,
    change: str,
) -> None:
    """With a mapped file, the system would end the process with SIGBUS, or the weights would be mixed."""
    folder = copytree(tiny_model("bert"), tmp_path / "model")
    if stored == "pickled":
        pickled(folder)
    shown = forkserver.execute(CODE, folder, change, beir)
    assert "exit 3" in shown
    assert not (tmp_path / "out").exists()


def test_a_folder_whose_weights_change_back_is_read_again(tmp_path: Path) -> None:
    """Times alone are no change: a copy of the same bytes over a file has the same digest."""
    from lmkcli.models.lookup import read_model

    tiny.save(tmp_path / "model", "bert")
    folder = read_model(str(tmp_path / "model"), None, True)
    assert folder.weights_digest
    assert folder.tokenizer_digest
    file = tmp_path / "model" / "model.safetensors"
    same = file.read_bytes()
    file.write_bytes(same)
    folder.check_unchanged()
    file.write_bytes(same[:-1] + b"\x01")
    with pytest.raises(DataError, match="changed"):
        folder.check_unchanged()


def test_chosen_tensors_are_those_of_the_library(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    values = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.ones(0, 2),
        "c": torch.arange(3, dtype=torch.int64),
        "d": torch.ones(3, dtype=torch.bfloat16),
    }
    save_file(values, file, metadata={"format": "pt"})
    found = chosen_tensors(file, {"a", "b", "d", "x"}, "the weights")
    assert found.keys() == {"a", "b", "d"}
    assert all(value.equal(values[name]) for name, value in found.items())
    assert all(value.dtype == values[name].dtype for name, value in found.items())


@pytest.mark.parametrize(
    "entry",
    [
        '{"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}',
        '{"dtype": "F32", "shape": [2], "data_offsets": [-9, 8]}',
        '{"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}',
        '{"dtype": "F32", "shape": [1], "data_offsets": [-8, -4]}',
        '{"dtype": "F32", "shape": [2], "data_offsets": [0, -1]}',
        '{"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}',
        '{"dtype": "X", "shape": [2], "data_offsets": [0, 8]}',
        '{"dtype": "F32", "shape": [2], "data_offsets": [0]}',
        "[]",
        "7",
        "null}",
    ],
)
def test_wrong_offsets_of_chosen_tensors_are_refused(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "model.safetensors"
    header = f'{{"a": {entry}}}'.encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(DataError, match=r"model\.safetensors"):
        chosen_tensors(file, {"a"}, "the weights")


def test_two_threads_that_read_models_leave_transformers_as_it_was(tmp_path: Path) -> None:
    mapping = modeling_utils.load_state_dict
    (tmp_path / "model.safetensors").touch()
    entered, leave = (Event(), Event()), (Event(), Event())

    def read(number: int) -> None:
        with unmapped(tmp_path):
            entered[number].set()
            leave[number].wait(300)

    threads = [Thread(target=read, args=(number,)) for number in range(2)]
    threads[0].start()
    assert entered[0].wait(300)
    threads[1].start()
    assert not entered[1].wait(0.2), "it waits for the first"
    for event, thread in zip(leave, threads, strict=True):
        event.set()
        thread.join()
    assert modeling_utils.load_state_dict is mapping
