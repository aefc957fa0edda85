"""Processors, memory and GPUs of this machine."""

import ctypes
import json
import os
import resource
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lmkcli.system.programs import run_program


def usable_processors() -> int:
    """Return the number of logical processors that this process may use (its affinity, else all)."""
    return len(_affinity())


def physical_cores() -> int:
    """Return the number of physical cores of the usable processors; two threads of one core count once.

    Equal to `usable_processors` on systems that do not report the siblings of a processor.
    """
    siblings = {_siblings(cpu) for cpu in _affinity()}
    return usable_processors() if "" in siblings else len(siblings)


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> str:
    """Linux's list of the processors that share a core with this one; empty on other systems."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (topology / "thread_siblings_list").read_text().strip()
    except OSError:
        return ""


def free_memory() -> int:
    """Bytes that this process may still allocate, within the machine and within the limit of its job."""
    return max(0, min([_machine_memory(), *_group_memory()]))


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def anonymous_memory() -> int:
    """Return the resident memory of this process in bytes, without memory-mapped files.

    The peak resident memory on systems other than Linux.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("RssAnon:"))
        return 1024 * int(line.split()[1])
    except (OSError, StopIteration):  # not Linux
        return peak_memory()


def release_memory() -> None:
    """Give memory that the C library has freed but kept back to the operating system (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _machine_memory() -> int:
    """Bytes of memory that are available on the machine; all of its memory on systems other than Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return 1024 * int(line.split()[1])
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_memory() -> Iterator[int]:
    """Free bytes within each memory limit of this process's control groups, such as a SLURM job's."""
    try:
        own = Path("/proc/self/cgroup").read_text().split("::", 1)[1].splitlines()[0].strip("/")
    except (OSError, IndexError):
        return
    root = Path("/sys/fs/cgroup")
    for group in (root / own, *(root / own).parents):
        try:
            limit = int((group / "memory.max").read_text())
            used = (group / "memory.stat").read_text().split()  # names and numbers alternate
            yield limit - int(used[used.index("anon") + 1])  # the file cache does not count
        except (OSError, ValueError):  # this group has no limit, or is above the root
            continue


class Gpu(NamedTuple):
    """A GPU that torch can use."""

    name: str
    memory: int
    """Bytes."""
    major: int
    """Compute capability, with `minor`."""
    minor: int


class TorchGpus(NamedTuple):
    """The GPUs that torch can use, or the error of the query."""

    gpus: list[Gpu]
    error: str


_DEVICE_FILES = ("nvidia[0-9]*", "dxg", "kfd")  # NVIDIA, WSL, AMD
_TORCH_QUERY = """
import json, torch
gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([[each.name, each.total_memory, each.major, each.minor] for each in gpus]))
"""


def gpu_present() -> bool:
    """Return whether this machine has the device file of a GPU that torch might use. Loads no library."""
    return any(True for pattern in _DEVICE_FILES for _ in Path("/dev").glob(pattern))


def torch_built_for_cpu() -> bool:
    """Return whether the installed torch was built without GPU support. Does not import torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    lines = Path(spec.origin).with_name("version.py").read_text("utf-8").splitlines()
    built = [line for line in lines if line.startswith(("cuda", "hip")) and "=" in line]
    return bool(built) and all(line.endswith("= None") for line in built)


def torch_gpus(seconds: float) -> TorchGpus:
    """List the GPUs that torch can use. Imports torch in a separate process, which takes some seconds."""
    output = run_program([sys.executable, "-P", "-c", _TORCH_QUERY], seconds)
    if output.error:
        return TorchGpus([], output.error)
    return TorchGpus([Gpu(*each) for each in json.loads(output.text.rpartition("\n")[2])], "")
