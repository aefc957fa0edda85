"""Ids of files with white space: escaped in runs, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import escaped_id, unescaped_id
from lmkcli.data.qrels import read_qrels
from lmkcli.data.run import Run, ranked, read_run, write_run
from lmkcli.errors import DataError

NAMES = ["my notes.txt", "50% off.md", "./a%20b", "a\u00a0b", "plain.md", "100%", "http://x/a%20b"]


def test_a_run_contains_escaped_ids_and_reading_returns_them(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    scores = np.arange(len(NAMES), 0, -1).astype(np.float32)
    write_run(path, Run({"q": ranked(NAMES, scores)}))
    lines = path.read_text("utf-8").splitlines()
    assert all(len(line.split()) == 6 for line in lines)
    assert [line.split()[2] for line in lines] == [
        "./my%20notes.txt",
        "./50%25%20off.md",
        "././a%2520b",
        "./a%C2%A0b",
        "plain.md",
        "100%",
        "http://x/a%20b",
    ]
    assert read_run(path).rankings["q"].doc_ids == NAMES


@given(st.text(st.sampled_from("ab ./%20\u3000é"), min_size=1))
def test_every_id_comes_back(name: str) -> None:
    written = escaped_id(name)
    assert written.split() == [written]
    assert unescaped_id(written) == name


def test_judgements_name_files_with_spaces_in_both_ways(tmp_path: Path) -> None:
    trec, beir = tmp_path / "trec.qrels", tmp_path / "beir.tsv"
    trec.write_text("q1 0 ./my%20notes.txt 1\n")
    beir.write_text("query-id\tcorpus-id\tscore\nq1\tmy notes.txt\t1\n")
    for path in (trec, beir):
        assert [qrel.doc_id for qrel in read_qrels(path)] == ["my notes.txt"]
    beir.write_text("query-id\tcorpus-id\tscore\nq1\t \t1\n")
    with pytest.raises(DataError):
        list(read_qrels(beir))
