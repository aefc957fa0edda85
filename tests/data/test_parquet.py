"""Parquet files: paths are never URIs, and small files do not stand for gigabytes."""

import ast
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmkcli.data.parquet import Decoder, decoded_bytes, open_parquet
from lmkcli.data.records import open_records
from lmkcli.errors import DataError
from lmkcli.store.doctable import DocTable
from tests import levels, tiny

Lmk = Callable[..., Any]
LIKE_URIS = ("run:1", "v2:final", "s3:x", "hdfs:y", "file:z", "gs:q", "a%20b")


@pytest.mark.parametrize("name", levels.sample("paths like URIs", LIKE_URIS, 3))
def test_a_folder_may_have_the_name_of_a_uri(
    lmk: Lmk,
    tiny_model: Callable[[str], Path],
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """All commands that write or read parquet, with relative paths, as people type them."""
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    pq.write_table(
        pa.table({"id": ["a", "b"], "text": ["green tea", "iron and copper"]}),
        tmp_path / "docs.parquet",
    )
    Path("docs.parquet").rename(f"{name}/docs.parquet")
    model = tiny_model("bert")
    lmk("tokenize", f"{name}/docs.parquet", "-m", model, "-o", f"{name}/tokens", "--store-text")
    lmk("encode", f"{name}/tokens", "-m", model, "--pool", "mean", "-o", f"{name}/vectors")
    lmk("encode", beir, "-m", model, "--pool", "mean", "-o", f"{name}/beir", "--store-text")
    lmk("index", f"{name}/beir", "-o", f"{name}/index", "--kind", "hnsw")
    lmk("index", beir, "-o", f"{name}/bm25", "--kind", "bm25")
    for index in ("beir", "index", "bm25"):
        lmk("search", f"{name}/{index}", beir, "-o", f"{name}/{index}.trec", "-k", "3")
        assert len(Path(f"{name}/{index}.trec").read_text().splitlines()) == 36
    lmk("export", f"{name}/beir", "--to", "parquet", "-o", f"{name}/table")
    lmk("export", f"{name}/beir", "--to", "numpy", "-o", f"{name}/arrays")
    ids = ("--ids", f"{name}/arrays/ids.txt")
    lmk("import", f"{name}/arrays/vectors.npy", "--from", "numpy", *ids, "-o", f"{name}/imported")
    assert "60" in lmk("show", f"{name}/imported").out
    lmk("verify", f"{name}/vectors")


def test_parquet_is_opened_in_one_module() -> None:
    """Elsewhere, a path would be read as a URI if its first folder looks like one."""
    package = Path(__file__).parents[2] / "lmkcli"
    opening = ("ParquetFile", "ParquetWriter", "read_table", "write_table", "ParquetDataset")
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and path.name != "parquet.py":
                called = ast.unparse(node.func)
                assert not called.startswith("pq."), f"{path}:{node.lineno}"
                assert called not in opening, f"{path}:{node.lineno}"


def repeated(path: Path, copies: int, size: int, nested: bool = False) -> None:
    """A value of `size` bytes in `copies` rows, which the file contains once."""
    numbers = pa.array([0] * copies, pa.int32())
    texts = pa.DictionaryArray.from_arrays(numbers, pa.array(["x " * (size // 2)]))
    if nested:
        texts = pa.ListArray.from_arrays(pa.array(range(copies + 1), pa.int32()), texts)
    pq.write_table(
        pa.table({"id": [str(n) for n in range(copies)], "text": texts}), path, compression="zstd"
    )


@pytest.mark.parametrize("nested", [False, True])
def test_copies_of_a_long_value_are_refused_before_they_are_decoded(
    tmp_path: Path, nested: bool
) -> None:
    path = tmp_path / "bomb.parquet"
    repeated(path, 500, 1 << 20, nested)
    assert path.stat().st_size < 50_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DataError, match=r"bomb\.parquet has .* kB, and more than"):
        list(open_records(str(path)))
    assert pa.default_memory_pool().max_memory() < before + (100 << 20)


def test_honest_repetitions_are_read(tmp_path: Path) -> None:
    repeated(tmp_path / "few.parquet", 2000, 20_000)
    records = [record for _, record in open_records(str(tmp_path / "few.parquet"))]
    assert len(records) == 2000
    assert records[-1] == {"id": "1999", "text": "x " * 10_000}


def test_pieces_keep_all_rows_and_types(tmp_path: Path) -> None:
    lists = [["a", None], [], None, ["bb"] * 5]
    table = pa.table(
        {
            "id": ["a", "b", "c", "d"],
            "text": ["x" * 99, None, "y", ""],
            "many": lists,
            "n": [1, 2, 3, None],
        }
    )
    pq.write_table(table, tmp_path / "mixed.parquet")
    with open_parquet(tmp_path / "mixed.parquet", dictionaries=True) as file:
        decoder = Decoder(tmp_path / "mixed.parquet")
        pieces = [piece for batch in file.iter_batches() for piece in decoder.pieces(batch, 50)]
    assert len(pieces) > 1
    assert [row for piece in pieces for row in piece.to_pylist()] == table.to_pylist()
    assert decoded_bytes(pa.array(["ab", "c", None]).dictionary_encode()) == 3


def test_row_groups_and_rows_are_in_proportion_to_the_file(tmp_path: Path) -> None:
    """A footer describes 60,000 row groups without columns in 5 bytes each."""
    path = tmp_path / "groups.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": ["b"]}), path)
    facts = open_parquet(path).metadata
    assert facts.num_row_groups == 1

    def footer(groups: int, rows: int) -> bytes:
        """FileMetaData in thrift's compact protocol: version, schema of two columns, rows, row groups."""

        def varint(number: int) -> bytes:
            out = b""
            while number > 127:
                out, number = out + bytes([number & 127 | 128]), number >> 7
            return out + bytes([number])

        root = b"\x48\x01r\x15\x02\x00"  # name (4), num_children (5)
        column = b"\x15\x0c\x25\x02\x18\x01t\x00"  # type (1), repetition (3), name (4)
        schema = b"\x19" + bytes([0x2C]) + root + column
        group = b"\x19\x0c\x16\x00\x16\x00\x00"  # no columns, 0 bytes, 0 rows
        described = b"\x19\xfc" + varint(groups) + group * groups
        return b"\x15\x02" + schema + b"\x16" + varint(2 * rows) + described + b"\x00"

    for groups, rows, message in (
        (60_000, 0, "60,000 row groups"),
        (0, 10**12, "1,000,000,000,000 rows"),
    ):
        text = footer(groups, rows)
        path.write_bytes(b"PAR1" + text + len(text).to_bytes(4, "little") + b"PAR1")
        with pytest.raises(DataError, match=message):
            list(open_records(str(path)))


def test_the_texts_of_an_artifact_are_bounded_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lmk: Lmk,
    tiny_model: Callable[[str], Path],
    beir: Path,
) -> None:
    lmk(
        "encode",
        beir,
        "-m",
        tiny_model("bert"),
        "--pool",
        "mean",
        "-o",
        tmp_path / "v",
        "--store-text",
    )
    (path,) = tmp_path.glob("v/parts/*/docs.parquet")
    table = pq.read_table(path)
    text = pa.array(["x" * (1 << 19)] * len(table), table.schema.field("text").type)
    at = table.schema.get_field_index("text")
    pq.write_table(
        table.set_column(at, table.schema.field("text"), text), path, write_page_checksum=True
    )
    assert len(list(DocTable(path).docs())) == 60
    monkeypatch.setattr("lmkcli.data.parquet._ALWAYS", 1 << 24)
    with pytest.raises(DataError, match=r"'text' has .* of text in a file of"):
        list(DocTable(path).docs())


@pytest.mark.parametrize(
    "line", [b"\n", b" ", json.dumps({"id": "a", "text": "b"}).encode() + b"\n"]
)
def test_a_compressed_file_is_in_proportion_to_its_text(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmkcli.data.byte_streams._FREE_BYTES", 1 << 20)
    with gzip.open(tmp_path / "docs.jsonl.gz", "wb", 9) as file:
        file.write(line * (16_000_000 // len(line)))
    with pytest.raises(DataError, match=r"unpack it and name the file inside|lines .* are empty"):
        list(open_records(str(tmp_path / "docs.jsonl.gz")))


def test_an_honest_compressed_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmkcli.data.byte_streams._FREE_BYTES", 1 << 10)
    with gzip.open(tmp_path / "docs.jsonl.gz", "wt", 9) as file:
        for number in range(2000):
            file.write(json.dumps({"id": str(number), "text": tiny.sentence(number, 40)}) + "\n")
    assert len(list(open_records(str(tmp_path / "docs.jsonl.gz")))) == 2000
    assert os.path.getsize(tmp_path / "docs.jsonl.gz") > 1 << 10
