"""Which files there are below a folder: those that are meant, those that cannot be read, and the others.

Names with a dot before them are passed over, as a shell does. Links are not followed: one that leads to
somewhere in the folder is passed over as well, one that leads out of it is a fault.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass
class Listing:
    """Paths below the folder, with '/' and in order.

    `faults` are paths that are meant and cannot be read, with the reason; `others` counts the files
    that are not meant, by suffix.
    """

    files: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)


def list_files(root: Path, meant: Callable[[str], bool]) -> Listing:
    """What is below `root`; `meant` says of a path whether it is one to read."""
    listing = Listing()
    for path in sorted(_walk(root, listing.faults)):
        if not meant(path):
            listing.others[Path(path).suffix.lower() or "(no suffix)"] += 1
        elif fault := _fault(root, path):
            listing.faults[path] = fault
        elif not (root / path).is_symlink():
            listing.files.append(path)
    return listing


def _walk(root: Path, faults: dict[str, str]) -> Iterator[str]:
    """The files; folders that cannot be entered become faults."""

    def refused(error: OSError) -> None:
        faults[_below(root, error.filename)] = f"cannot be opened ({error.strerror})"

    for folder, folders, files in os.walk(root, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            path = _below(root, os.path.join(folder, name))
            if os.path.islink(root / path) and (fault := _fault(root, path)):
                faults[path] = fault
        yield from (
            _below(root, os.path.join(folder, name)) for name in files if not name.startswith(".")
        )


def _below(root: Path, path: str) -> str:
    return Path(path).relative_to(root).as_posix()


def _fault(root: Path, path: str) -> str:
    """Why a file or a link cannot be read; empty if it can."""
    place = root / path
    try:
        mode = place.stat().st_mode
        if place.is_symlink() and not place.resolve().is_relative_to(root.resolve()):
            return "is a link out of the folder, which is not followed; copy what it leads to"
    except OSError as error:
        return f"cannot be opened ({error.strerror})"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "is a pipe or a device"
    if any("\ud800" <= character <= "\udfff" for character in path):
        return "has a name that is not UTF-8; rename it"
    return ""


def matches(path: str, glob: str) -> bool:
    """Whether a path fits a pattern: `*`, `?` and `[…]` within a name, `**` for any folders."""
    return _fits(path.split("/"), glob.split("/"))


def _fits(names: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_fits(names[i:], patterns[1:]) for i in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _fits(names[1:], patterns[1:])
