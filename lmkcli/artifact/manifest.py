"""Manifests on disk: the identity and the origin of an artifact, in one JSON file next to its data.

The file is created once, before the first part of the data. The process that completes an artifact may add
the list of its files. `kinds.py` has the types of the sections.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from lmkcli import __version__
from lmkcli.artifact.kinds import (
    FORMAT,
    KINDS,
    Environment,
    Machine,
    Manifest,
    OpenMapping,
    WrittenFile,
    plain,
)
from lmkcli.catalog import ENGINES
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import NO_CALL, Call
from lmkcli.system.atomic import atomic_file, make_folder, remove_abandoned, sync, temporary_name
from lmkcli.system.input_files import decode, file_digest, not_a_file, read_json

Kind = TypeVar("Kind", bound=Manifest)
NAME = "manifest.json"
CLEARED = (
    ".removed.manifest.json"  # the manifest of an artifact that was removed, or is being removed
)
_AGAIN = "make the artifact again"
_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "faiss-cpu",
    "faiss-gpu",
    "bm25s",
    "ir-measures",
    "pytrec-eval-terrier",
)


def fingerprint(made: Manifest) -> str:
    """Return the digest of kind and identity. Equal fingerprints mean equal recipes and sources."""
    return digest({"kind": made.kind, "identity": plain(made.identity)})


def _digest(made: Manifest) -> str:
    """Return the digest of everything but the facts."""
    return digest({**plain(replace(made, digest="")), "facts": {}})


def as_text(made: Manifest) -> str:
    """Return the contents of a manifest file: JSON, with the digest."""
    return json.dumps(plain(replace(made, digest=_digest(made))), indent=1, ensure_ascii=False)


def environment(call: Call = NO_CALL) -> Environment:
    """Return the versions, hardware and time of this process, and the operation that it runs."""
    return {
        "lmk": __version__,
        "python": platform.python_version(),
        "packages": {name: version for name in _packages() if (version := _version(name))},
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


def _machine() -> Machine:
    return {
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
    }


def _gpus() -> list[str]:
    """Return the model names of NVIDIA devices, read from /proc without loading a GPU library."""
    models = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text().splitlines()
        models += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return models


def _packages() -> Iterator[str]:
    """Yield the packages of the core, then those of the engines."""
    yield from _PACKAGES
    for row in ENGINES.values():
        yield from row.package.split()


@cache
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


def claim(folder: Path, wanted: Kind) -> Kind:
    """Make `folder` an artifact with this manifest, or join the artifact that exists there.

    Returns the manifest on disk. Raises Mismatch, which prints both sides, if the folder has another identity
    or execution. Many processes may call this at once: exactly one of them creates the file.
    """
    fresh = not folder.exists()
    path = folder / NAME
    remove_abandoned(path)
    try:
        make_folder(folder)
        if not path.exists():
            _create(path, as_text(wanted))
    except OSError:
        if fresh:
            with suppress(OSError):
                folder.rmdir()
        raise
    (folder / CLEARED).unlink(missing_ok=True)
    existing = read(folder)
    _compare("identity", existing, wanted, folder)
    _compare("execution", existing, wanted, folder)
    assert isinstance(existing, type(wanted))  # its kind was compared
    return existing


def record_files(folder: Path, files: Mapping[str, Path]) -> None:
    """Add files to the list in the manifest, before they are moved into the folder from where they are.

    Only the process that has the lock of the folder may call this. `files` has their later paths, relative to
    the folder, and their present paths.
    """
    made = read(folder)
    listed = {name: written(path) for name, path in files.items()}
    with atomic_file(folder / NAME) as temporary:
        text = as_text(replace(made, files={**made.files, **listed}))
        temporary.write_text(text, "utf-8", "surrogatepass")


def record_facts(folder: Path, kind: type[Kind], **facts: Any) -> None:
    """Change facts in the manifest. Only the process that has the lock of the folder may call this."""
    made = read(folder, kind)
    with atomic_file(folder / NAME) as temporary:
        text = as_text(replace(made, facts=replace(made.facts, **facts)))
        temporary.write_text(text, "utf-8", "surrogatepass")


def written(path: Path) -> WrittenFile:
    """Return size and sha256 of a file."""
    return WrittenFile(path.stat().st_size, file_digest(path))


def _create(path: Path, text: str) -> None:
    """Write `path` completely, or keep the file that another process created first."""
    temporary = temporary_name(path)
    try:
        with open(temporary, "x", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _publish(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # fails when the file exists, unlike rename
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links: the later of two equal claims wins
        os.replace(temporary, path)


@overload
def read(folder: Path) -> Manifest: ...
@overload
def read(folder: Path, *kinds: type[Kind]) -> Kind: ...
def read(folder: Path, *kinds: type[Manifest]) -> Manifest:
    """Read the manifest of an artifact folder.

    Raises DataError if it is missing or invalid. With `kinds`, also raises DataError for an artifact of
    another kind.
    """
    try:
        return read_file(folder / NAME, *kinds)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} is not an lmk artifact: {_without_manifest(folder)}") from None


def _with_article(kind: str) -> str:
    if kind not in KINDS:
        return f"an artifact of kind {kind!r}"
    article = "an " if kind[0] in "aeiou" else "a "
    return kind if kind.endswith("s") else article + kind


@dataclass(frozen=True)
class Header:
    """The fields of a manifest that all kinds have: enough to remove the files of a damaged artifact."""

    kind: str
    files: dict[str, WrittenFile]


def read_header(path: Path) -> Header:
    """Read the kind of a manifest file and its list of files.

    Raises DataError if lmk did not write it, or if a newer lmk wrote it.
    """
    return _header(_json(path), path)


def _json(path: Path) -> OpenMapping:
    return read_json(path, OpenMapping, _AGAIN)


def _header(data: OpenMapping, path: Path) -> Header:
    if type(data.get("format")) is int and data["format"] > FORMAT:
        raise DataError(
            f"{path} was written by a newer lmk (format {data['format']}): pip install -U lmkcli"
        )
    if data.get("format") != FORMAT:
        raise DataError(f"{path} cannot be read (its format is not {FORMAT}); {_AGAIN}")
    known = {name: data[name] for name in ("kind", "files") if name in data}
    return decode({"files": {}, **known}, Header, path, _AGAIN)


@overload
def read_file(path: Path) -> Manifest: ...
@overload
def read_file(path: Path, *kinds: type[Kind]) -> Kind: ...
def read_file(path: Path, *kinds: type[Manifest]) -> Manifest:
    """Read a manifest file, of one of these kinds, or of any kind of lmk.

    Raises DataError if lmk did not write it, if a newer lmk wrote it, or if it is of another kind; OSError if
    it is missing.
    """
    data = _json(path)
    found = _header(data, path).kind
    known = {kind.tag(): kind for kind in kinds} or KINDS
    if found not in known:
        raise wrong_kind(path.parent if path.name == NAME else path, found, kinds)
    return _decoded(data, known[found], path)


def wrong_kind(path: Path, found: str, wanted: Sequence[type[Manifest]]) -> DataError:
    """Return the error for an artifact of another kind than the wanted ones."""
    names = " or ".join(_with_article(kind.tag()) for kind in wanted)
    return DataError(
        f"{path} contains {_with_article(found)}; {f'give {names}' if wanted else _AGAIN}"
    )


def from_json(data: Mapping[str, Any], where: str) -> Manifest:
    """Read a manifest of any kind from the sections in a score log. Raises DataError, which names `where`."""
    sections = {name: data[name] for name in ("kind", "identity", "execution", "facts")}
    kind = KINDS.get(str(sections["kind"]))
    if kind is None:
        raise DataError(f"{where} is of an unknown kind, {sections['kind']!r}; {_AGAIN}")
    if not sections["execution"]:
        del sections["execution"]
    return _decoded(sections, kind, where)


def _decoded(data: OpenMapping, kind: type[Kind], where: object) -> Kind:
    made = decode(data, kind, where, _AGAIN)
    if unknown := _unread({**data, "facts": {}}, plain(made)):
        raise DataError(f"{where} cannot be read ({unknown} is unknown); {_AGAIN}")
    return made


def _unread(found: Any, read: Any, path: str = "") -> str:
    """Return the first key of a JSON value that its type does not have; empty if there is none.

    A dataclass, such as a recipe, ignores unknown keys, and they could change the results.
    """
    if not isinstance(found, dict) or not isinstance(read, dict):
        return ""
    for key, value in found.items():
        name = f"{path}.{key}" if path else key
        if key not in read:
            return name
        if unknown := _unread(value, read[key], name):
            return unknown
    return ""


def check_unchanged(folder: Path, made: Manifest) -> None:
    """Raise DataError if a manifest differs from the one that was written, except for its facts."""
    if made.digest != _digest(made):
        raise DataError(
            f"{folder / NAME} has changed since it was written (its digest differs); restore it from a copy, "
            f"or {_AGAIN}"
        )


def _without_manifest(folder: Path) -> str:
    """Describe a folder without a manifest: missing, another folder, or a group of artifacts."""
    if not folder.is_dir() and not folder.is_file():
        return not_a_file(folder) or "no such file or folder"
    names = sorted(path.parent.name for path in folder.glob(f"*/{NAME}"))
    if not names:
        return f"it has no {NAME}"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"it is a folder of {', '.join(names[:5])}{more}; name one of them"


def _compare(part: str, existing: Manifest, wanted: Manifest, folder: Path) -> None:
    lines = json_differences(getattr(existing, part) or {}, getattr(wanted, part) or {})
    if existing.kind != wanted.kind:
        lines.insert(0, f"kind: {existing.kind} | {wanted.kind}")
    if lines:
        raise Mismatch(
            f"{folder} was made with another {part} (existing | requested):\n  "
            + "\n  ".join(lines)
            + "\nchoose another output folder, or --if-exists overwrite to replace it"
        )


def digest(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def json_differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Return the leaves that differ between two values, as lines 'a.b: left | right'."""
    left, right = plain(left), plain(right)
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            line
            for key in sorted(left.keys() | right.keys())
            for line in json_differences(
                left.get(key), right.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [] if left == right else [f"{path}: {left!r} | {right!r}"]
