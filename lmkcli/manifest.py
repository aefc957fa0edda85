"""Manifest: what an artifact is and where it came from, in one JSON file beside the data.

Three parts: `identity` is compared, `execution` is frozen by the first writer,
`facts` are never compared. It is written once, by create-if-absent, before the first part.
"""

import hashlib
import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from lmkcli import __version__
from lmkcli.errors import DataError, Mismatch
from lmkcli.manifest_types import COMPLETE, OPENED, Facts, Recorded
from lmkcli.progress import NO_CALL, Call
from lmkcli.reading import checked, read_json

NAME = "manifest.json"
FORMAT = 1
_AGAIN = "make the artifact again"
_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "faiss-cpu",
    "faiss-gpu",
    "bm25s",
    "pyserini",
    "ir-measures",
    "pytrec-eval-terrier",
)


@dataclass(frozen=True)
class Manifest:
    """One artifact's identity, execution and facts; all JSON values."""

    kind: str
    identity: dict[str, Any]
    execution: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """Hex digest of kind and identity: equal fingerprints, equal recipe and sources."""
        return digest({"kind": self.kind, "identity": self.identity})


def digest(value: Any) -> str:
    """sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def environment(call: Call = NO_CALL) -> dict[str, Any]:
    """Versions, hardware and time of this process, and the operation that it runs."""
    return {
        "lmk": __version__,
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "machine": _machine(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": list(call.command),
        "directory": os.getcwd(),
        "operation": dict(call.record),
        "environment": {
            k: v
            for k, v in os.environ.items()
            if k.startswith(("LMK_", "SLURM_JOB_ID", "SLURM_ARRAY")) and not k.endswith("_TOKEN")
        },
    }


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
    }


def _gpus() -> list[str]:
    """The models of NVIDIA's devices, read without loading a library that knows them."""
    models = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text().splitlines()
        models += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return models


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )


def claim(folder: Path, manifest: Manifest) -> Manifest:
    """Make `folder` an artifact described by `manifest`, or join the one that is there.

    Returns the manifest on disk. Mismatch, with both sides printed, when the folder holds another
    identity or execution. Safe among many processes: exactly one of them creates the file.
    """
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    try:
        if not path.exists():
            _create(path, json.dumps(asdict(manifest), indent=1, ensure_ascii=False))
    except OSError:
        if fresh:
            with suppress(OSError):
                folder.rmdir()
        raise
    on_disk = read(folder)
    _compare("identity", on_disk, manifest, folder)
    _compare("execution", on_disk, manifest, folder)
    return on_disk


def _create(path: Path, text: str) -> None:
    """Write `path` whole or leave the one that another process made first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(temporary, "x", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # fails when the file exists, unlike rename
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links: the later of two equal claims wins
        os.replace(temporary, path)


def read(folder: Path, kind: str = "") -> Manifest:
    """The manifest of an artifact folder; DataError when there is none or it is of another kind."""
    try:
        manifest = read_file(folder / NAME)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} is not an lmk artifact: {_inside(folder)}") from None
    if kind and manifest.kind != kind:
        article = "an " if manifest.kind[0] in "aeiou" else ""  # tokens, vectors; an index
        raise DataError(f"{folder} holds {article}{manifest.kind}, but {kind} are needed here")
    checked(asdict(manifest), OPENED.get(kind, Any), folder / NAME, _AGAIN)
    return manifest


def read_file(path: Path) -> Manifest:
    """The manifest in a file; DataError for one that lmk did not write, or a newer lmk."""
    data = read_json(path, dict[str, Any], _AGAIN)
    if type(data.get("format")) is int and data["format"] > FORMAT:
        raise DataError(
            f"{path} was written by a newer lmk (format {data['format']}): pip install -U lmkcli"
        )
    checked(data, Manifest, path, _AGAIN)
    checked(data.get("facts", {}), Facts, f"{path}, facts,", _AGAIN)
    return Manifest(**data)


def check_whole(folder: Path, manifest: Manifest) -> None:
    """DataError where a manifest lacks what every lmk writes for its kind, or holds other types."""
    checked(asdict(manifest), COMPLETE.get(manifest.kind, Any), f"the manifest of {folder}", _AGAIN)


def check_recorded(manifest: Manifest, where: object) -> None:
    """DataError where a manifest lacks what it takes to make its artifact again, or to say how it was."""
    checked(asdict(manifest), COMPLETE.get(manifest.kind, Any), where, _AGAIN)
    checked(manifest.facts, Recorded, f"{where}, facts,", _AGAIN)


def _inside(folder: Path) -> str:
    """What there is instead of a manifest: the artifacts of a group's members, or nothing."""
    if not folder.exists():
        return "no such file or folder"
    names = sorted(path.parent.name for path in folder.glob(f"*/{NAME}"))
    if not names:
        return f"it has no {NAME}"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"it is a folder of {', '.join(names[:5])}{more}; name one of them"


def _compare(part: str, on_disk: Manifest, wanted: Manifest, folder: Path) -> None:
    lines = json_differences(getattr(on_disk, part), getattr(wanted, part))
    if on_disk.kind != wanted.kind:
        lines.insert(0, f"kind: {on_disk.kind} | {wanted.kind}")
    if lines:
        raise Mismatch(
            f"{folder} was made with another {part} (there | asked for):\n  "
            + "\n  ".join(lines)
            + "\nchoose another output folder, or --if-exists overwrite to replace it"
        )


def json_differences(here: Any, there: Any, path: str = "") -> list[str]:
    """Every leaf in which two JSON values differ, as 'a.b: here | there'."""
    if isinstance(here, dict) and isinstance(there, dict):
        return [
            line
            for key in sorted(here.keys() | there.keys())
            for line in json_differences(
                here.get(key), there.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [] if here == there else [f"{path}: {here!r} | {there!r}"]
