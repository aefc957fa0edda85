"""The record of a figure: what it shows as numbers, and what it was made from."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.progress import Call
from lmkcli.store import outputs
from lmkcli.system.atomic import atomic_file

KIND = "figure"


def record(path: Path, made_from: Mapping[str, Any], shown: Any, call: Call) -> None:
    """Write FIGURE.json beside a figure: a manifest with `made_from` as identity, `shown` among its facts."""
    facts = {"shown": shown, **manifest.environment(call)}
    made = manifest.Manifest(KIND, dict(made_from), facts=facts)
    text = json.dumps(asdict(made), indent=1, ensure_ascii=False)
    with atomic_file(outputs.sidecar(path)) as temporary:
        temporary.write_text(text + "\n", "utf-8", "surrogatepass")
