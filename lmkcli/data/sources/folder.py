"""A folder of files, each of which is a document: text, Markdown, HTML and PDF."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

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
from lmkcli.data.filetext import FileReader, FileText, check_encoding
from lmkcli.data.filetree import list_files, matches
from lmkcli.data.formats import Fields
from lmkcli.data.records import open_records
from lmkcli.data.trec import read_qrels
from lmkcli.errors import DataError, UsageError
from lmkcli.reading import WHOLE as WHOLE_FILE
from lmkcli.reading import whole_file

OPTIONS = ("encoding", "glob", "map_ids", "qrels", "queries", "unreadable")
KINDS = {
    **dict.fromkeys((".txt", ".text", ".rst"), "text"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
}
SHOWN = 20  # files that an error names


def open_folder(name: str, options: dict[str, str]) -> "FolderCollection":
    """'folder:PATH': every text, Markdown, HTML and PDF file in it and in the folders below.

    Options: `glob` reads the files that match instead ('**/*.py+**/*.md'), `unreadable=skip` leaves
    out what cannot be read, which is refused otherwise; `encoding` (utf-8) is that of files that do not
    say theirs; `map_ids`, and the files `queries` and `qrels`. DataError for a folder without such
    files, MissingExtra when what reads them is not installed.
    """
    check_options(name, options, OPTIONS)
    if options.get("unreadable", "skip") != "skip":
        raise UsageError(
            f"{spell(name, options)}: write unreadable=skip, or leave it out to refuse such files"
        )
    check_encoding(options.get("encoding", "utf-8"))
    paths = {key: options[key] for key in ("queries", "qrels") if key in options}
    for key, path in paths.items():
        if not Path(os.path.expanduser(path)).is_file():
            raise DataError(f"{key}={path}: no such file")
    root = Path(os.path.expanduser(name.removeprefix("folder:") or "."))
    if not root.is_dir():
        raise DataError(f"{name}: no such folder")
    whole = options | {
        key: os.path.abspath(os.path.expanduser(path)) for key, path in paths.items()
    }
    return FolderCollection(spell(f"folder:{os.path.abspath(root)}", whole), root, whole)


class FolderCollection(Collection):
    """Each file is a document; its id is its path below the folder."""

    def __init__(self, name: str, root: Path, options: dict[str, str]) -> None:
        self.name = name
        self._root, self._options = root, options
        self._fields = Fields.parse({k: v for k, v in options.items() if k == "map_ids"})
        self._encoding = options.get("encoding", "utf-8")
        self.settings = self._fields.settings | {"encoding": self._encoding}
        self._listing = list_files(root, self._meant)
        self._stamp = self._look(self._listing.files)
        self._ids = self._named()
        self._readers = _readers(self._listing.files)
        self._unread: dict[str, str] = {}

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Unless unreadable files are skipped, DataError names them all, before the first document."""
        mine = shard.rows(len(self._listing.files))
        files = self._listing.files[mine.start : mine.stop]
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

    def stamp(self) -> dict[str, list[int]]:
        """All bytes, the latest time, and a number that changes with the name, size or time of any."""
        return self._stamp

    def left_out(self) -> dict[str, str]:
        """Unreadable files, where they are skipped, and how many have a suffix that is not read."""
        others = {
            suffix: "is a kind that is not read" + (f" ({count:,} files)" if count > 1 else "")
            for suffix, count in sorted(self._listing.others.items())
        }
        return {**self._listing.faults, **self._unread, **others}

    def _meant(self, path: str) -> bool:
        globs = self._options.get("glob")
        if globs is None:
            return Path(path).suffix.lower() in KINDS
        return any(matches(path, glob) for glob in globs.split("+"))

    def _named(self) -> dict[str, str]:
        """File -> id. DataError for one that no run can hold, for two that are one, and for no file."""
        if not self._listing.files:
            kinds = ", ".join(
                f"{n:,} {suffix}" for suffix, n in self._listing.others.most_common(5)
            )
            raise DataError(
                f"{self.name}: no file in it is to be read; there are: {kinds or 'none'}. "
                "',glob=**/*.py', for instance, chooses by name"
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
                self._unread[path] = str(error)
                continue
            named = content.title or (PurePosixPath(path).stem if content.text.strip() else "")
            yield Doc(self._ids[path], content.text, named)
        if self._look(list_files(self._root, self._meant).files) != self._stamp:
            raise DataError(
                f"{self.name}: files were changed while they were read: run the command again with "
                "--if-exists overwrite (or update) when nothing writes into them any more"
            )

    def _check(self, files: list[str]) -> None:
        """DataError with all that cannot be read."""
        faults = dict(self._listing.faults)
        for path in files:
            try:
                self._read(path)
            except DataError as error:
                faults[path] = str(error)
        if faults:
            lines = [f"  {path} {fault}" for path, fault in list(faults.items())[:SHOWN]]
            lines += [f"  … and {len(faults) - SHOWN:,} more"] * (len(faults) > SHOWN)
            raise DataError(
                f"{self.name}: {len(faults):,} of its files cannot be read:\n"
                + "\n".join(lines)
                + "\nmend or move them, or leave them out with ',unreadable=skip'"
            )

    def _read(self, path: str) -> FileText:
        file = self._root / path
        try:
            if file.stat().st_size > WHOLE_FILE:
                raise DataError(f"is larger than {WHOLE_FILE:,} bytes")
            data = whole_file(file)
        except OSError as error:
            raise DataError(f"cannot be opened ({error.strerror})") from None
        return self._readers[_kind(path)](data, self._encoding)

    def _look(self, paths: list[str]) -> dict[str, list[int]]:
        digest, sizes, times = hashlib.sha256(), [0], [0]
        for path in paths:
            try:
                stat = (self._root / path).stat()
            except OSError:  # gone since a moment: reading will say so
                continue
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
            sizes.append(stat.st_size)
            times.append(stat.st_mtime_ns)
        number = int.from_bytes(digest.digest()[:6], "big")
        return {self._root.resolve().name: [sum(sizes), max(times), number]}


def _kind(path: str) -> str:
    """What reads a file; what a glob chooses without a known suffix is text."""
    return KINDS.get(PurePosixPath(path).suffix.lower(), "text")


def _readers(files: list[str]) -> dict[str, FileReader]:
    """Of each kind that is there; MissingExtra for one whose library is not installed."""
    kinds = sorted({_kind(path) for path in files})
    return {kind: catalog.load(catalog.READERS, kind, "reader") for kind in kinds}
