"""An index folder on disk: `manifest.json`, the kind's files, and `built.json` once it is whole.

`built.json` holds the kind's facts, the `digest` of the index, what it was built `of`, and the
subfolder `at` which the files are ('' for the folder itself).
"""

import json
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.system.atomic import atomic_file

DOCS, BUILT = "docs.parquet", "built.json"


def read_built(folder: Path) -> dict[str, Any]:
    """What built.json says; empty while the index is not finished."""
    try:
        return dict(json.loads((folder / BUILT).read_text()))
    except FileNotFoundError:
        return {}


def write_built(folder: Path, facts: dict[str, Any], of: dict[str, Any], at: str) -> dict[str, Any]:
    """Say that the index whose files are in subfolder `at` is whole; returns what was written."""
    identity = manifest.read(folder).identity
    made_of = [facts.get("collection", ""), of.get("vectors", ""), of.get("numbering", [])]
    chain = manifest.digest({"identity": identity, "of": made_of})
    built = {**facts, "digest": chain, "of": of, "at": at}
    with atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(built, indent=1))
    return built
