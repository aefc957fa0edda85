"""Files and standard input as streams of bytes: plain, gzip, Zstandard, and zip archives of one file."""

import codecs
import gzip
import io
import re
import shutil
import tempfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePath
from typing import IO, Any, BinaryIO, NamedTuple

from lmkcli.data.filetext import SAVE_AS, marked_encoding, other_suffix, wide_encoding
from lmkcli.errors import DataError
from lmkcli.system.input_files import LFS_POINTER, check_not_pointer
from lmkcli.text.formatting import size

ONCE = "stdin can be read only once, and it was; save it to a file and name the file instead of '-'"
COMPRESSED = {".gz": "gzip", ".zst": "Zstandard", ".zip": "zip"}
_BUFFER = 1 << 17  # bytes
_CHECKED = 8 << 20  # bytes of a file whose encoding is checked before it is read
_FREE_BYTES = 32 << 20  # of a compressed file; more must be in proportion to the file
_MOST_TIMES = 100
_CONTROLS = re.compile("[\0-\x08\x0e-\x19\x1c-\x1f]")
_MOST_CONTROLS = 0.01  # of the characters of a text


class ByteStream(NamedTuple):
    """The uncompressed bytes of a file, and a function for the number of its bytes on disk that were used.

    Of a compressed file, it does not count the last block: its text may not have been read yet.
    """

    file: BinaryIO
    position: Callable[[], int]


class ByteSource(ABC):
    """Bytes that records are read from; `name` is for messages, and `size` is None if it is unknown."""

    name: str
    size: int | None = None

    @abstractmethod
    def open(self, encoding: str = "") -> AbstractContextManager[ByteStream]:
        """Open the uncompressed bytes from the start; text in another encoding is converted to UTF-8."""


class FileInput(ByteSource):
    """A file, compressed or not."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.size = path, str(path), path.stat().st_size
        self.plain = path.suffix not in COMPRESSED

    def open(self, encoding: str = "") -> AbstractContextManager[ByteStream]:
        """Open the file."""
        return open_stream(self.path, encoding)


class PipeInput(ByteSource):
    """Standard input. Its first bytes can be read several times, until `close_head`; the rest once."""

    name = "stdin"

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._head = b""
        self._repeatable, self._used = True, False
        self._saved: IO[bytes] | None = None

    @contextmanager
    def open(self, encoding: str = "") -> Iterator[ByteStream]:
        """Open the bytes. Raises DataError if they were read before."""
        if self._saved is not None:
            with open_stream(Path(self._saved.name), encoding) as stream:
                yield stream
            return
        if self._used:
            raise DataError(ONCE)
        self._used = not self._repeatable
        file = _Repeated(self)
        with _reported(Path(self.name)):
            bytes_of = _Recoded(io.BufferedReader(file), encoding) if encoding else file
            yield ByteStream(io.BufferedReader(bytes_of, _BUFFER), lambda: 0)

    def close_head(self) -> None:
        """Keep no further bytes: the next opening is the last one."""
        self._repeatable = False

    def saved(self, suffix: str) -> Path:
        """Return a temporary file with all bytes, for formats that cannot be read as a stream."""
        if self._saved is None:
            self.close_head()
            # It is deleted with this object.
            file = tempfile.NamedTemporaryFile(prefix="lmk-stdin-", suffix=suffix)  # noqa: SIM115
            with self.open() as stream:
                shutil.copyfileobj(stream.file, file)
            file.flush()
            self._saved = file
        return Path(self._saved.name)

    def at(self, position: int) -> bytes:
        """Return the bytes after a position of the head, or the next bytes of the stream;
        empty at the end.
        """
        if position < len(self._head):
            return self._head[position:]
        # read1 returns what has arrived, so that work starts before the other program ends.
        block: bytes = getattr(self._stream, "read1", self._stream.read)(_BUFFER)
        if self._repeatable:
            self._head += block
        return block


class _Repeated(io.RawIOBase):
    """A reader of a pipe from its start."""

    def __init__(self, pipe: PipeInput) -> None:
        self._pipe, self._position, self._rest = pipe, 0, b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill `target`; returns the number of bytes, 0 at the end."""
        if not self._rest:
            self._rest = self._pipe.at(self._position)
            self._position += len(self._rest)
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def inner_name(path: Path) -> str:
    """Return the name of a file without compression: 'a.csv' for a.csv.gz, and the member of a zip archive.

    Raises DataError for a zip archive that does not contain exactly one file.
    """
    if path.suffix != ".zip":
        return path.stem if path.suffix in COMPRESSED else path.name
    with _reported(path), zipfile.ZipFile(path) as archive:
        return PurePath(_only_member(path, archive)).name


@contextmanager
def open_stream(path: Path, encoding: str = "") -> Iterator[ByteStream]:
    """Open the uncompressed bytes of a file; text in another `encoding` is converted to UTF-8.

    Inside the context, errors of damaged files become DataError.
    """
    with _reported(path), open(path, "rb", _BUFFER) as raw, _uncompressed(path, raw) as file:
        if raw.seekable():
            check_not_pointer(raw.read(len(LFS_POINTER)), path)
            raw.seek(0)
        if file is raw and not encoding:
            yield ByteStream(raw, raw.tell)
            return
        if file is not raw:
            file = _Bounded(file, raw, path)
        blocks = _Blocks(_Recoded(file, encoding) if encoding else file, raw)
        yield ByteStream(io.BufferedReader(blocks, _BUFFER), lambda: blocks.position)


class _Bounded(io.RawIOBase):
    """The bytes of a compressed file, which may not have far more bytes than the file.

    Compressed texts have up to about 20 times the bytes of their files. A file of one repeated byte has a
    thousand times, or more, and could occupy a command for hours.
    """

    def __init__(self, file: Any, raw: BinaryIO, path: Path) -> None:
        self._file, self._raw, self._path, self._count = file, raw, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill `target`; returns the number of bytes, 0 at the end. DataError beyond the limit."""
        count: int = self._file.readinto(target)
        self._count += count
        used = self._raw.tell()
        if self._count > max(_FREE_BYTES, _MOST_TIMES * used):
            raise DataError(
                f"{self._path}: its first {size(used)} stand for more than {size(self._count)} of text; if "
                "that is right, unpack it and name the file inside"
            )
        return count


class _Blocks(io.RawIOBase):
    """The bytes of `file` in blocks; `position` is the place in `raw` where the last block started."""

    def __init__(self, file: Any, raw: BinaryIO) -> None:
        self._file, self._raw, self.position = file, raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill `target`; returns the number of bytes, 0 at the end."""
        self.position = self._raw.tell()
        count: int = self._file.readinto(target)
        return count


class _Recoded(io.RawIOBase):
    """The bytes of a text in some encoding as UTF-8.

    A byte that is wrong in the encoding becomes three bytes that are wrong in UTF-8, so that the reader of
    the lines finds it, with its place (`wrong_byte`).
    """

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._rest = file, b""
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill `target`; returns the number of bytes, 0 at the end."""
        block = b"-"
        while not self._rest and block:
            block = self._file.read(_BUFFER)
            self._rest = self._decoder.decode(block, final=not block).encode(
                "utf-8", "surrogatepass"
            )
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


class Undecodable(NamedTuple):
    """The first byte of a file that is not UTF-8, and an encoding that the file may have."""

    line: int
    byte: int
    guess: str


def find_undecodable(path: Path) -> Undecodable | None:
    """Return the first byte of a text file, compressed or not, that is not UTF-8; None if its start has none.

    Raises DataError for a binary file, also inside a compressed one.
    """
    with open_stream(path) as stream:
        head = stream.file.read(_CHECKED)
    what = f"{path}: {inner_name(path)} in it" if path.suffix in COMPRESSED else str(path)
    if suffix := other_suffix(head):
        saved = SAVE_AS.get(suffix)
        rename = f"save it as {saved}" if saved else f"rename it to {path.name}{suffix}"
        unpack = f"unpack {path.name}, and name the file"
        advice = unpack if path.suffix in COMPRESSED else rename
        raise DataError(f"{what} is a {suffix} file, not text; {advice}")
    if wide := wide_encoding(head):  # its bytes can be valid UTF-8
        return Undecodable(1, head[head.index(0)], wide)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=False)
    except UnicodeDecodeError as error:
        guess = _guess_encoding(head)
        start_of_text = head[:_BUFFER].decode(guess, "replace")
        if len(_CONTROLS.findall(start_of_text)) > _MOST_CONTROLS * len(start_of_text):
            raise DataError(
                f"{what} is binary; name a text file, or the encoding of its text: ',encoding=utf-16-le'"
            ) from None
        line = head.count(b"\n", 0, error.start) + 1
        return Undecodable(line, head[error.start], guess)
    return None


def _guess_encoding(text: bytes) -> str:
    """Return a likely encoding of a text that is not UTF-8; the bytes 0x80 to 0x9f are letters in cp1252
    only.
    """
    if marked := marked_encoding(text):
        return marked
    if text.count(0) > len(text) // 4:  # the upper bytes of Latin letters
        return "utf-16-be" if text[::2].count(0) > text[1::2].count(0) else "utf-16-le"
    return "cp1252" if any(0x80 <= byte <= 0x9F for byte in set(text)) else "latin-1"


def wrong_byte(error: UnicodeDecodeError) -> tuple[int, bool]:
    """Return the first wrong byte of a text, and whether it is wrong in an encoding that was given."""
    found: bytes = error.object[error.start : error.start + 3]
    try:
        code = ord(found.decode("utf-8", "surrogatepass"))
    except (UnicodeDecodeError, TypeError):
        return found[0], False
    return (code - 0xDC00, True) if 0xDC80 <= code <= 0xDCFF else (found[0], False)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Raise the errors of damaged compressed files, and of texts in another encoding, as DataError."""
    try:
        yield
    except UnicodeDecodeError as error:  # of _Recoded
        raise DataError(f"{path}: the encoding is not {error.encoding} ({error.reason})") from error
    except UnicodeError as error:  # of codecs that are written in Python, such as utf-16
        raise DataError(f"{path} has another encoding than the given one ({error})") from error
    except (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from error
    except (RuntimeError, NotImplementedError) as error:  # zipfile: a password, an unknown method
        raise DataError(f"{path}: {error}; unpack it and name the file inside") from error
    except OSError as error:
        if error.errno is None:  # of pyarrow's decompression, not of the disk
            raise _damaged(path, error) from error
        raise


def _damaged(path: Path, error: Exception) -> DataError:
    kind = COMPRESSED.get(path.suffix, "file")
    return DataError(f"{path}: damaged or truncated {kind} ({error}); download it again")


@contextmanager
def _uncompressed(path: Path, raw: BinaryIO) -> Iterator[Any]:
    if path.suffix == ".gz":
        with gzip.open(raw) as file:
            yield file
    elif path.suffix == ".zst":
        import pyarrow as pa  # here, because most files are not compressed

        try:
            with pa.CompressedInputStream(raw, "zstd") as file:
                yield file
        except pa.ArrowException as error:
            raise _damaged(path, error) from error
    elif path.suffix == ".zip":
        with zipfile.ZipFile(raw) as archive, archive.open(_only_member(path, archive)) as file:
            yield file
    else:
        yield raw


def _only_member(path: Path, archive: zipfile.ZipFile) -> str:
    """Return the only file of an archive; folders, hidden files and the resource files of
    macOS do not count.
    """
    names = [
        member.filename
        for member in archive.infolist()
        if not member.is_dir()
        and not member.filename.startswith("__MACOSX/")
        and not PurePath(member.filename).name.startswith(".")
    ]
    if len(names) != 1:
        few = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        raise DataError(
            f"{path}: {len(names)} files in the archive ({few}); unpack it with unzip {path.name} -d "
            f"{path.stem}, and name one of them, or folder:{path.stem} for one document per file"
        )
    return names[0]
