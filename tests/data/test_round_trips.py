"""Texts of every kind survive each format: written by other libraries, read as the same documents."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import Doc, Shard, open_collection
from tests import levels

# Surrogates are no characters of a file; a form feed separates chunks only if the collection writes it.
CHARACTERS = st.characters(exclude_categories=["Cs"])
STRANGE = st.sampled_from(
    [*"\"',;\t|\n\r\\\u2028\x85é漢😀\ufeff\0\f", "\r\n", '""', "NULL", "NaN", "0", " "]
)
TEXT = st.lists(STRANGE | st.text(CHARACTERS, max_size=5), max_size=8).map("".join)
ROWS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8)
Rows = list[dict[str, str]]


def table(rows: Rows, delimiter: str) -> bytes:
    """csv as Python writes it: with quotes where they are needed, or with a line feed as line end, all."""
    text = io.StringIO(newline="")
    kind: dict[str, Any] = (
        {"lineterminator": "\n", "quoting": csv.QUOTE_ALL} if delimiter == "," else {}
    )
    writer = csv.DictWriter(text, ["id", "title", "text"], delimiter=delimiter, **kind)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def lines(rows: Rows, ascii_only: bool) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode()


def parquet(rows: Rows) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=3)
    return bytes(out.getvalue().to_pybytes())


WRITERS: dict[str, tuple[str, Callable[[Rows], bytes]]] = {
    "comma": ("x.csv", lambda rows: table(rows, ",")),
    "semicolon": ("x.csv", lambda rows: table(rows, ";")),
    "tabs": ("x.csv", lambda rows: table(rows, "\t")),
    "jsonl": ("x.jsonl", lambda rows: lines(rows, ascii_only=False)),
    "escaped": ("x.jsonl", lambda rows: lines(rows, ascii_only=True)),
    "array": ("x.json", lambda rows: json.dumps(rows, indent=1).encode()),
    "parquet": ("x.parquet", parquet),
}
STREAMS = [name for name in WRITERS if name != "parquet"]
FORMS = [("", name) for name in WRITERS] + [(".gz", name) for name in STREAMS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trips")


def check(folder: Path, form: tuple[str, str], rows: list[tuple[str, str]], shards: int) -> None:
    zipped, (name, write) = form[0], WRITERS[form[1]]
    docs = [Doc(f"d{n}", text, title) for n, (title, text) in enumerate(rows)]
    data = write([{"id": doc.id, "title": doc.title, "text": doc.text} for doc in docs])
    path = folder / f"{name}{zipped}"
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    collection = open_collection(str(path))
    found = [doc for n in range(shards) for doc in collection.docs(Shard(n, shards))]
    assert sorted(found) == sorted(docs)
    assert shards > 1 or found == docs


@pytest.mark.parametrize(("zipped", "form"), levels.sample("round trips", FORMS, 5))
@given(rows=ROWS, shards=st.integers(1, 3))
def test_documents_survive(
    folder: Path, zipped: str, form: str, rows: list[tuple[str, str]], shards: int
) -> None:
    check(folder, (zipped, form), rows, shards)


def test_every_character_survives(folder: Path) -> None:
    everything = [chr(code) for code in range(0x11_0000) if not 0xD800 <= code <= 0xDFFF]
    texts = ["x".join(everything[at : at + 5000]) for at in range(0, len(everything), 5000)]
    for form in FORMS:
        check(folder, form, [("t", text) for text in texts[:3] + texts[-3:]], 1)


@pytest.mark.parametrize(
    ("size", "form"), levels.pairs(size=[1 << 10, 1 << 17, 1 << 20], form=STREAMS)
)
def test_texts_that_cross_the_blocks_of_reading(folder: Path, size: int, form: str) -> None:
    for zipped in ("", ".gz"):
        text = 'é\n"' * (size // 3)
        check(folder, (zipped, form), [("t", text), ("", text[::-1])], 2)
