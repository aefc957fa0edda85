"""How much memory this process may still take."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path


def free_memory() -> int:
    """Bytes that this process may still take: what the machine has left, or its job's limit."""
    return max(0, min([_machine_memory(), *_group_memory()]))


def peak_memory() -> int:
    """The most bytes that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def held_memory() -> int:
    """The bytes that this process holds of its own, without files that are mapped."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        held = next(line for line in lines if line.startswith("RssAnon:"))
        return 1024 * int(held.split()[1])
    except (OSError, StopIteration):  # not Linux
        return peak_memory()


def _machine_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        return 1024 * int(available.split()[1])
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_memory() -> Iterator[int]:
    """What is left under each limit of this process's control groups (a SLURM job has one)."""
    try:
        own = Path("/proc/self/cgroup").read_text().split("::", 1)[1].splitlines()[0].strip("/")
    except (OSError, IndexError):
        return
    root = Path("/sys/fs/cgroup")
    for group in (root / own, *(root / own).parents):
        try:
            limit = int((group / "memory.max").read_text())
            used = (group / "memory.stat").read_text().split()  # names and numbers in turn
            yield limit - int(used[used.index("anon") + 1])  # without the file cache
        except (OSError, ValueError):  # no limit here, or above the root
            continue
