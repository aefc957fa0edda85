"""Files that are documents, in a folder on disk, in an archive, or alone.

Paths in a tree of files are separated by '/'.
"""

import json
import os
import re
import stat
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath

from lmkcli import catalog
from lmkcli.artifact.outputs import is_artifact
from lmkcli.data.beir_folder import is_beir
from lmkcli.data.collection import CONTROL_CHARACTERS
from lmkcli.data.filetext import marked_encoding, wide_encoding
from lmkcli.errors import DataError
from lmkcli.plugins.documents.ignored import (
    GITIGNORE,
    IgnoreRules,
    is_dependencies,
    is_ignored,
)
from lmkcli.system.input_files import MAX_FILE, whole_file
from lmkcli.text.formatting import shell_line

ZIP = ".zip"
TABLES = frozenset((".csv", ".json", ".jsonl", ".mbox", ".ndjson", ".parquet", ".tsv"))
ZIPPED = ".gz"
ARCHIVES = frozenset(
    f"{ZIP} .7z .bz2 .lz .lz4 .lzma .rar .tar .tbz .tbz2 .tgz .tlz .txz .tzst .xz .zst".split()
)
# Bytes of a file without a suffix: a text if none of them is zero (as in git), or in UTF-16 or UTF-32
_FIRST = 8000
# The end of `run-1.2`, `notes 3. May` and `app.log.1` is no suffix
_SUFFIX = re.compile(r"\.[a-z0-9]*[a-z][a-z0-9]*", re.IGNORECASE)
MAX_ARCHIVE = 64 << 30  # bytes of all files of an archive, unpacked
# The first words of names of tables in collections
_DOCS = frozenset(("corpus", "collection", "documents", "docs", "passages"))
_OTHERS = frozenset(("queries", "topics", "qrels"))
_NAME_END = re.compile(r"[._-]")
_SPLITS = "dataset_dict.json"
_OF_DATASET = ("dataset_info.json", "state.json")
_OF_MODELS = ("config.json", "modules.json", "adapter_config.json")
MAX_MEMBERS = 1_000_000  # files of an archive


TEXT = "text"  # the reader of files with an unknown suffix, which a glob selects
_LINES = frozenset((TEXT, "code", "log"))  # readers of files that may also be tables of records


def is_known(path: str) -> bool:
    """Return whether a file is read without a glob."""
    return bool(_reader_of(path)) or is_table(path)


def is_archive(path: str) -> bool:
    """Return whether a file has the suffix of an archive, or of a compressed file that
    lmk does not unpack.
    """
    return bool(
        {PurePosixPath(path.lower()).suffix, PurePosixPath(unpacked(path)).suffix} & ARCHIVES
    )


def is_table(path: str) -> bool:
    """Return whether a file has the suffix of a file of records."""
    return PurePosixPath(unpacked(path)).suffix in TABLES


def kind_of(path: str) -> str:
    """Return the reader of a file; files with an unknown suffix, which a glob selects, are text."""
    return _reader_of(path) or TEXT


def _reader_of(path: str) -> str:
    """Return the row of READERS for a file, by its name; '' if no reader reads such names."""
    suffixes, names = _readers()
    name = PurePosixPath(unpacked(path))
    while name.suffix and not suffix_of(name.name):  # a number of a log or a version
        name = name.with_suffix("")
    return suffixes.get(name.suffix) or names.get(name.name, "")


def suffix_of(path: str) -> str:
    """Return the suffix of a path in lower case; '' if what follows the last dot is no kind of file."""
    suffix = PurePosixPath(path).suffix.lower()
    return suffix if _SUFFIX.fullmatch(suffix) else ""


@cache
def _readers() -> tuple[dict[str, str], dict[str, str]]:
    """Suffix -> reader, and name of a file -> reader."""
    rows = catalog.READERS.values()
    suffixes = {suffix: row.name for row in rows for suffix in row.suffixes}
    return suffixes, {name: row.name for row in rows for name in row.names}


def claimed(name: str) -> str:
    """Return the name in the source `folder` of documents: a folder, a file or an archive; else ''.

    A folder of documents is neither a BEIR folder nor an artifact.
    """
    place = Path(os.path.expanduser(name))
    if not place.is_dir():
        return f"folder:{name}" if is_document(place) else ""
    if is_beir(place) or is_artifact_folder(place):
        return ""
    check_no_queries(place, name)
    return f"folder:{name}"


def check_no_queries(folder: Path, name: str) -> None:
    """Raise DataError for a folder with tables of documents and of queries or judgements, by their names.

    Examples are MS MARCO's files and the repository of a dataset. As a folder of documents, its queries and
    judgements would become documents, and the ids would contain the names of the files.
    """
    docs, others = _tables_of(folder, _DOCS), _tables_of(folder, _OTHERS)
    if not (docs and others):
        return
    options = ",queries=…,qrels=…"
    raise DataError(
        f"{name} has a table of documents ({docs[0]}) and of queries or judgements ({others[0]}), in another "
        f"layout than BEIR's; name its files: {Path(name, docs[0])}{options}, or read the copy of a dataset "
        f"of the hub: hf:{os.path.abspath(folder)}; to read each record of all files as a document, write "
        f"folder:{name}"
    )


def is_dataset(folder: Path) -> bool:
    """Return whether the library datasets wrote a folder: a dataset (files of Arrow), or a dictionary of
    splits.
    """
    return (folder / _SPLITS).is_file() or all((folder / name).is_file() for name in _OF_DATASET)


def check_no_dataset(folder: Path) -> None:
    """Raise DataError for a dataset: as a folder of documents, its settings would be the documents."""
    if not is_dataset(folder):
        return
    inner = sorted(each.name for each in folder.iterdir() if is_dataset(each))
    split = f"[{json.dumps(inner[0])}]" if (folder / _SPLITS).is_file() and inner else ""
    opened = f"datasets.load_from_disk({json.dumps(str(folder))}){split}"
    program = f'import datasets; {opened}.to_parquet("docs.parquet")'
    raise DataError(
        f"{folder} is a dataset as save_to_disk of the library datasets writes it; save it as parquet, and "
        f"give that file: {shell_line('python', '-c', program)}"
    )


def _tables_of(folder: Path, words: frozenset[str]) -> list[str]:
    """Return the tables in a folder whose own name, or the name of their folder, starts with one of the
    words.
    """
    found = []
    for entry in sorted(folder.iterdir()):
        if _NAME_END.split(entry.name.lower(), maxsplit=1)[0] in words:
            inner = sorted(entry.iterdir()) if entry.is_dir() else [entry]
            found += [str(each.relative_to(folder)) for each in inner if is_table(each.name)]
    return found


def is_artifact_folder(folder: Path) -> bool:
    """Return whether a folder is an artifact of lmk, even a damaged one, an index of another tool, or a
    model.
    """
    from lmkcli.artifact import manifest
    from lmkcli.artifact.outputs import COMPLETE

    names = (manifest.NAME, manifest.CLEARED, "parts", *COMPLETE, *_OF_MODELS)
    if any((folder / name).exists() for name in names):
        return True
    from lmkcli.retrieval.pipeline import foreign_engine  # imports pyarrow

    return bool(foreign_engine(folder))


def unpacked(path: str) -> str:
    """Return the path in lower case, without the suffix of gzip."""
    return path.lower().removesuffix(ZIPPED)


def is_document(path: Path) -> bool:
    """Return whether a file is a document, or a zip archive of documents, rather than a file of records.

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
    return not suffixes & TABLES and any(_reader_of(each) for each in files)


def _by_suffix(name: str) -> bool:
    """Return whether the suffix of a name is that of a document which is not made of lines."""
    return _readers()[0].get(PurePosixPath(name).suffix, TEXT) not in _LINES


@dataclass
class Listing:
    """The files below a folder, as sorted paths with '/'."""

    files: list[str] = field(default_factory=list)
    """The selected files."""
    errors: dict[str, str] = field(default_factory=dict)
    """Selected paths that are unreadable -> the reason."""
    others: list[str] = field(default_factory=list)
    """Readable paths that are not selected."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Files and whole folders that are left out on purpose -> the reason."""
    links: dict[str, str] = field(default_factory=dict)
    """Links to files and folders that are listed under their own names -> their targets."""

    @property
    def other_kinds(self) -> Counter[str]:
        """Suffix -> the number of files that are not selected."""
        return Counter(suffix_of(path) or "(no suffix)" for path in self.others)


def list_files(root: Path, selected: Callable[[str], bool], globs: Sequence[str] = ()) -> Listing:
    """List the files below `root`; `selected` tests a path.

    Names that start with a dot are skipped, as in a shell. Without globs, folders of dependencies and what a
    .gitignore of the folder names are ignored. With globs, only folders that they reach are listed, and links
    that they match. A link inside the folder is followed if its target is not listed under its own name, so
    no file is listed twice; a link out of the folder is an error.
    """
    return _Walk(root, selected, globs).listing


class _Walk:
    """One walk through a folder: first the files themselves, then the targets of links."""

    def __init__(self, root: Path, selected: Callable[[str], bool], globs: Sequence[str]) -> None:
        self._root, self._real_root = root, Path(os.path.realpath(root))
        self._selected = selected
        self._ignoring = not globs
        self._globs = [glob.split("/") for glob in globs]
        self._links: list[str] = []
        self._seen: set[str] = set()  # real paths of files and folders
        self.listing = Listing()
        self._folder("", ())
        while self._links:
            links, self._links = sorted(self._links), []
            for link in links:
                self._follow(link)
        self.listing.files.sort()
        self.listing.errors = dict(sorted(self.listing.errors.items()))

    def _folder(self, path: str, rules: tuple[IgnoreRules, ...]) -> None:
        """Walk through a folder; `rules` are those of the folders above it."""
        self._seen.add(os.path.realpath(self._root / path))
        try:
            with os.scandir(self._root / path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self.listing.errors[path or "."] = f"cannot be opened ({error.strerror})"
            return
        names = {entry.name for entry in found}
        if self._ignoring and GITIGNORE in names:
            rules = (*rules, IgnoreRules.read(self._root, path))
        for entry in found:
            inside = f"{path}/{entry.name}" if path else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                self._links.append(inside)
            elif reason := self._ignore_reason(inside, entry.is_dir(), rules):
                self.listing.ignored[inside] = reason
            elif entry.is_dir():
                if self._reaches(inside):
                    self._folder(inside, rules)
            else:
                self._file(inside)

    def _reaches(self, folder: str) -> bool:
        """Return whether a folder may contain selected files."""
        return self._ignoring or any(_is_above(folder.split("/"), glob) for glob in self._globs)

    def _ignore_reason(self, path: str, is_folder: bool, rules: tuple[IgnoreRules, ...]) -> str:
        if not self._ignoring:
            return ""
        if is_folder and is_dependencies(self._root / path):
            return "is a folder of dependencies"
        if is_folder and is_dataset(self._root / path):
            return "is a dataset of the library datasets; save it as parquet"
        if is_artifact(self._root / path if is_folder else self._root / path.removesuffix(".json")):
            return "is an artifact of lmk"
        return f"is in {GITIGNORE}" if is_ignored(path, is_folder, rules) else ""

    def _file(self, path: str) -> None:
        self._seen.add(os.path.realpath(self._root / path))
        if not self._selected(path) and self._ignoring and is_archive(path):
            self.listing.errors[path] = "is an archive; unpack it, or give it alone"
        elif not self._selected(path):
            self.listing.others.append(path)
        elif reason := _unreadable_reason(self._root / path, path):
            self.listing.errors[path] = reason
        else:
            self.listing.files.append(path)

    def _follow(self, link: str) -> None:
        """List what a link leads to, unless it is listed already."""
        place = self._root / link
        target = os.path.realpath(place)
        try:
            is_folder = stat.S_ISDIR(place.stat().st_mode)
        except OSError as error:
            if self._selected(link) or (self._ignoring and not Path(link).suffix):
                self.listing.errors[link] = f"cannot be opened ({error.strerror})"
            return
        if not self._ignoring and not (self._reaches(link) if is_folder else self._selected(link)):
            return
        if not Path(target).is_relative_to(self._real_root):
            if is_folder or not Path(link).suffix or self._selected(link):
                self.listing.errors[link] = (
                    "is a link out of the folder, which lmk does not follow; copy its target"
                )
        elif target in self._seen or self._real_root.is_relative_to(target):
            self.listing.links[link] = os.path.relpath(target, self._real_root)
        elif is_folder:
            self._folder(link, ())
        else:
            self._file(link)


def _unreadable_reason(place: Path, path: str) -> str:
    """Return the reason why a file is unreadable; empty if it is readable."""
    try:
        mode = place.stat().st_mode
    except OSError as error:
        return f"cannot be opened ({error.strerror})"
    if not stat.S_ISREG(mode):
        return "is a pipe or a device"
    if any("\ud800" <= character <= "\udfff" for character in path):
        return "has a name that is not UTF-8; rename it"
    if CONTROL_CHARACTERS.search(path):
        return "has a control character in its name; rename it"
    if not os.access(place, os.R_OK):
        return "cannot be opened (Permission denied)"
    return ""


def _is_above(folder: Sequence[str], glob: Sequence[str]) -> bool:
    """Return whether a folder may contain paths that match a glob, both divided at '/'."""
    for name, pattern in zip(folder, glob, strict=False):
        if pattern == "**":
            return True
        if not fnmatchcase(name, pattern):
            return False
    return len(folder) < len(glob)


class FileTree(ABC):
    """Files with paths below `root`, which is a folder, an archive or the only file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def listing(self, selected: Callable[[str], bool], globs: Sequence[str] = ()) -> Listing:
        """Return the files; `selected` tests a path. With globs, which select them, no folder is ignored."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the bytes of a file. Raises DataError, with only the reason, if it is unreadable or too
        large.
        """

    @abstractmethod
    def first_bytes(self, path: str) -> bytes:
        """Return the first bytes of a file; none if it is a pipe or is unreadable."""

    def is_text(self, path: str) -> bool:
        """Return whether a file without a suffix is a text by its first bytes.

        Also true without any bytes: such a file is empty or unreadable, which its reader reports.
        """
        if suffix_of(path):
            return False
        first = self.first_bytes(path)
        return bool(0 not in first or marked_encoding(first) or wide_encoding(first))

    def stat(self, path: str) -> os.stat_result:
        """Size and times of the file on disk that contains a path. Raises OSError if it was deleted."""
        return self.root.stat()


class DiskTree(FileTree):
    """A folder on disk."""

    def listing(self, selected: Callable[[str], bool], globs: Sequence[str] = ()) -> Listing:
        return list_files(self.root, selected, globs)

    def read(self, path: str) -> bytes:
        return read_file(self.root / path)

    def first_bytes(self, path: str) -> bytes:
        return _first_bytes(self.root / path)

    def stat(self, path: str) -> os.stat_result:
        return (self.root / path).stat()


class OneFile(FileTree):
    """A single file, which is selected whatever its name."""

    def listing(self, selected: Callable[[str], bool], globs: Sequence[str] = ()) -> Listing:
        return Listing([self.root.name])

    def read(self, path: str) -> bytes:
        return read_file(self.root)

    def first_bytes(self, path: str) -> bytes:
        return _first_bytes(self.root)


def _first_bytes(file: Path) -> bytes:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return b""
        with file.open("rb") as opened:
            return opened.read(_FIRST)
    except OSError:
        return b""


def read_file(file: Path) -> bytes:
    """Return the bytes of a file on disk. Raises DataError, with only the reason."""
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

    def listing(self, selected: Callable[[str], bool], globs: Sequence[str] = ()) -> Listing:
        listing = Listing()
        times = Counter(member.filename for member in self._members)
        for member in sorted(self._members, key=lambda each: each.filename):
            path = member.filename
            if not (selected(path) or globs) and is_archive(path):
                listing.errors[path] = "is an archive; unpack it, or give it alone"
            elif not selected(path):
                listing.others.append(path)
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

    def first_bytes(self, path: str) -> bytes:
        member = self._archive.getinfo(path)
        if _refusal(member):
            return b""
        try:
            with self._archive.open(member) as file:
                return file.read(_FIRST)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError):
            return b""


def _refusal(member: zipfile.ZipInfo) -> str:
    """Return the reason why a file of an archive is not read; empty if it is."""
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
    """Return whether a path in an archive has a name that starts with a dot, or is one of macOS' resource
    files.
    """
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
