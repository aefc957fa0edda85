"""Files that have no end are refused before they fill the memory."""

import copy
import gzip
import io
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from lmkcli import manifest, reading
from lmkcli.data.records import open_records
from lmkcli.data.run import read_run
from lmkcli.data.trec import read_qrels
from lmkcli.errors import DataError
from lmkcli.provenance import scorelog
from lmkcli.reading import LINE, bounded_lines, check_finite, parsed, read_json, whole_file, within


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
    zipped.write_bytes(gzip.compress(b"0" * (LINE + 1), mtime=0))
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


@pytest.mark.parametrize("end", ["[]", '{"a": 1}', '"[[{"', r'"\"[{"'])
def test_only_so_many_levels_are_read(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the decoder would take: with a Java machine in the process it may end by a fault instead."""
    inside = 0 if end.startswith('"') else 1
    text = "[" * (500 - inside) + end + "]" * (500 - inside)
    assert reading.parsed(text) == json.loads(text)
    monkeypatch.setattr(reading, "_DECODER", None)  # it is not asked
    with pytest.raises(ValueError, match="nested too deeply"):
        reading.parsed(f"[{text}]")


def test_brackets_in_texts_are_no_levels() -> None:
    text = json.dumps([{"text": '[{"' * 2000, "more": "\\"}, ["[" * 1000, {}]])
    assert reading.parsed(text) == json.loads(text)


class Inner(TypedDict):
    rows: Annotated[int, within(1, 10)]
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
    """GOOD with another value under a dotted key; a value that is ... is left out."""
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
def test_what_is_no_such_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(DataError, match="cannot be read"):
        read_json(tmp_path / "f", Outer, "fix")


def test_a_key_twice_in_a_large_object_is_found_at_once() -> None:
    text = "{" + ",".join(f'"k{number}": 1' for number in range(200_000)) + ', "k7": 2}'
    started = time.monotonic()
    with pytest.raises(ValueError, match="the key 'k7' is in one object twice"):
        parsed(text)
    assert time.monotonic() - started < 10  # a search for each key took minutes
