"""Files of records in shards: nothing is lost or read twice, and errors name the place."""

import gzip
import io
import json
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.byte_streams import PipeInput
from lmkcli.data.collection import Shard
from lmkcli.data.fields import Fields, Record
from lmkcli.data.records import (
    BLOCK,
    FileFormat,
    LineFormat,
    ParquetRecords,
    line_format,
    open_records,
    parse_json_line,
)
from lmkcli.errors import DataError

# Texts contain Unicode's own line separators, a form feed and a lone carriage return.
TEXT = st.text(st.sampled_from('ab é\u2028\u2029\x85\x0c漢😀\\"{}\t'), max_size=12)
ROWS = st.lists(TEXT, max_size=12)
COUNTS = st.integers(1, 30)
TSV = FileFormat(kind="tsv")


def records(path: Path | str, shard: Shard) -> list[Record]:
    return [record for _, record in open_records(str(path), shard)]


def sharded(path: Path, count: int) -> list[Record]:
    return [record for number in range(count) for record in records(path, Shard(number, count))]


@given(ROWS, COUNTS, st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans(), st.booleans())
def test_byte_shards_in_order_cover_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[str],
    count: int,
    end: str,
    bom: bool,
    closed: bool,
) -> None:
    wanted = [{"id": str(number), "text": text} for number, text in enumerate(rows)]
    lines = end.join(json.dumps(row, ensure_ascii=False) for row in wanted) + end * closed
    path = tmp_path_factory.mktemp("r") / "c.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * bom + lines.encode())
    assert sharded(path, count) == wanted


@given(st.lists(st.text("abc é", min_size=1, max_size=9), min_size=1, max_size=9), COUNTS)
def test_a_header_applies_to_every_shard_and_is_not_a_record(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], count: int
) -> None:
    path = tmp_path_factory.mktemp("r") / "c.tsv"
    lines = [f"{number}\thttp\t{text}\n" for number, text in enumerate(rows)]
    path.write_text("id\turl\ttext\n" + "".join(lines))
    got = [
        record
        for number in range(count)
        for _, record in open_records(str(path), Shard(number, count), frozenset({"text"}))
    ]
    assert [record["text"] for record in got] == rows


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_gzip_is_dealt_in_blocks(tmp_path: Path, count: int) -> None:
    path = tmp_path / "c.jsonl.gz"
    rows = [{"id": str(number), "text": "x"} for number in range(2 * BLOCK + 10)]
    # Two members, as from `cat a.gz b.gz`.
    halves = ("".join(json.dumps(row) + "\n" for row in half) for half in (rows[:5], rows[5:]))
    path.write_bytes(b"".join(gzip.compress(half.encode(), mtime=0) for half in halves))
    shards = [records(path, Shard(number, count)) for number in range(count)]
    ids = [[int(row["id"]) for row in shard] for shard in shards]
    assert sorted(chain.from_iterable(ids)) == list(range(len(rows)))
    assert all(shard == sorted(shard) for shard in ids)


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    line = b"".join(b'{"id": "%d", "text": "some text"}\n' % number for number in range(50_000))
    path.write_bytes(gzip.compress(line, mtime=0)[:-20_000])
    with pytest.raises(DataError, match="damaged or truncated gzip"):
        records(path, Shard())
    path.write_bytes(b"no gzip at all")
    with pytest.raises(DataError, match="damaged or truncated gzip"):
        records(path, Shard())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("group", [1, 4, 100])
def test_parquet_shards_are_ranges_of_rows(tmp_path: Path, count: int, group: int) -> None:
    path = tmp_path / "c.parquet"
    rows = [{"id": number, "text": f"t{number}", "vector": [0.5]} for number in range(11)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    assert sharded(path, count) == rows
    some = open_records(str(path), Shard(), frozenset({"id", "text", "title"}))
    assert [record for _, record in some] == [{"id": r["id"], "text": r["text"]} for r in rows]


def test_parquet_batches_cross_a_shard_boundary(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    rows = [{"id": number, "text": ""} for number in range(2 * BLOCK + 500)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert sharded(path, 3) == rows


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    path.write_text("text")
    with pytest.raises(DataError, match="not a parquet file"):
        ParquetRecords(path, Shard(), frozenset())


def test_errors_name_the_line_or_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    good = b'{"id": "1", "text": "x"}\n'
    path.write_bytes(good * 16 + b"{broken\n" + good * 3)
    with pytest.raises(DataError, match=r"c.jsonl line 17: .*JSON"):
        records(path, Shard())
    with pytest.raises(DataError, match=f"c.jsonl byte {16 * len(good)}: .*JSON"):
        records(path, Shard(1, 2))
    path.write_bytes(b"")
    assert records(path, Shard()) == []


def test_the_fraction_grows_from_zero_to_one(tmp_path: Path) -> None:
    lines = b"".join(b'{"id": "%d", "text": "%d"}\n' % (n, n * 7919) for n in range(50_000))
    (tmp_path / "c.jsonl").write_bytes(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    table = pa.table({"id": list(range(50)), "text": ["x"] * 50})
    pq.write_table(table, tmp_path / "c.parquet")
    for name, shard in [
        ("c.jsonl", Shard()),
        ("c.jsonl", Shard(1, 3)),
        ("c.jsonl.gz", Shard()),
        ("c.parquet", Shard(1, 2)),
    ]:
        stream = open_records(str(tmp_path / name), shard)
        seen = [stream.fraction or 0.0]
        seen += [stream.fraction or 0.0 for _ in stream]
        seen.append(stream.fraction or -1.0)
        assert seen[0] == 0.0
        assert seen[-1] == pytest.approx(1.0, abs=1e-3)
        assert seen == sorted(seen)
        assert any(0.3 < part < 0.7 for part in seen)


def test_a_shard_reads_only_its_own_bytes(tmp_path: Path) -> None:
    """The first third is not UTF-8: a shard that read it would fail."""
    path = tmp_path / "c.jsonl"
    good = b'{"id": "1", "text": "x"}\n'
    path.write_bytes(good + b"\xff\xfe\n" * 1000 + good * 300)
    assert len(records(path, Shard(1, 2))) > 100


def test_reading_a_large_file_starts_at_once_in_little_memory(tmp_path: Path) -> None:
    """A sparse file with 5 GB after some lines: the first record must not read the rest."""
    path = tmp_path / "c.jsonl"
    with path.open("wb") as file:
        file.write(b'{"id": "1", "text": "x"}\n' * 10)
        file.truncate(5 * 2**30)
    where, record = next(iter(open_records(str(path))))
    assert where.endswith("line 1")
    assert record == {"id": "1", "text": "x"}


@pytest.mark.parametrize("data", [b'\xef\xbb\xbf{"id": "1", "text": "x"}\r\n', b"1\tx\n"])
def test_stdin_is_jsonl_or_tsv_and_read_once(data: bytes) -> None:
    pipe = PipeInput(io.BytesIO(data))
    lines = open_records(pipe)
    pipe.close_head()
    assert [record for _, record in lines] == [{"id": "1", "text": "x"}]
    assert lines.fraction is None
    with pytest.raises(DataError, match="only once"):
        list(lines)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a folder; name a file"):
        open_records(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 1', "valid JSON .*column 8"),
        (b'{"a": "\xff"}', "UTF-8 .*0xff.*,encoding=latin-1"),
        (b"[1]", "JSON object.* list"),
        (b"[" * 100_000, "valid JSON .*nested"),
    ],
)
def test_broken_json_names_the_line(line: bytes, words: str) -> None:
    with pytest.raises(DataError, match=rf"c\.jsonl line 17: .*{words}"):
        parse_json_line(line, "c.jsonl line 17")


@given(st.dictionaries(st.text(), st.text()))
def test_json_round_trips(record: dict[str, str]) -> None:
    assert parse_json_line(json.dumps(record).encode(), "") == record
    assert parse_json_line(json.dumps(record, ensure_ascii=False).encode(), "") == record


def test_half_a_surrogate_pair_is_refused() -> None:
    """Half an emoji is no character: a replacement would change the text without a word."""
    whole = rb'{"a": "x\ud83d\ude00 \\ud83d", "b": 1}'
    assert parse_json_line(whole, "") == {"a": "x\U0001f600 \\ud83d", "b": 1}
    for line in (
        rb'{"a": "x\ud83d\ude00 \ud83d y", "b": 1}',
        rb'{"pos": ["x", {"text": "y \uDE00"}]}',
    ):
        with pytest.raises(DataError, match=r"c\.jsonl line 17: half of a surrogate.*y.*jq -c"):
            parse_json_line(line, "c.jsonl line 17")


def tsv(line: str, first: str = "") -> dict[str, object]:
    layout = line_format((first or line).encode(), "x.tsv", Fields(("body",)).known, given=TSV)
    assert layout is not None
    return layout.parse(line.encode(), "x.tsv line 1")


def test_tsv_columns_without_and_with_a_header() -> None:
    assert tsv("1\tx\n") == {"id": "1", "text": "x"}
    assert tsv("1\tT\tx\r\n") == {"id": "1", "title": "T", "text": "x"}
    assert tsv("1\tu\tb\tx", first="id\turl\tbody\ttext\n")["body"] == "b"
    assert tsv("1\t\n") == {"id": "1", "text": ""}
    for line in ("1\n", "1\ta\tb\tc\n"):
        with pytest.raises(
            DataError, match=rf"x\.tsv line 1: {len(line.split())} columns.* id, text"
        ):
            tsv(line)


def test_a_name_of_ids_in_the_first_column_makes_a_header() -> None:
    known = Fields().known
    for first, header in [
        (b"id\ttext", True),
        (b"qid\tquery", True),
        (b"id\tprose", True),
        (b"UUID\tprose", True),
        (b"prose\tid", False),
        (b"7\ttext", False),
    ]:
        layout = line_format(first, "x.tsv", known, given=TSV)
        assert layout is not None
        assert layout.header is header


def test_the_first_line_determines_the_format_without_a_known_suffix() -> None:
    known = Fields().known
    assert line_format(b'\xef\xbb\xbf{"id": 1}', "x", known) == LineFormat(parse_json_line)
    assert line_format(b"<top>", "topics.txt", known) is None
    with pytest.raises(DataError, match=r"jsonl, tsv .*'hello"):
        line_format(b"hello world\n", "x.txt", known)
