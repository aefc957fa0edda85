"""GPUs: whether the machine has one, and which of them torch sees. torch is asked in a process of its own."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lmkcli.system import programs

_DEVICES = ("nvidia[0-9]*", "dxg", "kfd")  # NVIDIA's, those of WSL, AMD's
_QUESTION = """
import json, torch
seen = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([[each.name, each.total_memory, each.major, each.minor] for each in seen]))
"""


class Gpu(NamedTuple):
    """A device that torch sees: its memory in bytes, and its compute capability."""

    name: str
    memory: int
    major: int
    minor: int


class Seen(NamedTuple):
    """The devices that torch sees, or why it could not say."""

    gpus: list[Gpu]
    wrong: str


def present() -> bool:
    """Whether this machine has a GPU that torch might use: a device file is there, nothing is loaded."""
    return any(True for pattern in _DEVICES for _ in Path("/dev").glob(pattern))


def built_for_cpu() -> bool:
    """Whether the torch that is installed was built without support of any GPU; it is not imported."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    lines = Path(spec.origin).with_name("version.py").read_text("utf-8").splitlines()
    built = [line for line in lines if line.startswith(("cuda", "hip")) and "=" in line]
    return bool(built) and all(line.endswith("= None") for line in built)


def seen(seconds: float) -> Seen:
    """Import torch in a process of its own, which takes seconds, and ask it."""
    answer = programs.ask([sys.executable, "-P", "-c", _QUESTION], seconds)
    if answer.wrong:
        return Seen([], answer.wrong)
    return Seen([Gpu(*each) for each in json.loads(answer.text.rpartition("\n")[2])], "")
