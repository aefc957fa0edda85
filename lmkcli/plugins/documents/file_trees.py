"""Files that are documents, in a folder on disk, in an archive, or alone.

Paths in a tree of files are separated by '/'.
"""

import os
import stat
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

from lmkcli import catalog
from lmkcli.errors import DataError
from lmkcli.system.input_files import MAX_FILE, whole_file

ZIP = ".zip"
TABLES = frozenset((".csv", ".jsonl", ".mbox", ".parquet", ".tsv"))
ZIPPED = ".gz"
MAX_ARCHIVE = 64 << 30  # bytes of all files of an archive, unpacked
MAX_MEMBERS = 1_000_000  # files of an archive


TEXT = "text"  # the reader of files with an unknown suffix, which a glob selects


def is_known(path: str) -> bool:
    """Whether a file is read without a glob."""
    return bool(_reader_of(path))


def kind_of(path: str) -> str:
    """The reader of a file; files with an unknown suffix, which a glob selects, are text."""
    return _reader_of(path) or TEXT


def _reader_of(path: str) -> str:
    """The row of READERS for a file, by its name; '' if no reader reads such names."""
    suffixes, names = _readers()
    name = PurePosixPath(unpacked(path))
    return suffixes.get(name.suffix) or names.get(name.name, "")


@cache
def _readers() -> tuple[dict[str, str], dict[str, str]]:
    """Suffix -> reader, and name of a file -> reader."""
    rows = catalog.READERS.values()
    suffixes = {suffix: row.name for row in rows for suffix in row.suffixes}
    return suffixes, {name: row.name for row in rows for name in row.names}


def has_reader(suffix: str) -> bool:
    """Whether a reader reads files with this suffix."""
    return suffix in _readers()[0]


def claimed(name: str) -> str:
    """The name in the source `folder` of a file that is a document or an archive of documents; else ''."""
    return f"folder:{name}" if is_document(Path(os.path.expanduser(name))) else ""


def unpacked(path: str) -> str:
    """The path in lower case, without the suffix of gzip."""
    return path.lower().removesuffix(ZIPPED)


def is_document(path: Path) -> bool:
    """Whether a file is a document, or a zip archive of documents, rather than a file of records.

    A text file is no document, because it may be a table; an archive with tables is none. Raises DataError
    for a damaged archive.
    """
    name = unpacked(path.name)
    if not path.is_file():
        return False
    if PurePosixPath(name).suffix != ZIP:
        return _by_suffix(name)
    with opened_zip(path) as archive:
        files = [
            each.filename
            for each in archive.infolist()
            if not each.is_dir() and not is_hidden(each.filename)
        ]
    if len(files) == 1:
        return _by_suffix(unpacked(files[0]))
    suffixes = {PurePosixPath(unpacked(each)).suffix for each in files}
    return not suffixes & TABLES and any(is_known(each) for each in files)


def _by_suffix(name: str) -> bool:
    """Whether the suffix of a name is that of a document which is no plain text."""
    return _readers()[0].get(PurePosixPath(name).suffix, TEXT) != TEXT


@dataclass
class Listing:
    """The files below a folder, as sorted paths with '/'."""

    files: list[str] = field(default_factory=list)
    """The selected files."""
    errors: dict[str, str] = field(default_factory=dict)
    """Selected paths that are unreadable -> the reason."""
    others: Counter[str] = field(default_factory=Counter)
    """Suffix -> the number of files that are not selected."""


def list_files(root: Path, selected: Callable[[str], bool]) -> Listing:
    """List the files below `root`; `selected` tests a path.

    Names that start with a dot are skipped, as in a shell. Links are not followed: a link to a place in
    the folder is skipped too, and a link out of the folder is an error.
    """
    listing = Listing()
    for path in sorted(_walk(root, listing.errors)):
        if not selected(path):
            listing.others[Path(path).suffix.lower() or "(no suffix)"] += 1
        elif reason := _unreadable_reason(root, path):
            listing.errors[path] = reason
        elif not (root / path).is_symlink():
            listing.files.append(path)
    return listing


def _walk(root: Path, errors: dict[str, str]) -> Iterator[str]:
    """The paths of all files; folders that cannot be opened are added to `errors`."""

    def relative(path: str) -> str:
        return Path(path).relative_to(root).as_posix()

    def failed(error: OSError) -> None:
        errors[relative(error.filename)] = f"cannot be opened ({error.strerror})"

    for folder, folders, files in os.walk(root, onerror=failed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            path = relative(os.path.join(folder, name))
            if os.path.islink(root / path) and (reason := _unreadable_reason(root, path)):
                errors[path] = reason
        yield from (relative(os.path.join(folder, name)) for name in files if name[0] != ".")


def _unreadable_reason(root: Path, path: str) -> str:
    """The reason why a file or a link is unreadable; empty if it is readable."""
    place = root / path
    try:
        mode = place.stat().st_mode
        if place.is_symlink() and not place.resolve().is_relative_to(root.resolve()):
            return "is a link out of the folder, which lmk does not follow; copy its target"
    except OSError as error:
        return f"cannot be opened ({error.strerror})"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "is a pipe or a device"
    if any("\ud800" <= character <= "\udfff" for character in path):
        return "has a name that is not UTF-8; rename it"
    return ""


class FileTree(ABC):
    """Files with paths below `root`, which is a folder, an archive or the only file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def listing(self, selected: Callable[[str], bool]) -> Listing:
        """The files; `selected` tests a path."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises DataError, with only the reason, if it is unreadable or too large."""

    def stat(self, path: str) -> os.stat_result:
        """Size and times of the file on disk that contains a path. Raises OSError if it was deleted."""
        return self.root.stat()


class DiskTree(FileTree):
    """A folder on disk."""

    def listing(self, selected: Callable[[str], bool]) -> Listing:
        return list_files(self.root, selected)

    def read(self, path: str) -> bytes:
        return read_file(self.root / path)

    def stat(self, path: str) -> os.stat_result:
        return (self.root / path).stat()


class OneFile(FileTree):
    """A single file, which is selected whatever its name."""

    def listing(self, selected: Callable[[str], bool]) -> Listing:
        return Listing([self.root.name])

    def read(self, path: str) -> bytes:
        return read_file(self.root)


def read_file(file: Path) -> bytes:
    """The bytes of a file on disk. Raises DataError, with only the reason."""
    try:
        if file.stat().st_size > MAX_FILE:
            raise DataError(f"is larger than {MAX_FILE:,} bytes")
        return whole_file(file)
    except OSError as error:
        raise DataError(f"cannot be opened ({error.strerror})") from None


class ZipTree(FileTree):
    """The files in a zip archive. Nothing is unpacked to disk, and a path is only a name.

    Files are read one by one and at most MAX_FILE bytes of each, so a small archive of huge files needs
    little memory.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._archive = opened_zip(root)
        members = self._archive.infolist()
        if len(members) > MAX_MEMBERS or sum(each.file_size for each in members) > MAX_ARCHIVE:
            raise DataError(
                f"{root}: {len(members):,} files with more than lmk reads from an archive ({MAX_MEMBERS:,} "
                f"files, {MAX_ARCHIVE >> 30} GiB); unpack it with unzip, and name the folder"
            )
        self._members = [
            each for each in members if not each.is_dir() and not is_hidden(each.filename)
        ]

    def listing(self, selected: Callable[[str], bool]) -> Listing:
        listing = Listing()
        times = Counter(member.filename for member in self._members)
        for member in sorted(self._members, key=lambda each: each.filename):
            path = member.filename
            if not selected(path):
                listing.others[PurePosixPath(path).suffix.lower() or "(no suffix)"] += 1
            elif reason := _refusal(member):
                listing.errors[path] = reason
            elif times[path] > 1:
                listing.errors[path] = f"is in the archive {times[path]} times"
            else:
                listing.files.append(path)
        return listing

    def read(self, path: str) -> bytes:
        try:
            with self._archive.open(path) as file:
                data = file.read(MAX_FILE + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise DataError(f"is damaged ({error})") from None
        except (RuntimeError, NotImplementedError) as error:  # an unknown method of compression
            raise DataError(f"cannot be unpacked ({error})") from None
        except OSError as error:
            raise DataError(f"cannot be opened ({error.strerror})") from None
        if len(data) > MAX_FILE:
            raise DataError(f"is larger than {MAX_FILE:,} bytes")
        return data


def _refusal(member: zipfile.ZipInfo) -> str:
    """The reason why a file of an archive is not read; empty if it is."""
    parts = member.filename.replace("\\", "/").split("/")
    if ".." in parts or member.filename.startswith(("/", "\\")) or ":" in parts[0]:
        return "has a path that leads out of the archive"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "is a link, which lmk does not follow"
    if member.flag_bits & 1:
        return "is encrypted; save the archive without a password"
    if member.file_size > MAX_FILE:
        return f"is larger than {MAX_FILE:,} bytes when unpacked"
    return ""


def is_hidden(path: str) -> bool:
    """Whether a path in an archive has a name that starts with a dot, or is one of macOS' resource files."""
    names = path.split("/")
    return names[0] == "__MACOSX" or any(
        name.startswith(".") and name not in (".", "..") for name in names
    )


def opened_zip(path: Path) -> zipfile.ZipFile:
    """Open an archive. Raises DataError if it is damaged."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as error:
        raise DataError(f"{path}: damaged or truncated zip ({error}); download it again") from None
