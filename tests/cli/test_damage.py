"""Damaged artifacts are refused with exit code 3 and the file's name, and never searched as if whole."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Models = Callable[[str], Path]
Lmk = Callable[..., Any]


@pytest.fixture
def vectors(lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path) -> Path:
    """Vectors of one's own, to break."""
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "vectors")
    return tmp_path / "vectors"


def part(folder: Path, name: str) -> Path:
    (found,) = (folder / "parts").glob(f"0*/{name}")
    return found


def saved(array: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


DAMAGES: dict[str, Callable[[Any], bytes]] = {
    "rows": lambda array: saved(array[:10]),
    "width": lambda array: saved(array[:, :5]),
    "flat": lambda array: saved(array.ravel()),
    "dtype": lambda array: saved(array.astype(np.float64)),
    "byte order": lambda array: saved(array.astype(">f2")),
    "nothing finite": lambda array: saved(np.full_like(array, np.nan)),
    "objects": lambda array: saved(array.astype(object), allow_pickle=True),
    "empty": lambda array: b"",
    "cut": lambda array: saved(array)[:-100],
    "header": lambda array: saved(array)[:20],
    "archive": lambda array: b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_array_that_is_not_what_its_part_says(lmk: Lmk, vectors: Path, damage: str) -> None:
    path = part(vectors, "vectors.npy")
    array = np.array(np.load(path))
    path.write_bytes(DAMAGES[damage](array))
    for line in (["search", vectors, "-q", "rivers"], ["verify", vectors]):
        assert str(path) in lmk(*line, code=3).err


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


TABLES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-50]),
    "page": lambda path: path.write_bytes(b"PAR1" + bytes(300) + path.read_bytes()[304:]),
    "no ids": lambda path: rewritten(path, lambda table: table.drop_columns(["id"])),
    "numbers": lambda path: rewritten(
        path, lambda table: table.set_column(0, "id", pa.array(range(len(table))))
    ),
    "missing ids": lambda path: rewritten(
        path, lambda table: table.set_column(0, "id", pa.nulls(len(table), pa.string()))
    ),
}


@pytest.mark.parametrize("damage", TABLES)
def test_a_table_of_documents_that_cannot_be_read(lmk: Lmk, vectors: Path, damage: str) -> None:
    path = part(vectors, "docs.parquet")
    TABLES[damage](path)
    assert str(path) in lmk("search", vectors, "-q", "rivers", code=3).err


@pytest.mark.parametrize("shards", [0, -1, 10**12, "1", None, 1.5, True])
def test_a_number_of_shards_that_cannot_be(lmk: Lmk, vectors: Path, shards: Any) -> None:
    path = vectors / "manifest.json"
    recorded = json.loads(path.read_text())
    recorded["execution"]["shards"] = shards
    path.write_text(json.dumps(recorded))
    for line in (["search", vectors, "-q", "x"], ["show", vectors], ["verify", vectors]):
        assert "execution.shards" in lmk(*line, code=3).err


def test_a_parquet_collection_that_is_damaged(lmk: Lmk, tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    texts = [f"river number {i}" for i in range(500)]
    pq.write_table(pa.table({"id": [str(i) for i in range(500)], "text": texts}), path)
    whole = path.read_bytes()
    for broken in (b"", whole[:100], whole[:-8], b"PAR1" + bytes(200) + whole[204:]):
        path.write_bytes(broken)
        out = tmp_path / "bm25"
        err = lmk("index", path, "--kind", "bm25", "-o", out, code=3).err
        assert str(path) in err
        assert not out.exists()
        shutil.rmtree(out, ignore_errors=True)


def test_verify_reads_every_number(lmk: Lmk, vectors: Path) -> None:
    """One value of one row, which nothing else would notice."""
    lmk("verify", vectors, "--sample", 3)
    path = part(vectors, "vectors.npy")
    array = np.array(np.load(path))
    array[len(array) // 2, 0] *= 0.5
    path.write_bytes(saved(array))
    assert "its digest differs" in lmk("verify", vectors, "--sample", 3, code=3).err


def test_verify_notices_a_part_of_another_folder(
    lmk: Lmk, vectors: Path, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "cls", "-o", other)
    shutil.copy(part(other, "vectors.npy"), part(vectors, "vectors.npy"))
    assert "its digest differs" in lmk("verify", vectors, code=3).err
