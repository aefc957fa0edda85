"""Documents that are zip archives, such as .docx and .epub: bounded, and with one message for damage."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from lmkcli.errors import DataError
from lmkcli.system.input_files import MAX_FILE


@contextmanager
def open_archive(data: bytes, kind: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive. Raises DataError if it is damaged, encrypted, or larger than MAX_FILE unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_FILE:
                raise DataError(f"is larger than {MAX_FILE:,} bytes when unpacked")
            if any(member.flag_bits & 1 for member in archive.infolist()):
                raise DataError("is encrypted; save it without a password")
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DataError(f"is not {kind}, or a damaged one ({error})") from None
