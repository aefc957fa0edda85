"""A folder or archive of documents: one for each file, or for each record of a table."""

import gzip
import hashlib
import io
import os
import re
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lmkcli import catalog
from lmkcli.data.byte_streams import find_undecodable
from lmkcli.data.collection import (
    WHOLE,
    Collection,
    Doc,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    map_id,
    spell,
)
from lmkcli.data.fields import Fields
from lmkcli.data.filetext import (
    FileReader,
    FileText,
    WrongEncoding,
    check_encoding,
    decode_text,
)
from lmkcli.data.metadata import OF_FILES, UnfitCondition, matches, of_file
from lmkcli.data.qrels import read_qrels
from lmkcli.data.records import is_text
from lmkcli.data.sources.file_collections import FileCollection, open_files
from lmkcli.errors import DataError, LmkError, MissingExtra, UsageError
from lmkcli.plugins.documents.file_trees import (
    TEXT,
    ZIP,
    ZIPPED,
    DiskTree,
    FileTree,
    Listing,
    OneFile,
    ZipTree,
    check_no_dataset,
    is_known,
    is_table,
    kind_of,
    read_file,
    suffix_of,
)
from lmkcli.system.input_files import MAX_FILE, not_a_file
from lmkcli.text.formatting import counted, shell_line

OPTIONS = ("encoding", "glob", "map_ids", "qrels", "queries", "unreadable")
_WORD = re.compile(r"\w")
_STARTS = 16  # places of a text in its file that are compared as a whole
_BETWEEN_GLOBS = re.compile(r"\+(?!\])")
_UTF8 = "utf-8"  # the guess for a text in UTF-8 with wrong bytes
MAX_SHOWN = 20  # files that an error message lists


def open_folder(name: str, options: dict[str, str]) -> "FolderCollection":
    """Open 'folder:PATH': every file with a reader (catalog.READERS) in the folder and its subfolders.

    PATH may also be a zip archive, or a single file.

    Files of records (csv, tsv, json, jsonl, parquet, mbox) give one document per record, in the fields that
    a single file would have. Options: `glob` reads only the matching files ('**/*.py+**/*.md');
    `unreadable=stop` refuses files that cannot be read, which otherwise are left out and counted; `encoding`
    applies to files that do not declare an encoding, which otherwise is UTF-8 or guessed; `map_ids`; and the
    files `queries` and `qrels`. The first use of the documents lists the folder. It raises DataError for a
    folder without such files.
    """
    check_options(name, options, OPTIONS)
    if options.get("unreadable", "skip") not in ("skip", "stop"):
        raise UsageError(
            f"{spell(name, options)}: write unreadable=stop to refuse such files, or remove the option to "
            "leave them out"
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
        if "glob" not in options:
            check_no_dataset(root)
        tree = DiskTree(root)
    else:
        raise DataError(f"{name}: {not_a_file(root) or 'no such folder'}")
    absolute = options | {
        key: os.path.abspath(os.path.expanduser(path)) for key, path in paths.items()
    }
    return FolderCollection(spell(f"folder:{os.path.abspath(root)}", absolute), tree, absolute)


class _OpenedFolder(NamedTuple):
    """The files of a folder with their ids, in order; their stamp; and the readers of their kinds.

    `missing` has the kinds whose reader needs a package that is not installed, with the reason.
    """

    ids: dict[str, str]
    file_stats: dict[str, list[int]]
    readers: dict[str, FileReader]
    missing: dict[str, str]


class FolderCollection(Collection):
    """One document per file or record.

    The id of a document is the path of its file in the folder or archive; the id of a record is that path,
    '#' and the id or number of the record. Ids may contain spaces.
    """

    def __init__(self, name: str, tree: FileTree, options: dict[str, str]) -> None:
        self.name = name
        self._tree, self._options = tree, options
        self._fields = Fields.parse({k: v for k, v in options.items() if k == "map_ids"})
        self._encoding = options.get("encoding", "")
        self.settings = self._fields.settings | {"encoding": self._encoding or "utf-8"}
        # a plus in brackets belongs to the name of a file
        self._globs = _BETWEEN_GLOBS.split(options["glob"]) if "glob" in options else []
        self._stops = options.get("unreadable") == "stop"
        self._skipped: dict[str, str] = {}
        self._empty: dict[str, str] = {}
        self._guessed: dict[str, str] = {}
        self._columns: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._tables: dict[str, FileCollection | None] = {}  # those whose metadata were used

    # The folder is listed when its documents are used. Judgements need no list: an evaluation of a run from
    # someone else must not read the whole disk because the record of the run names '/' as its collection.
    @cached_property
    def _listing(self) -> Listing:
        return self._tree.listing(self._selected, self._globs)

    @cached_property
    def _opened(self) -> "_OpenedFolder":
        """The state at the first use of the documents."""
        files = self._listing.files
        readers: dict[str, FileReader] = {}
        missing: dict[str, str] = {}
        for kind in sorted({TEXT, *map(kind_of, files)}):
            try:
                readers[kind] = catalog.READERS.load(kind)
            except MissingExtra as error:
                if self._stops:
                    raise
                missing[kind] = f"is of a kind that {str(error).partition(' needs ')[2]}"
        stats = self._file_stats_of(self._listing, missing)
        return _OpenedFolder(self._unique_ids(), stats, readers, missing)

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        """Return the documents of a shard, which has whole files.

        With `unreadable=stop`, raises DataError with all unreadable files before the first document. If no
        document of the whole folder can be read, raises DataError with the reasons.
        """
        files = list(self._opened.ids)
        rows = shard.rows(len(files))
        mine = files[rows.start : rows.stop]
        return _FolderDocs(self, mine, whole=len(mine) == len(files))

    def queries(self) -> Iterator[Query]:
        path = self._options.get("queries")
        if path is None:
            raise DataError(f"{self.name}: a folder has no queries; add ',queries=path'")
        mapped = {"map_ids": self._options["map_ids"]} if "map_ids" in self._options else {}
        return open_files(path, mapped).queries()

    def qrels(self) -> Iterator[Qrel]:
        if not self.has_qrels():
            raise DataError(f"{self.name}: no judgements; name a file with ',qrels=path'")
        return read_qrels(self._options["qrels"], self._fields.map_ids)

    def has_qrels(self) -> bool:
        return "qrels" in self._options

    def file_stats(self) -> dict[str, list[int]]:
        """Total size, latest modification time, and a hash of all names, sizes and times."""
        return self._opened.file_stats

    def can_move(self) -> bool:
        return True

    def skipped_files(self) -> dict[str, str]:
        """Files that were left out, with the reason."""
        others = [] if self._globs else sorted(self._listing.others)
        links = {
            link: f"is a link to {target}, which has its own entry"
            for link, target in self._listing.links.items()
        }
        unread = {**self._listing.errors, **self._skipped, **self._empty}
        kinds = dict.fromkeys(others, "is of a kind that is not read")
        return {**dict(sorted(unread.items())), **links, **self._listing.ignored, **kinds}

    def skipped_count(self) -> int:
        return len(self._listing.errors | self._skipped)

    def guessed_encodings(self) -> dict[str, str]:
        return dict(sorted(self._guessed.items()))

    def chosen_columns(self) -> dict[str, str]:
        return dict(sorted(self._columns.items()))

    def metadata(self, doc_id: str, name: str) -> Sequence[str | float]:
        path = next((self._files[each] for each in prefixes(doc_id) if each in self._files), "")
        if not path:  # it was removed
            return ()
        if table := self._table_of(path):
            record = doc_id[len(self._opened.ids[path]) + 1 :]
            if (own := table.field_of(record, name)) is not None:
                return own
        file = self._tree.root / path if isinstance(self._tree, DiskTree) else self._tree.root
        return of_file(file, name, path, kind_of(path))

    def has_metadata(self, name: str) -> bool:
        return name in OF_FILES or any(self._has_field(path, name) for path in self._opened.ids)

    def _has_field(self, path: str, name: str) -> bool:
        """Return whether a record of a file has a field; False for a file that cannot be read."""
        try:
            table = self._table_of(path)
            return bool(table and table.has_metadata(name))
        except UnfitCondition:
            raise
        except LmkError:
            return False

    def _table_of(self, path: str) -> FileCollection | None:
        """Return the records of a file, which is opened once; None for files that are no tables."""
        if is_table(path) and path not in self._tables:
            self._tables[path] = self._table(path)
        return self._tables.get(path)

    @cached_property
    def _files(self) -> dict[str, str]:
        """Id -> file."""
        return {name: path for path, name in self._opened.ids.items()}

    def summary(self) -> str:
        """Return a line about the files that were read and left out; empty if none was
        left out or guessed.
        """
        listing = self._listing
        unread = Counter(map(_brief, (listing.errors | self._skipped).values()))
        ignored = Counter(map(_brief, listing.ignored.values()))
        guessed = Counter(self._guessed.values())
        facts = {
            f"{counted(unread.total(), 'file')} left out ({_counts(unread)})": unread,
            counted(len(self._empty), "empty file"): self._empty,
            f"{ignored.total():,} ignored ({_counts(ignored)})": ignored,
            f"{counted(len(listing.links), 'link')} to files in it": listing.links,
            f"{len(listing.others):,} of other kinds ({_counts(listing.other_kinds)})": (
                [] if self._globs else listing.others
            ),
            f"encodings guessed: {_counts(guessed)}": guessed,
            f"columns chosen in {counted(len(self._columns), 'table')}": self._columns,
        }
        shown = [fact for fact, there in facts.items() if there]
        if not shown:
            return ""
        documents, files = sum(self._numbers.values()), len(self._numbers)
        read = f"{counted(documents, 'document')} from {counted(files, 'file')}"
        place = os.path.relpath(self._tree.root)
        place = str(self._tree.root) if place.startswith("..") else place
        return f"{place}: {'; '.join([read, *shown])}; to list them: {shell_line('lmk', 'show', place)}"

    def _selected(self, path: str) -> bool:
        if self._globs:
            return any(matches(path, glob) for glob in self._globs)
        return is_known(path) or self._tree.is_text(path)

    def _unique_ids(self) -> dict[str, str]:
        """File -> id. Raises DataError for a repeated id, and for a folder without files."""
        if not self._listing.files and not self._listing.errors:
            others = self._tree.listing(lambda path: False, ["**"]).other_kinds
            kinds = ", ".join(f"{n:,} {suffix}" for suffix, n in others.most_common(5))
            raise DataError(
                f"{self.name}: none of its files is selected; it contains {kinds or 'no files'}. "
                "Select files by name, for instance with ',glob=**/*.py'"
            )
        mapped = self._fields.map_ids
        ids = {path: map_id(path) if mapped else path for path in self._listing.files}
        files: dict[str, str] = {}
        for path, name in ids.items():
            if files.setdefault(name, path) != path:
                raise DataError(
                    f"{self.name}: {files[name]!r} and {path!r} have the same id; rename one"
                )
        return ids

    def documents_of(self, path: str) -> Iterator[Doc]:
        """Yield the documents of a file. A file that cannot be read, or has no text, has none, and is
        counted.
        """
        self._numbers.pop(path, None)
        name, number = self._opened.ids[path], 0
        try:
            for doc in self._content(path):
                number += 1
                yield doc._replace(id=name + (map_id(doc.id) if self._fields.map_ids else doc.id))
        except DataError as error:
            self._skipped[path] = str(error)
        if number:
            self._numbers[path] = number
        elif path not in self._skipped:
            self._empty[path] = "is empty"

    def _content(self, path: str) -> Iterator[Doc]:
        """Yield the documents of a file. The id of a record is '#' and its id in the
        file, else it is empty.
        """
        table = self._table(path)
        if table is not None:
            for line in table.notes():
                self._columns[path] = line.partition(f"{path}: ")[2].partition("; choose")[0]
            for doc in table.docs():
                if doc.content.strip():
                    yield doc._replace(id=f"#{doc.id}")
            if rows := table.skipped_count():
                where, why = next(iter(table.skipped_files().items()))
                place = where.removeprefix(str(self._tree.root / path)).strip(" :")
                raise DataError(f"has {counted(rows, 'row')} that cannot be read ({place}: {why})")
            return
        content = self._read(path)
        if is_table(path) and not _WORD.search(content.text):  # {} or []
            return
        if content.text.strip():
            title = content.title or _own_title(path)
            yield Doc("", content.text, title)
        elif content.title:
            yield Doc("", "", content.title)

    def _table(self, path: str) -> FileCollection | None:
        """Return the records of a table; None for a file that is read as text.

        Tables without columns that lmk recognises are read as text, and so is a single object of JSON, such
        as settings.
        """
        if not is_table(path) or not isinstance(self._tree, DiskTree):
            return None
        file, options = self._tree.root / path, {"unreadable": "skip"}
        try:
            if self._fields.map_ids:
                options["map_ids"] = "1"
            if self._encoding:
                options["encoding"] = self._encoding
            elif is_text(file) and find_undecodable(file):
                guessed = _guess(_unzipped(self._tree.read(path), path))
                if guessed != _UTF8:  # otherwise, the records with the wrong bytes are left out
                    self._guessed[path] = options["encoding"] = guessed
            table = open_files(str(file), options)
            first = list(islice(table.docs(), 2))
        except LmkError as error:
            if not is_text(file):
                raise DataError(f"cannot be read: {error}") from error
            return None
        settings = len(first) == 1 and table.notes() and _suffix(path) == ".json"
        return None if settings or table.skipped_count() else table

    def is_changed(self) -> bool:
        """Return whether files of the folder have changed since their list was made."""
        now = self._tree.listing(self._selected, self._globs)
        return self._file_stats_of(now, self._opened.missing) != self._opened.file_stats

    def unread_reasons(self) -> dict[str, str]:
        """Return why files cannot be read: the reason for each such file that was opened so far."""
        return self._listing.errors | self._skipped

    def check_all(self, files: list[str]) -> None:
        """With `unreadable=stop`, raise DataError with all files that cannot be read."""
        if not self._stops:
            return
        for path in files:
            deque(self.documents_of(path), maxlen=0)
        if errors := self.unread_reasons():
            raise DataError(
                f"{self.name}: {len(errors):,} of its files cannot be read:\n{_first(errors)}\n"
                "fix or move them, or remove ',unreadable=stop' to leave them out"
            )

    def _read(self, path: str) -> FileText:
        """Return the text of a file, in a guessed encoding if it is neither UTF-8 nor in
        the one it declares.
        """
        kind = kind_of(path)
        if kind in self._opened.missing:
            raise DataError(self._opened.missing[kind])
        data = _unzipped(self._tree.read(path), path)
        content, encoding = read_as(self._opened.readers[kind], data, self._encoding)
        if encoding:
            self._guessed[path] = encoding
        return content

    def _file_stats_of(self, listing: Listing, missing: dict[str, str]) -> dict[str, list[int]]:
        digest, sizes, times = hashlib.sha256(), [0], [0]
        for path in listing.files:
            try:
                stat = self._tree.stat(path)
            except OSError:  # deleted in the meantime: reading it will raise the error
                continue
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
            sizes.append(stat.st_size)
            times.append(stat.st_mtime_ns)
        # A file that becomes readable, by its permissions or an installed package, is a change too.
        for path, reason in (listing.errors | missing).items():
            digest.update(f"{path}\0{reason}\0".encode("utf-8", "surrogatepass"))
        number = int.from_bytes(digest.digest()[:6], "big")
        return {self._tree.root.resolve().name: [sum(sizes), max(times), number]}


class _FolderDocs(DocStream):
    """The documents of some files of a folder; `whole` if they are all its files."""

    def __init__(self, folder: FolderCollection, files: list[str], whole: bool) -> None:
        self._folder, self._files, self._whole = folder, files, whole
        self._done = 0

    def __iter__(self) -> Iterator[Doc]:
        folder, found = self._folder, False
        folder.check_all(self._files)
        self._done = 0
        for path in self._files:
            several = is_table(path)
            self._done += not several  # with its only document, the whole file was read
            for doc in folder.documents_of(path):
                found = True
                yield doc
            self._done += several
        if folder.is_changed():
            raise DataError(
                f"{folder.name}: files changed while lmk read them: run the command again with "
                "--if-exists overwrite (or update) when nothing writes into the folder any more"
            )
        if self._whole and not found:
            reasons = folder.unread_reasons()
            raise DataError(
                f"{folder.name}: none of its files has text that can be read"
                + (f":\n{_first(reasons)}" if reasons else "")
            )

    @property
    def fraction(self) -> float | None:
        return self._done / len(self._files) if self._files else 1.0

    @property
    def total(self) -> int | None:
        return None if any(map(is_table, self._files)) else len(self._files)


def read_as(reader: FileReader, data: bytes, encoding: str) -> tuple[FileText, str]:
    """Return the text of a file in an encoding; '' is UTF-8, or else a guess, which is returned too."""
    try:
        return reader(data, encoding or "utf-8"), ""
    except WrongEncoding:
        if encoding:
            raise
    guessed = _guess(data)
    if guessed == _UTF8:
        repaired = data.decode("utf-8", "replace").encode("utf-8")
        return reader(repaired, guessed), "utf-8 with wrong bytes"
    return reader(data, guessed), guessed


def prefixes(doc_id: str) -> Iterator[str]:
    """Yield an id, and each of its starts before a '#', longest first: one of them is the id of a file."""
    yield doc_id
    while "#" in doc_id:
        doc_id = doc_id.rpartition("#")[0]
        yield doc_id


def file_at(root: Path, doc_id: str) -> str:
    """Return the path below a folder of the file that contains a document; '' if there is none.

    A file of the folder may have been changed or removed, and a document may come from an archive.
    """
    for path in prefixes(doc_id):
        place = root / path
        if path and place.is_file() and place.resolve().is_relative_to(root.resolve()):
            return path
    return ""


def first_line(root: Path, path: str, text: str, encoding: str = "") -> int:
    """Return the line of a file at which the text of its document starts, from 1; 0 if it has no such lines.

    A reader removes lines at the start of a file (metadata, a title), at its end (empty lines, a comment)
    and, without moving the others, inside it (comments, the bytes of pictures), or it changes the text, as
    that of a web page. Also 0 if the file has changed since `text` was read.
    """
    try:
        data = _unzipped(read_file(root / path), path)
        reader: FileReader = catalog.READERS.load(kind_of(path))
        content, _ = read_as(reader, data, encoding)
        lines, _ = read_as(_whole, data, encoding)
    except LmkError:
        return 0
    whole, own = lines.text.rstrip("\n").split("\n"), text.rstrip("\n").split("\n")
    if content.text != text:
        return 0
    starts = (
        first
        for first in range(len(whole) - len(own), -1, -1)
        if _kept(own[0], whole[first]) and _kept(own[-1], whole[first + len(own) - 1])
    )
    for first in islice(starts, _STARTS):
        pairs = zip(own, islice(whole, first, None), strict=False)
        if all(_kept(line, file) for line, file in pairs):
            return first + 1
    return 0


def _kept(line: str, file: str) -> bool:
    """Return whether a line of a text may be this line of its file, without a comment or the bytes of a
    picture.
    """
    return line in file or "data:" in file


def text_of_file(file: Path) -> str | None:
    """Return the whole text of a file, unpacked and decoded; None if it is no text, or cannot be read."""
    try:
        content, _ = read_as(_whole, _unzipped(read_file(file), file.name), "")
    except DataError:
        return None
    return content.text


def _whole(data: bytes, encoding: str) -> FileText:
    return FileText("", decode_text(data, encoding))


def _guess(data: bytes) -> str:
    """Return the encoding of a text, or DataError, with only the reason, if the bytes are no text."""
    from lmkcli.plugins.documents.encodings import guess_encoding

    encoding = guess_encoding(data)
    if not encoding:
        raise DataError("is binary, or text in an encoding that lmk does not recognise")
    return encoding


def _own_title(path: str) -> str:
    """Return the name of a file without its suffix; that of `notes 3. May` has none."""
    name = PurePosixPath(path.removesuffix(ZIPPED))
    return name.stem if suffix_of(name.name) else name.name


def _suffix(path: str) -> str:
    return PurePosixPath(path.lower().removesuffix(ZIPPED)).suffix


def _brief(reason: str) -> str:
    """Return the start of a reason, without details."""
    start = re.split(r"[;:,(]", reason, maxsplit=1)[0].strip()
    return re.sub(r"^is (an? )?", "", start)


def _counts(counter: Counter[str]) -> str:
    """Return the most frequent names with their counts, and the rest: they add up to the whole."""
    few = counter.most_common(5)
    shown = [f"{number:,} {name}" for name, number in few]
    rest = counter.total() - sum(number for _, number in few)
    return ", ".join([*shown, f"{rest:,} more"] if rest else shown)


def _first(errors: dict[str, str]) -> str:
    """Return the first errors, one per line."""
    lines = [f"  {path} {reason}" for path, reason in sorted(errors.items())[:MAX_SHOWN]]
    lines += [f"  … and {len(errors) - MAX_SHOWN:,} more"] * (len(errors) > MAX_SHOWN)
    return "\n".join(lines)


def _unzipped(data: bytes, path: str) -> bytes:
    """Return the contents of a file. Raises DataError for a damaged gzip file, or a large one."""
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
