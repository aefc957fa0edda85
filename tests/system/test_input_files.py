"""Guarded reading: endless files are refused before they fill the memory, and JSON is validated."""

import copy
import gzip
import io
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from lmkcli.artifact import manifest
from lmkcli.data.qrels import read_qrels
from lmkcli.data.records import open_records
from lmkcli.data.run import read_run
from lmkcli.errors import DataError
from lmkcli.provenance import scorelog
from lmkcli.system import input_files
from lmkcli.system.input_files import (
    MAX_LINE,
    bounded_lines,
    check_finite,
    int_range,
    not_a_file,
    parse_json,
    read_json,
    whole_file,
)


def test_lines_up_to_the_limit_are_unchanged() -> None:
    text = b"one\n" + b"x" * 7 + b"\nlast"
    assert list(bounded_lines(io.BytesIO(text), "f", 9)) == [b"one\n", b"xxxxxxx\n", b"last"]
    assert list(bounded_lines(io.StringIO("a\n\nb"), "f")) == ["a\n", "\n", "b"]
    with pytest.raises(DataError, match=r"f line 2 .*\b8\b"):
        list(bounded_lines(io.BytesIO(text), "f", 8))


@pytest.mark.parametrize("empty", [b"\n", b"\r\n"])
def test_a_million_empty_lines_are_refused(empty: bytes) -> None:
    """A compressed file of 40 kB has 33 million of them, which would take a minute."""
    text = (empty * 600_000 + b"a\n") * 2
    assert len(list(bounded_lines(io.BytesIO(text), "f"))) == 1_200_002
    with pytest.raises(DataError, match="f line 1000001: 1,000,000 lines before it are empty"):
        list(bounded_lines(io.BytesIO(empty * 3_000_000), "f"))


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert whole_file(tmp_path / "f", 5) == b"12345"
    with pytest.raises(DataError, match="larger than 4"):
        whole_file(tmp_path / "f", 4)
    with pytest.raises(DataError, match="a folder"):
        whole_file(tmp_path)


def test_the_pipe_of_a_command_is_accepted() -> None:
    """A shell gives `<(command)` a name such as /dev/fd/63."""
    reading, writing = os.pipe()
    os.write(writing, b"q 0 d 1\n")
    os.close(writing)
    assert [each.doc_id for each in read_qrels(f"/dev/fd/{reading}")] == ["d"]
    os.close(reading)


def test_what_could_be_read_without_end_is_refused(tmp_path: Path) -> None:
    pipe, end = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(end))  # the path of a socket must be short
        found = {pipe: "pipe", end: "socket", tmp_path: "folder", Path("/dev/zero"): "device"}
        for path, kind in found.items():
            assert not_a_file(path).startswith(f"a {kind}; name a file")
            with pytest.raises(DataError, match=f"is a {kind}"):
                check_finite(path)
    assert not_a_file(tmp_path / "none") == not_a_file(Path("a\0b")) == ""
    with pytest.raises(FileNotFoundError):
        check_finite(tmp_path / "none")


def test_every_reader_refuses_endless_files(tmp_path: Path) -> None:
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


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "run", tmp_path / "run.gz"
    plain.write_bytes(b"0" * (MAX_LINE + 1))
    zipped.write_bytes(gzip.compress(b"0" * (MAX_LINE + 1), mtime=0))
    for path in (plain, zipped):
        with pytest.raises(DataError, match="line 1 is longer"):
            read_run(path)
        with pytest.raises(DataError, match="line 1 is longer"):
            list(read_qrels(path))


def test_an_endless_document_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmkcli.data.records.MAX_RECORD_LINE", 100)
    (tmp_path / "d.jsonl").write_text('{"_id": "1", "text": "' + "x" * 100 + '"}\n')
    with pytest.raises(DataError, match=r"d\.jsonl line 1 .*\b100\b"):
        list(open_records(str(tmp_path / "d.jsonl")))


@pytest.mark.parametrize("deep", ['{"a":' * 100_000, "[" * 100_000, '{"kind": {"a": ' * 50_000])
def test_a_manifest_with_deep_nesting_is_refused(tmp_path: Path, deep: str) -> None:
    (tmp_path / manifest.NAME).write_text(deep)
    with pytest.raises(DataError, match="cannot be read"):
        manifest.read(tmp_path)


@pytest.mark.parametrize("end", ["[]", '{"a": 1}', '"[[{"', r'"\"[{"'])
def test_deep_nesting_is_refused(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies before the decoder, which can crash in a process with a Java virtual machine."""
    inside = 0 if end.startswith('"') else 1
    text = "[" * (200 - inside) + end + "]" * (200 - inside)
    assert input_files.parse_json(text) == json.loads(text)
    monkeypatch.setattr(input_files, "_DECODER", None)  # it must not be called
    with pytest.raises(ValueError, match="nested too deeply"):
        input_files.parse_json(f"[{text}]")


def test_brackets_in_strings_are_not_nesting() -> None:
    text = json.dumps([{"text": '[{"' * 2000, "more": "\\"}, ["[" * 1000, {}]])
    assert input_files.parse_json(text) == json.loads(text)


class Inner(TypedDict):
    rows: Annotated[int, int_range(1, 10)]
    names: list[str]
    ends: NotRequired[list[tuple[int, int]]]
    share: NotRequired[float]


class Outer(TypedDict):
    of: Inner
    kind: Literal["a", "b"]
    extra: dict[str, int] | None


GOOD = {
    "of": {"rows": 3, "names": ["x"], "ends": [[1, 2]], "share": 1},
    "kind": "a",
    "extra": {"n": 1},
    "more": 1,
}


def changed(key: str, value: object) -> dict[str, Any]:
    """GOOD with another value under a dotted key; the value ... removes the key."""
    made = copy.deepcopy(GOOD)
    *above, last = key.split(".")
    place: Any = made
    for name in above:
        place = place[name]
    place[last] = value
    if value is ...:
        del place[last]
    return made


@pytest.mark.parametrize(
    "value", [GOOD, changed("extra", None), changed("of.ends", ...), changed("kind", "b")]
)
def test_json_of_the_right_shape_is_read(tmp_path: Path, value: dict[str, Any]) -> None:
    (tmp_path / "f").write_text(json.dumps(value))
    assert read_json(tmp_path / "f", Outer, "fix") == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("of", ...), ("of", None), ("of", []), ("of.rows", 0), ("of.rows", 10**12), ("of.rows", True),
        ("of.rows", 2.5), ("of.rows", "3"), ("of.names", "x"), ("of.names", [1]), ("of.names", {}),
        ("of.ends", [[1]]), ("of.ends", [[1, 2, 3]]), ("of.ends", [[1, "2"]]), ("kind", "c"),
        ("of.share", "1"), ("of.share", True), ("of.share", 10**400),
        ("kind", ["a"]), ("extra", ...), ("extra", {"n": "1"}), ("extra", []),
    ],
)  # fmt: skip
def test_json_of_another_shape_is_refused_with_its_key(
    tmp_path: Path, key: str, value: object
) -> None:
    (tmp_path / "f").write_text(json.dumps(changed(key, value)))
    with pytest.raises(DataError, match=re.escape(key)):
        read_json(tmp_path / "f", Outer, "fix")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"of": ' * 99_999, "\udcff", "1" * 5000])
def test_invalid_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(DataError, match="cannot be read"):
        read_json(tmp_path / "f", Outer, "fix")


def test_a_repeated_key_in_a_large_object_is_found_fast() -> None:
    text = "{" + ",".join(f'"k{number}": 1' for number in range(200_000)) + ', "k7": 2}'
    started = time.process_time()
    with pytest.raises(ValueError, match="'k7'"):
        parse_json(text)
    assert time.process_time() - started < 10  # under one; a search for each key took minutes
