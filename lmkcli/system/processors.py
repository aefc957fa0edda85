"""The processors that this process may use."""

import os
from pathlib import Path


def usable() -> int:
    """Logical processors that this process may run on: all of the machine's, or those it was given."""
    return len(_own())


def physical() -> int:
    """Cores behind them, where two threads of one core are one; `usable` where nobody says."""
    siblings = {_siblings(cpu) for cpu in _own()}
    return usable() if "" in siblings else len(siblings)


def _own() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> str:
    """The processors that share a core with this one, as Linux writes them; empty elsewhere."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (topology / "thread_siblings_list").read_text().strip()
    except OSError:
        return ""
