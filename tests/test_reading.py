"""Files that have no end are refused before they fill the memory."""

import gzip
import io
import os
import threading
from pathlib import Path

import pytest

from lmkcli import manifest
from lmkcli.data.formats import read_qrels
from lmkcli.data.records import open_records
from lmkcli.data.run import read_run
from lmkcli.errors import DataError
from lmkcli.provenance import scorelog
from lmkcli.reading import LINE, bounded_lines, check_finite, whole_file


def test_lines_come_as_they_are_up_to_the_limit() -> None:
    text = b"one\n" + b"x" * 7 + b"\nlast"
    assert list(bounded_lines(io.BytesIO(text), "f", 9)) == [b"one\n", b"xxxxxxx\n", b"last"]
    assert list(bounded_lines(io.StringIO("a\n\nb"), "f")) == ["a\n", "\n", "b"]
    with pytest.raises(DataError, match="f line 2 is longer than 8"):
        list(bounded_lines(io.BytesIO(text), "f", 8))


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert whole_file(tmp_path / "f", 5) == b"12345"
    with pytest.raises(DataError, match="larger than 4"):
        whole_file(tmp_path / "f", 4)
    with pytest.raises(DataError, match="a folder"):
        whole_file(tmp_path)


def test_a_pipe_is_a_file_and_a_device_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_finite(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("q 0 d 1\n",))
    writer.start()
    assert [each.doc_id for each in read_qrels(tmp_path / "pipe")] == ["d"]
    writer.join()
    for device in ("/dev/zero", "/dev/full"):
        with pytest.raises(DataError, match="is a device"):
            check_finite(Path(device))


def test_whoever_reads_refuses_what_has_no_end(tmp_path: Path) -> None:
    (tmp_path / manifest.NAME).symlink_to("/dev/zero")
    (tmp_path / "run.trec").symlink_to("/dev/full")
    readers = (
        lambda: manifest.read(tmp_path),
        lambda: read_run(tmp_path / "run.trec"),
        lambda: list(read_qrels(tmp_path / "run.trec")),
        lambda: scorelog.read(tmp_path / "run.trec"),
    )
    for read in readers:
        with pytest.raises(DataError, match="is a device"):
            read()


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "run", tmp_path / "run.gz"
    plain.write_bytes(b"0" * (LINE + 1))
    zipped.write_bytes(gzip.compress(b"0" * (LINE + 1)))
    for path in (plain, zipped):
        with pytest.raises(DataError, match="line 1 is longer"):
            read_run(path)
        with pytest.raises(DataError, match="line 1 is longer"):
            list(read_qrels(path))


def test_a_document_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmkcli.data.records.LONG_LINE", 100)
    (tmp_path / "d.jsonl").write_text('{"_id": "1", "text": "' + "x" * 100 + '"}\n')
    with pytest.raises(DataError, match="line 1 is longer than 100"):
        list(open_records(str(tmp_path / "d.jsonl")))


@pytest.mark.parametrize("deep", ['{"a":' * 100_000, "[" * 100_000, '{"kind": {"a": ' * 50_000])
def test_a_manifest_without_a_bottom_is_refused(tmp_path: Path, deep: str) -> None:
    (tmp_path / manifest.NAME).write_text(deep)
    with pytest.raises(DataError, match="cannot be read"):
        manifest.read(tmp_path)
