"""The files of one table of a hub repository: in a mirror folder, in the hub's cache, or downloaded.

No dataset script is run and nothing is guessed from a file's inside: a table's files are those that
its layout names, that the repository's README declares, or that lie where the hub's conventions put a
split of a configuration. What is downloaded is kept, checked, locked and resumed by huggingface_hub.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfApi, metadata_load, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from lmkcli.data.hub_layouts import MIRROR, Table, mirror
from lmkcli.errors import DataError
from lmkcli.system import network

README = "README.md"
SUFFIXES = ("-*.parquet", ".parquet", "/*.parquet", ".jsonl.gz", ".jsonl", ".json", ".tsv")
SPLITS = {"dev": "validation", "validation": "dev", "val": "validation"}  # two names of one thing
PIECE = re.compile(r"-(\d{5})-of-(\d{5})")


class Choice(NamedTuple):
    """The patterns that fit, and the files that they fit."""

    patterns: tuple[str, ...]
    names: list[str]


class Found(NamedTuple):
    """The files of a table, in order, below the folder of a repository; `commit` is '' in a mirror."""

    root: Path
    names: list[str]
    commit: str

    @property
    def paths(self) -> list[Path]:
        """Where they are."""
        return [self.root / name for name in self.names]


def find(table: Table, fetch: str) -> Found:
    """A table's files, downloaded if need be; what is in the cache is not asked for again.

    `fetch` is the name that 'lmk fetch' takes. DataError when there are none, when pieces are missing,
    and when they would have to be downloaded and may or can not.
    """
    here = mirror(table.repo)
    if here is not None:
        return _complete(Found(here, _choose(table, _listing(here), here).names, ""), table)
    files = _cached(table) or _download(table, fetch)
    return _complete(files, table)


def _complete(files: Found, table: Table) -> Found:
    place = f"{table.repo} in {files.root}"
    if not files.names:
        raise DataError(
            f"{place}: no file of {_wanted(table)}; expected {next(_candidates(table, {}))[0]} "
            f"with the columns {table.expected or 'of TREC qrels'}; "
            f"it holds {_some(_listing(files.root))}"
        )
    pieces = [match for name in files.names if (match := PIECE.search(name))]
    if pieces and len(pieces) < int(pieces[0][2]):
        raise DataError(
            f"{place}: {len(pieces)} of {int(pieces[0][2])} files of {_wanted(table)} are there "
            f"({files.names[0]} …); copy the others too"
        )
    return files


def _wanted(table: Table) -> str:
    said = [f"configuration '{table.config}'" * bool(table.config)]
    return ", ".join(filter(None, [*said, f"split '{table.split}'" * bool(table.split)])) or "this"


def _some(names: list[str]) -> str:
    return (", ".join(names[:8]) + (" …" if len(names) > 8 else "")) or "nothing"


def _listing(root: Path) -> list[str]:
    """Every file below a folder, sorted; hidden ones are the hub's own notes."""
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in files if not path.parts[0].startswith("."))


def _choose(table: Table, names: list[str], root: Path) -> Choice:
    """The first candidate that fits any of the files, and those; ((), []) when none does."""
    card = root / README
    declared = metadata_load(card) if card.is_file() else None
    for patterns in _candidates(table, declared or {}):
        hits = [name for name in names if any(fnmatchcase(name, each) for each in patterns)]
        if hits:
            return Choice(patterns, hits)
    return Choice((), [])


def _candidates(table: Table, card: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Where the files may be: as the layout says, as the README does, then by convention."""
    configs, splits = table.config.split("|"), table.split.split("|")
    splits += [SPLITS[split] for split in splits if split in SPLITS]
    yield from ((pattern,) for pattern in table.files)
    yield from _declared(card.get("configs") or [], configs, splits)
    if table.config:
        yield from ((pattern,) for pattern in _usual(configs, splits))


def _declared(
    entries: Iterable[dict[str, Any]], configs: list[str], splits: list[str]
) -> Iterator[tuple[str, ...]]:
    """The data files of a README's configurations; a lone split is the one that is meant."""
    for entry in entries:
        if entry.get("config_name") not in configs:
            continue
        given = entry.get("data_files") or []
        parts = [part for part in given if isinstance(part, dict)]
        for split in splits if len(parts) > 1 else [part.get("split") for part in parts]:
            yield from (_paths(part) for part in parts if part.get("split") == split)
        if not parts:
            yield _paths({"path": given})


def _paths(part: dict[str, Any]) -> tuple[str, ...]:
    path = part.get("path", ())
    return (path,) if isinstance(path, str) else tuple(path)


def _usual(configs: list[str], splits: list[str]) -> Iterator[str]:
    """Files by convention: 'corpus/corpus-00000-of-00001.parquet', 'qrels/test.jsonl', 'corpus.jsonl'."""
    folders = [*configs, *(("data", "qrels", ".") if "default" in configs else ())]
    for folder, split, suffix in product(folders, splits, SUFFIXES):
        yield f"{folder}/{split}{suffix}".removeprefix("./")
    for config, suffix in product(configs, SUFFIXES):
        yield f"{config}{suffix}"


def _cached(table: Table) -> Found | None:
    """What is in the hub's cache, if it is whole; nobody is asked."""
    try:
        # A pattern that fits nothing: the folder is wanted, whatever is in it.
        root = Path(_snapshot(table, ["/"], local_files_only=True))
        patterns, names = _choose(table, _listing(root), root)
        if names:
            _snapshot(table, list(patterns), local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return Found(root, names, root.name) if names else None


def _download(table: Table, fetch: str) -> Found:
    if network.forbidden():
        raise DataError(
            f"{table.repo}: {_wanted(table)} is not in the hub's cache, and an offline job does not "
            f"download it. Run 'lmk fetch {fetch}' once, on a machine with a network, or name a "
            f"mirror folder in {MIRROR}"
        )
    try:
        root = Path(_snapshot(table, [README]))
        names = HfApi().list_repo_files(table.repo, repo_type="dataset", revision=root.name)
        chosen = _choose(table, sorted(names), root).names
        if chosen:
            _snapshot(table, chosen, commit=root.name)
        return Found(root, chosen, root.name)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise DataError(
            f"{table.repo}: it cannot be downloaded ({type(error).__name__}: {str(error)[:300]}). "
            f"Copy it into a mirror folder, {MIRROR}=folder with folder/{table.repo}/…; repositories "
            f"behind a form need an account (hf auth login)"
        ) from error


def _snapshot(
    table: Table, patterns: list[str], *, commit: str = "", local_files_only: bool = False
) -> str:
    return snapshot_download(
        table.repo,
        repo_type="dataset",
        revision=commit or table.revision or None,
        allow_patterns=patterns,
        local_files_only=local_files_only,
    )
