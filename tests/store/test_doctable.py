"""Tables of documents: written and read again."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.data.collection import Doc, doc_hash
from lmkcli.errors import DataError
from lmkcli.store.doctable import ROW_GROUP, DocRows, DocTable, DocTableWriter

UNUSUAL = [
    Doc("é", "nfc \u00e9, nfd e\u0301", "T\u0308"),
    Doc("e\u0301", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \x00 \x85 \u2028"),
    Doc("שלום", "السلام عليكم", "你好"),
    Doc("empty", "", ""),
]


def write(path: Path, docs: list[Doc], store_text: bool = True, contexts: bool = False) -> DocTable:
    writer = DocTableWriter(path, store_text, contexts)
    for number, doc in enumerate(docs):
        each = {"tokens": number, "lost": number // 2, "vectors": 1,
                "context_tokens": 3 * number, "context_lost": number}  # fmt: skip
        counts = {name: np.array([value]) for name, value in each.items()}
        writer.append(DocRows([doc], [doc_hash(doc)], counts))
    writer.close()
    writer.close()
    return DocTable(path)


@settings(deadline=None)  # files are written
@given(st.lists(st.builds(Doc, st.text(), st.text(), st.text(), st.just("")), max_size=6))
def test_documents_are_read_unchanged(
    tmp_path_factory: pytest.TempPathFactory, docs: list[Doc]
) -> None:
    table = write(tmp_path_factory.mktemp("table") / "docs.parquet", docs)
    assert list(table.docs()) == docs
    assert table.rows == len(docs)
    assert table.hashes() == [doc_hash(doc) for doc in docs]
    assert table.ids().to_pylist() == [doc.id for doc in docs]


def test_counts_are_read_without_pandas(tmp_path: Path) -> None:
    write(tmp_path / "docs.parquet", [Doc("a", "b"), Doc("c", "d")])
    code = (
        "import sys; from pathlib import Path; from lmkcli.store.doctable import DocTable; "
        "table = DocTable(Path('docs.parquet')); [rows] = table.doc_rows(); "
        "print(rows.count('tokens'), table.column('tokens'), 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[0 1] [0 1] False\n"


def test_groups_of_another_size_are_refused(tmp_path: Path) -> None:
    """Rows are found by the number of their group."""
    path = tmp_path / "docs.parquet"
    write(path, [Doc(str(number), "") for number in range(2 * ROW_GROUP)])
    pq.write_table(pq.read_table(path), path, row_group_size=ROW_GROUP // 10)
    with pytest.raises(DataError, match=r"docs\.parquet"):
        DocTable(path).ids_at(np.array([ROW_GROUP + 500]))


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
CONTEXTS = TEXT | st.lists(TEXT, max_size=3).map(tuple)


@settings(deadline=None)
@given(st.lists(st.builds(Doc, TEXT, TEXT, TEXT, CONTEXTS), max_size=6))
def test_contexts_are_read_unchanged(
    tmp_path_factory: pytest.TempPathFactory, docs: list[Doc]
) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = write(folder / "docs.parquet", docs, contexts=True)
    assert list(table.docs()) == table.docs_at(np.arange(len(docs))) == docs
    counted = [n for rows in table.doc_rows() for n in rows.count("context_tokens").tolist()]
    assert counted == [3 * number for number in range(len(docs))]
    without = write(folder / "without.parquet", docs, store_text=False, contexts=True)
    assert list(without.docs()) == [Doc(doc.id, "") for doc in docs]
    assert without.column("context_lost").tolist() == list(range(len(docs)))


@pytest.mark.parametrize("stored", ["", "{}", "[1]", "null"])
def test_an_invalid_context_is_refused(tmp_path: Path, stored: str) -> None:
    path = tmp_path / "docs.parquet"
    table = pq.read_table(write(path, [Doc("a", "b")], contexts=True)._path)
    at = table.schema.names.index("context")
    pq.write_table(table.set_column(at, "context", pa.array([stored])), path)
    with pytest.raises(DataError, match="make the artifact again"):
        list(DocTable(path).docs())


def test_columns_are_integers(tmp_path: Path) -> None:
    table = write(tmp_path / "docs.parquet", UNUSUAL)
    assert table.column("tokens").tolist() == [0, 1, 2, 3]
    assert table.column("lost").tolist() == [0, 0, 1, 1]
    assert table.column("vectors").dtype == np.int64
    assert list(table.docs()) == UNUSUAL


def test_lone_surrogates_become_question_marks(tmp_path: Path) -> None:
    """One question mark for each, as in the tokenizer. The hash is that of the original text."""
    doc = Doc("a\ud800", "x \udfff é", "\ud83d")
    table = write(tmp_path / "docs.parquet", [doc])
    assert list(table.docs()) == [Doc("a?", "x ? é", "?")]
    assert table.hashes() == [doc_hash(doc)]
    assert table.docs_at(table.rows_by_ids(["a\ud800"])) == list(table.docs())


def test_few_rows_read_only_their_row_groups(tmp_path: Path) -> None:
    docs = [Doc(f"d{n}", f"text {n}", f"title {n}") for n in range(2 * ROW_GROUP + 7)]
    table = write(tmp_path / "docs.parquet", docs)
    meta = pq.ParquetFile(tmp_path / "docs.parquet").metadata
    sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
    assert sizes == [ROW_GROUP, ROW_GROUP, 7]
    rows = np.array([2006, 0, 999, 1000, 1999, 2000, 0])
    assert table.docs_at(rows) == [docs[row] for row in rows]
    assert table.ids_at(rows) == [f"d{row}" for row in rows]
    assert list(table.docs()) == docs
    assert table.docs_at(table.rows_by_ids(["d2001", "nowhere", "d3"])) == [docs[3], docs[2001]]
    assert table.docs_at(np.array([], np.int64)) == []


def test_without_stored_texts_documents_have_only_ids(tmp_path: Path) -> None:
    table = write(tmp_path / "docs.parquet", UNUSUAL, store_text=False)
    bare = [Doc(doc.id, "") for doc in UNUSUAL]
    assert not table.has_text
    assert list(table.docs()) == bare
    assert table.docs_at(np.array([2, 0])) == [bare[2], bare[0]]
    assert table.docs_at(table.rows_by_ids(["empty"])) == [bare[3]]
    assert table.hashes() == [doc_hash(doc) for doc in UNUSUAL]


def test_a_missing_or_damaged_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        DocTable(tmp_path / "docs.parquet")
    (tmp_path / "docs.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read"):
        DocTable(tmp_path / "docs.parquet")


@pytest.mark.parametrize("written", [b"s-separators", b"copper conducts"])
def test_a_damaged_text_is_never_read(tmp_path: Path, written: bytes) -> None:
    """zstd stores these short texts as they are, so another letter is a valid page without a checksum."""
    path = tmp_path / "docs.parquet"
    doc = Doc("s-separators", "copper conducts")
    assert list(write(path, [doc]).docs()) == [doc]
    whole = path.read_bytes()
    path.write_bytes(whole.replace(written, b"?" + written[1:]))
    assert path.read_bytes() != whole
    with pytest.raises(DataError, match=r"docs\.parquet"):
        list(DocTable(path).docs())


def test_recent_row_groups_stay_in_memory_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    docs = [Doc(str(number), f"text {number}") for number in range(3 * ROW_GROUP)]
    table = write(path, docs)
    first, second, third = (np.array([number, number + 9]) for number in (7, 1500, 2500))
    size = sum(len(doc.id + doc.text) + 24 for doc in docs[:ROW_GROUP])
    table.keep_recent(2 * size)
    for rows in (first, second, third, second):
        assert table.docs_at(rows) == [docs[row] for row in rows]
    with open(path, "r+b") as file:  # the file is mapped
        file.write(bytes(path.stat().st_size - 4096))
    assert table.docs_at(second) == [docs[row] for row in second]
    with pytest.raises(DataError):
        table.docs_at(first)
