"""Files of the documentation that scripts make: written when they are stale, or only named (`--check`)."""

import sys
from collections.abc import Mapping
from pathlib import Path


def write(wanted: Mapping[Path, str]) -> None:
    """Write what is not as wanted; with `--check` on the command line, name it and fail instead."""
    stale = [
        path
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if stale and "--check" in sys.argv[1:]:
        names = ", ".join(path.name for path in stale)
        raise SystemExit(f"stale: {names}; run python docs/{Path(sys.argv[0]).name}")
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
