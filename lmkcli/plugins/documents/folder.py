"""A folder or archive with one document per file: text, Markdown, HTML, PDF, Word and e-books."""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lmkcli import catalog
from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.data.fields import Fields
from lmkcli.data.filetext import FileReader, FileText, check_encoding
from lmkcli.data.qrels import read_qrels
from lmkcli.data.records import open_records
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.documents.file_trees import (
    ZIP,
    ZIPPED,
    DiskTree,
    FileTree,
    Listing,
    OneFile,
    ZipTree,
    is_known,
    kind_of,
)
from lmkcli.system.input_files import MAX_FILE, not_a_file

OPTIONS = ("encoding", "glob", "map_ids", "qrels", "queries", "unreadable")
MAX_SHOWN = 20  # files that an error message lists


def open_folder(name: str, options: dict[str, str]) -> "FolderCollection":
    """Open 'folder:PATH': every file with a reader (catalog.READERS) in the folder and its subfolders.

    PATH may also be a zip archive, or a single file.

    Options: `glob` reads only the matching files ('**/*.py+**/*.md'); `unreadable=skip` skips unreadable
    files, which otherwise are an error; `encoding` (utf-8) applies to files that do not declare an encoding;
    `map_ids`; and the files `queries` and `qrels`. The first use of the documents lists the folder. It raises
    DataError for a folder without such files, MissingExtra if the library that reads a file is not installed.
    """
    check_options(name, options, OPTIONS)
    if options.get("unreadable", "skip") != "skip":
        raise UsageError(
            f"{spell(name, options)}: write unreadable=skip, or remove the option to refuse such files"
        )
    check_encoding(options.get("encoding", "utf-8"))
    paths = {key: options[key] for key in ("queries", "qrels") if key in options}
    for key, path in paths.items():
        file = Path(os.path.expanduser(path))
        if not file.is_file():
            raise DataError(f"{key}={path}: {not_a_file(file) or 'no such file'}")
    root = Path(os.path.expanduser(name.removeprefix("folder:") or "."))
    if root.is_file():
        tree: FileTree = ZipTree(root) if root.suffix.lower() == ZIP else OneFile(root)
    elif root.is_dir():
        tree = DiskTree(root)
    else:
        raise DataError(f"{name}: {not_a_file(root) or 'no such folder'}")
    absolute = options | {
        key: os.path.abspath(os.path.expanduser(path)) for key, path in paths.items()
    }
    return FolderCollection(spell(f"folder:{os.path.abspath(root)}", absolute), tree, absolute)


def matches(path: str, glob: str) -> bool:
    """Whether a path matches a pattern: `*`, `?` and `[…]` within a name, `**` for any folders."""
    names, patterns = path.split("/"), glob.split("/")
    name = pattern = 0
    again: tuple[int, int] | None = None  # after a mismatch: the last '**' takes one more folder
    while name < len(names):
        if pattern < len(patterns) and patterns[pattern] == "**":
            pattern += 1
            again = name, pattern
        elif pattern < len(patterns) and fnmatchcase(names[name], patterns[pattern]):
            name, pattern = name + 1, pattern + 1
        elif again:
            again = again[0] + 1, again[1]
            name, pattern = again
        else:
            return False
    return all(each == "**" for each in patterns[pattern:])


class _OpenedFolder(NamedTuple):
    """The files of a folder with their ids, in order; their stamp; and the readers of their kinds."""

    ids: dict[str, str]
    file_stats: dict[str, list[int]]
    readers: dict[str, FileReader]


class FolderCollection(Collection):
    """One document per file. The id of a document is the path of its file in the folder or archive."""

    def __init__(self, name: str, tree: FileTree, options: dict[str, str]) -> None:
        self.name = name
        self._tree, self._options = tree, options
        self._fields = Fields.parse({k: v for k, v in options.items() if k == "map_ids"})
        self._encoding = options.get("encoding", "utf-8")
        self.settings = self._fields.settings | {"encoding": self._encoding}
        self._skipped: dict[str, str] = {}

    # The folder is listed when its documents are used. Judgements need no list: an evaluation of a run from
    # someone else must not read the whole disk because the record of the run names '/' as its collection.
    @cached_property
    def _listing(self) -> Listing:
        return self._tree.listing(self._selected)

    @cached_property
    def _opened(self) -> "_OpenedFolder":
        """The state at the first use of the documents."""
        files = self._listing.files
        kinds = sorted({kind_of(path) for path in files})
        readers: dict[str, FileReader] = {kind: catalog.READERS.load(kind) for kind in kinds}
        return _OpenedFolder(self._unique_ids(), self._file_stats_of(files), readers)

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """The documents of a shard.

        Without `unreadable=skip`, raises DataError with all unreadable files before the first document.
        """
        files = list(self._opened.ids)
        rows = shard.rows(len(files))
        files = files[rows.start : rows.stop]
        return CountedDocs(lambda: self._docs(files), len(files))

    def queries(self) -> Iterator[Query]:
        path = self._options.get("queries")
        if path is None:
            raise DataError(f"{self.name}: a folder has no queries; add ',queries=path'")
        records = open_records(path, WHOLE, self._fields.known)
        return (self._fields.query(record, where) for where, record in records)

    def qrels(self) -> Iterator[Qrel]:
        if not self.has_qrels():
            raise DataError(f"{self.name}: no judgements; name a file with ',qrels=path'")
        return read_qrels(self._options["qrels"], self._fields.map_ids)

    def has_qrels(self) -> bool:
        return "qrels" in self._options

    def file_stats(self) -> dict[str, list[int]]:
        """Total size, latest modification time, and a hash of all names, sizes and times."""
        return self._opened.file_stats

    def skipped_files(self) -> dict[str, str]:
        """Skipped unreadable files, and the number of files with each suffix that is not read."""
        others = {
            suffix: "is a kind that is not read" + (f" ({count:,} files)" if count > 1 else "")
            for suffix, count in sorted(self._listing.others.items())
        }
        return {**self._listing.errors, **self._skipped, **others}

    def skipped_count(self) -> int:
        return len(self._listing.errors | self._skipped)

    def _selected(self, path: str) -> bool:
        globs = self._options.get("glob")
        if globs is None:
            return is_known(path)
        return any(matches(path, glob) for glob in globs.split("+"))

    def _unique_ids(self) -> dict[str, str]:
        """File -> id. Raises DataError for an invalid or repeated id, and for a folder without files."""
        if not self._listing.files and not self._listing.errors:
            kinds = ", ".join(
                f"{n:,} {suffix}" for suffix, n in self._listing.others.most_common(5)
            )
            raise DataError(
                f"{self.name}: none of its files is selected; it contains {kinds or 'no files'}. "
                "Select files by name, for instance with ',glob=**/*.py'"
            )
        ids = {path: self._fields.id(path, self.name, "document") for path in self._listing.files}
        files: dict[str, str] = {}
        for path, name in ids.items():
            if files.setdefault(name, path) != path:
                raise DataError(
                    f"{self.name}: {files[name]!r} and {path!r} have the same id; rename one"
                )
        return ids

    def _docs(self, files: list[str]) -> Iterator[Doc]:
        if "unreadable" not in self._options:
            self._check(files)
        for path in files:
            try:
                content = self._read(path)
            except DataError as error:
                self._skipped[path] = str(error)
                continue
            title = content.title or (
                PurePosixPath(path.removesuffix(ZIPPED)).stem if content.text.strip() else ""
            )
            yield Doc(self._opened.ids[path], content.text, title)
        now = self._tree.listing(self._selected).files
        if self._file_stats_of(now) != self._opened.file_stats:
            raise DataError(
                f"{self.name}: files changed while lmk read them: run the command again with "
                "--if-exists overwrite (or update) when nothing writes into the folder any more"
            )

    def _check(self, files: list[str]) -> None:
        """Raise DataError with all unreadable files."""
        errors = dict(self._listing.errors)
        for path in files:
            try:
                self._read(path)
            except DataError as error:
                errors[path] = str(error)
        if errors:
            lines = [f"  {path} {reason}" for path, reason in list(errors.items())[:MAX_SHOWN]]
            lines += [f"  … and {len(errors) - MAX_SHOWN:,} more"] * (len(errors) > MAX_SHOWN)
            raise DataError(
                f"{self.name}: {len(errors):,} of its files cannot be read:\n"
                + "\n".join(lines)
                + "\nfix or move them, or skip them with ',unreadable=skip'"
            )

    def _read(self, path: str) -> FileText:
        data = self._tree.read(path)
        return self._opened.readers[kind_of(path)](_unzipped(data, path), self._encoding)

    def _file_stats_of(self, paths: list[str]) -> dict[str, list[int]]:
        digest, sizes, times = hashlib.sha256(), [0], [0]
        for path in paths:
            try:
                stat = self._tree.stat(path)
            except OSError:  # deleted in the meantime: reading it will raise the error
                continue
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
            sizes.append(stat.st_size)
            times.append(stat.st_mtime_ns)
        number = int.from_bytes(digest.digest()[:6], "big")
        return {self._tree.root.resolve().name: [sum(sizes), max(times), number]}


def _unzipped(data: bytes, path: str) -> bytes:
    """The contents of a file. Raises DataError for a damaged gzip file, or a large one."""
    if not path.lower().endswith(ZIPPED):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(MAX_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"is a damaged or truncated gzip file ({error})") from None
    if len(unpacked) > MAX_FILE:
        raise DataError(f"is larger than {MAX_FILE:,} bytes when unpacked")
    return unpacked
