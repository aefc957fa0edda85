"""An index folder on disk: `manifest.json`, the kind's files, and `built.json` once it is whole.

`built.json` holds the kind's facts, the `digest` of the index, what it was built `of`, and the
subfolder `at` which the files are ('' for the folder itself).
"""

import json
import re
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from lmkcli import manifest
from lmkcli.errors import DataError
from lmkcli.reading import read_json
from lmkcli.store.parts import SliceJson
from lmkcli.system.atomic import atomic_file

DOCS, BUILT = "docs.parquet", "built.json"
_AGAIN = "build the index again with --if-exists overwrite"


class _Of(TypedDict):
    vectors: NotRequired[str]
    parts: NotRequired[list[SliceJson]]
    numbering: NotRequired[list[SliceJson | tuple[str, list[tuple[int, int]], int]]]
    digests: NotRequired[dict[str, str]]
    stamp: NotRequired[dict[str, Any] | None]


class _Built(TypedDict):
    digest: str
    of: _Of
    at: str


def read_built(folder: Path) -> dict[str, Any]:
    """What built.json says; empty while the index is not finished. DataError where it is damaged."""
    path = folder / BUILT
    try:
        built = read_json(path, _Built, _AGAIN)
    except FileNotFoundError:
        return {}
    if not re.fullmatch(r"\d*", built["at"], re.ASCII):
        raise DataError(
            f"{path} says that the files are in {built['at']!r}, which cannot be; {_AGAIN}"
        )
    of = built["of"]
    if "stamp" not in of and not {"vectors", "parts", "numbering", "digests"} <= of.keys():
        raise DataError(f"{path} does not say what the index was built of; {_AGAIN}")
    return dict(built)


def write_built(folder: Path, facts: dict[str, Any], of: dict[str, Any], at: str) -> dict[str, Any]:
    """Say that the index whose files are in subfolder `at` is whole; returns what was written."""
    identity = manifest.read(folder).identity
    made_of = [facts.get("collection", ""), of.get("vectors", ""), of.get("numbering", [])]
    chain = manifest.digest({"identity": identity, "of": made_of})
    built = {**facts, "digest": chain, "of": of, "at": at}
    with atomic_file(folder / BUILT) as temporary:
        temporary.write_text(json.dumps(built, indent=1))
    return built
