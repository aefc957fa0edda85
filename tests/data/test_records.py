"""Reading files in shards: nothing is lost or read twice, and errors name the place."""

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

from lmkcli.data.collection import Shard
from lmkcli.data.formats import Record
from lmkcli.data.records import BLOCK, ParquetRecords, PipedLines, open_records
from lmkcli.errors import DataError

# Unicode's own line separators, a form feed and a lone carriage return stand inside texts.
TEXT = st.text(st.sampled_from('ab é\u2028\u2029\x85\x0c漢😀\\"{}\t'), max_size=12)
ROWS = st.lists(TEXT, max_size=12)
COUNTS = st.integers(1, 30)


def records(path: Path | str, shard: Shard) -> list[Record]:
    return [record for _, record in open_records(str(path), shard)]


def sharded(path: Path, count: int) -> list[Record]:
    return [record for number in range(count) for record in records(path, Shard(number, count))]


@given(ROWS, COUNTS, st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans(), st.booleans())
def test_byte_shards_in_order_are_the_file(
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
def test_a_header_belongs_to_every_shard_and_is_no_record(
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
    # Two members, as `cat a.gz b.gz` makes them.
    halves = ("".join(json.dumps(row) + "\n" for row in half) for half in (rows[:5], rows[5:]))
    path.write_bytes(b"".join(gzip.compress(half.encode(), mtime=0) for half in halves))
    shards = [records(path, Shard(number, count)) for number in range(count)]
    ids = [[int(row["id"]) for row in shard] for shard in shards]
    assert sorted(chain.from_iterable(ids)) == list(range(len(rows)))
    assert all(shard == sorted(shard) for shard in ids)


def test_a_cut_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    line = b"".join(b'{"id": "%d", "text": "some text"}\n' % number for number in range(50_000))
    path.write_bytes(gzip.compress(line, mtime=0)[:-20_000])
    with pytest.raises(DataError, match="damaged or cut gzip"):
        records(path, Shard())
    path.write_bytes(b"no gzip at all")
    with pytest.raises(DataError, match="damaged or cut gzip"):
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


def test_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    path.write_text("text")
    with pytest.raises(DataError, match="not a parquet file"):
        ParquetRecords(path, Shard(), frozenset())


def test_errors_give_the_line_or_else_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    good = b'{"id": "1", "text": "x"}\n'
    path.write_bytes(good * 16 + b"{broken\n" + good * 3)
    with pytest.raises(DataError, match=r"c.jsonl line 17: not valid JSON"):
        records(path, Shard())
    with pytest.raises(DataError, match=f"c.jsonl byte {16 * len(good)}: not valid JSON"):
        records(path, Shard(1, 2))
    path.write_bytes(b"")
    assert records(path, Shard()) == []


def test_fraction_goes_from_nothing_to_all(tmp_path: Path) -> None:
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
        seen += [stream.fraction or -1.0 for _ in stream]
        assert seen[0] == 0.0
        assert seen[-1] == pytest.approx(1.0, abs=1e-3)
        assert seen == sorted(seen)
        assert any(0.3 < part < 0.7 for part in seen)


def test_a_shard_reads_its_own_slice_only(tmp_path: Path) -> None:
    """The first third is not even UTF-8: a shard that touched it would fail."""
    path = tmp_path / "c.jsonl"
    good = b'{"id": "1", "text": "x"}\n'
    path.write_bytes(good + b"\xff\xfe\n" * 1000 + good * 300)
    assert len(records(path, Shard(1, 2))) > 100


def test_a_large_file_starts_at_once_and_stays_small(tmp_path: Path) -> None:
    """5 GB of holes after some lines: the first record needs no reading of the rest."""
    path = tmp_path / "c.jsonl"
    with path.open("wb") as file:
        file.write(b'{"id": "1", "text": "x"}\n' * 10)
        file.truncate(5 * 2**30)
    where, record = next(iter(open_records(str(path))))
    assert where.endswith("line 1")
    assert record == {"id": "1", "text": "x"}


@pytest.mark.parametrize("data", [b'\xef\xbb\xbf{"id": "1", "text": "x"}\r\n', b"1\tx\n"])
def test_stdin_is_jsonl_or_tsv_and_read_once(data: bytes) -> None:
    lines = PipedLines(io.BytesIO(data), Shard(), frozenset())
    assert [record for _, record in lines] == [{"id": "1", "text": "x"}]
    assert lines.fraction is None
    with pytest.raises(DataError, match="only once"):
        list(lines)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a folder; expected a file"):
        open_records(str(tmp_path))
