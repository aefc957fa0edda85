"""Manifests: the identity and the origin of an artifact, in one JSON file next to its data.

A manifest has three sections. lmk compares `identity` when artifacts are combined. The first process that
writes determines `execution`. lmk never compares `facts`. The file is created once, before the first part of
the data, and never overwritten. The TypedDicts describe the required fields of each kind of artifact.
"""

import hashlib
import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from lmkcli import __version__
from lmkcli.errors import DataError, Mismatch
from lmkcli.progress import NO_CALL, Call
from lmkcli.spec.values import MOST_SHARDS
from lmkcli.system.atomic import make_folder, remove_abandoned, sync, temporary_name
from lmkcli.system.input_files import int_range, not_a_file, read_json, validate

MOST_DIMS = (1 << 20) - 1  # of a vector


class _Machine(TypedDict, total=False):
    system: str
    cpu: str
    cores: int
    memory: Annotated[int, int_range(0, 1 << 62)]
    gpus: list[str]


class ReproductionFacts(TypedDict):
    """The facts that are needed to reproduce or describe an artifact."""

    lmk: str
    python: str
    packages: dict[str, str]
    machine: _Machine
    command: list[str]
    directory: str


class Facts(TypedDict, total=False):
    """All facts that lmk reads. No kind of artifact has all of them."""

    lmk: str
    python: str
    packages: dict[str, str]
    machine: dict[str, Any]
    time: str
    command: list[str]
    directory: str
    operation: dict[str, Any]
    files: list[str]
    vectors: str
    index: str
    collection: str


class _Source(TypedDict):
    name: str


class _ShardsExecution(TypedDict):
    shards: Annotated[int, int_range(1, MOST_SHARDS + 1)]


class _TokensExecution(_ShardsExecution):
    source: _Source


class _StorageExecution(_ShardsExecution):
    store_dtype: Literal["fp32", "fp16", "int8", "int4", "int2", "binary", "sparse"]


class _VectorsExecution(_TokensExecution, _StorageExecution):
    dtype: Literal["fp32", "bf16", "fp16"]
    store_text: bool


class _TokensIdentity(TypedDict):
    tokenizer: str
    prompt: str
    splitter: str
    text: dict[str, Any]


class _Side(TypedDict):
    weights: str
    tokenizer: str
    unit: NotRequired[str]  # EncoderConfig checks the other fields


class _Sides(TypedDict):
    doc: _Side
    query: _Side


class _RecipeIdentity(TypedDict):
    recipe: _Sides
    dim: Annotated[int, int_range(1, MOST_DIMS + 1)]


class _VectorsIdentity(_RecipeIdentity):
    text: dict[str, Any]


class _ModelLocation(TypedDict):
    model: str
    revision: str


class _ModelLocations(TypedDict):
    doc: _ModelLocation
    query: _ModelLocation


class _ModelFacts(TypedDict):
    models: _ModelLocations


class _IndexIdentity(TypedDict):
    family: str
    recipe: NotRequired[_Sides]  # of vectors
    collection: NotRequired[_Source]  # of words
    analysis: NotRequired[dict[str, Any]]
    settings: dict[str, Any]


class _Reranking(TypedDict):
    depth: int
    interpolate: float | None


class _Search(TypedDict):
    fuse: NotRequired[dict[str, Any]]
    rerank: NotRequired[_Reranking]


class _RunIdentity(TypedDict):
    index: str
    search: _Search
    queries: str
    k: int


class _RunFacts(TypedDict):
    index: str
    collection: str


class _TrainingSettings(TypedDict):
    steps: int


class _ModelIdentity(TypedDict):
    recipe: _Sides
    granularities: list[str]
    data: str
    settings: _TrainingSettings


class _ExportIdentity(TypedDict):
    to: str


class _OpenTokens(TypedDict):
    execution: _ShardsExecution


class _PiecesExecution(_ShardsExecution):
    pieces: list[str]


class _ShardsManifest(TypedDict):
    execution: _PiecesExecution


class _OpenVectors(TypedDict):
    execution: _StorageExecution
    identity: _RecipeIdentity
    facts: _ModelFacts


class _TokensManifest(TypedDict):
    identity: _TokensIdentity
    execution: _TokensExecution


class _VectorsManifest(TypedDict):
    identity: _VectorsIdentity
    execution: _VectorsExecution
    facts: _ModelFacts


class _IndexManifest(TypedDict):
    identity: _IndexIdentity


class _RunManifest(TypedDict):
    identity: _RunIdentity
    facts: _RunFacts


class _ModelManifest(TypedDict):
    identity: _ModelIdentity
    facts: _ModelFacts


class _ExportManifest(TypedDict):
    identity: _ExportIdentity


# For each kind of artifact: the fields that lmk needs to open it, and all fields that lmk writes.
_REQUIRED_TO_OPEN: dict[str, Any] = {
    "tokens": _OpenTokens,
    "vectors": _OpenVectors,
    "index": _IndexManifest,
    "shards": _ShardsManifest,
}
_REQUIRED: dict[str, Any] = {
    "tokens": _TokensManifest,
    "vectors": _VectorsManifest,
    "index": _IndexManifest,
    "run": _RunManifest,
    "model": _ModelManifest,
    "shards": _ShardsManifest,
    "export": _ExportManifest,
}


NAME = "manifest.json"
CLEARED = (
    ".removed.manifest.json"  # the manifest of an artifact that was removed, or is being removed
)
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
    """The identity, execution and facts of one artifact, all JSON values."""

    kind: str
    identity: dict[str, Any]
    execution: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT
    digest: str = field(default="", compare=False)  # of all but the facts, in a file

    @property
    def fingerprint(self) -> str:
        """Hex digest of kind and identity. Equal fingerprints mean equal recipes and sources."""
        return digest({"kind": self.kind, "identity": self.identity})


def digest(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest(manifest: Manifest) -> str:
    """The digest of everything but the facts."""
    return digest(asdict(replace(manifest, facts={}, digest="")))


def as_text(manifest: Manifest) -> str:
    """Return the contents of a manifest file: JSON, with the digest."""
    written = replace(manifest, digest=_digest(manifest))
    return json.dumps(asdict(written), indent=1, ensure_ascii=False)


def environment(call: Call = NO_CALL) -> dict[str, Any]:
    """Return the versions, hardware and time of this process, and the operation that it runs."""
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
    """The model names of NVIDIA devices, read from /proc without loading a GPU library."""
    models = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text().splitlines()
        models += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")]
    return models


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


def claim(folder: Path, manifest: Manifest) -> Manifest:
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
            _create(path, as_text(manifest))
    except OSError:
        if fresh:
            with suppress(OSError):
                folder.rmdir()
        raise
    (folder / CLEARED).unlink(missing_ok=True)
    existing = read(folder)
    _compare("identity", existing, manifest, folder)
    _compare("execution", existing, manifest, folder)
    return existing


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


def read(folder: Path, *kinds: str) -> Manifest:
    """Read the manifest of an artifact folder. Raises DataError if it is missing.

    With `kinds`, also raises DataError for an artifact of another kind, and if a field is missing that
    lmk needs to open it.
    """
    try:
        manifest = read_file(folder / NAME)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} is not an lmk artifact: {_without_manifest(folder)}") from None
    if kinds and manifest.kind not in kinds:
        wanted = " or ".join(map(_with_article, kinds))
        raise DataError(f"{folder} contains {_with_article(manifest.kind)}; give {wanted}")
    if kinds:
        validate(asdict(manifest), _REQUIRED_TO_OPEN.get(manifest.kind, Any), folder / NAME, _AGAIN)
    return manifest


def _with_article(kind: str) -> str:
    if not kind.isalpha():  # no kind of lmk
        return f"an artifact of kind {kind!r}"
    article = "an " if kind[0] in "aeiou" else "a "
    return kind if kind.endswith("s") else article + kind


def read_file(path: Path) -> Manifest:
    """Read a manifest file. Raises DataError if lmk did not write it, or if a newer lmk wrote it."""
    data = read_json(path, dict[str, Any], _AGAIN)
    if type(data.get("format")) is int and data["format"] > FORMAT:
        raise DataError(
            f"{path} was written by a newer lmk (format {data['format']}): pip install -U lmkcli"
        )
    validate(data, Manifest, path, _AGAIN)
    validate(data.get("facts", {}), Facts, f"{path}, facts,", _AGAIN)
    return Manifest(**data)


def check_whole(folder: Path, manifest: Manifest) -> None:
    """Raise DataError if a manifest lacks a field of its kind, or if a value has the wrong type."""
    where = f"the manifest of {folder}"
    if manifest.kind not in _REQUIRED:
        raise DataError(f"{where} is of an unknown kind, {manifest.kind!r}; {_AGAIN}")
    validate(asdict(manifest), _REQUIRED[manifest.kind], where, _AGAIN)


def check_unchanged(folder: Path, manifest: Manifest) -> None:
    """Raise DataError if an identity or execution differs from the one that was written."""
    if manifest.digest not in ("", _digest(manifest)):
        raise DataError(
            f"{folder / NAME} has changed since it was written (its digest differs); restore it from a copy, "
            f"or {_AGAIN}"
        )


def check_recorded(manifest: Manifest, where: object) -> None:
    """Raise DataError if a manifest lacks a field that is needed to reproduce or describe the artifact.

    `where` names the manifest in the message.
    """
    validate(asdict(manifest), _REQUIRED.get(manifest.kind, Any), where, _AGAIN)
    validate(manifest.facts, ReproductionFacts, f"{where}, facts,", _AGAIN)


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
    lines = json_differences(getattr(existing, part), getattr(wanted, part))
    if existing.kind != wanted.kind:
        lines.insert(0, f"kind: {existing.kind} | {wanted.kind}")
    if lines:
        raise Mismatch(
            f"{folder} was made with another {part} (existing | requested):\n  "
            + "\n  ".join(lines)
            + "\nchoose another output folder, or --if-exists overwrite to replace it"
        )


def json_differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Return the leaves that differ between two JSON values, as lines 'a.b: left | right'."""
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            line
            for key in sorted(left.keys() | right.keys())
            for line in json_differences(
                left.get(key), right.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [] if left == right else [f"{path}: {left!r} | {right!r}"]
