"""The score log: one JSON line an evaluation, appended under a lock, with where it came from."""

import fcntl
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmkcli import manifest, outputs
from lmkcli.errors import DataError
from lmkcli.measures import Scores
from lmkcli.searching import read_manifest


def append(log: Path, run: Path, qrels: str | None, scores: Scores) -> None:
    """Append one line; whole lines stay whole however many processes write."""
    entry = {
        "run": str(run.absolute()),
        "run_sha256": hashlib.sha256(run.read_bytes()).hexdigest(),
        "qrels": qrels,
        "scores": scores.aggregated,
        "coverage": asdict(scores.coverage),
        "made_by": asdict(read_manifest(run)) if outputs.sidecar(run).is_file() else None,
        **manifest.environment(),
    }
    line = json.dumps(entry, ensure_ascii=False) + "\n"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(log: Path) -> list[dict[str, Any]]:
    """All entries; DataError names the line that cannot be read."""
    entries = []
    for number, line in enumerate(log.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entries.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DataError(f"{log} line {number}: not a score log entry ({error})") from None
    return entries
