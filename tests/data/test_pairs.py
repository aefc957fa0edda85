"""Judgements and runs in the formats of other tools: each shape is read right, or refused with advice."""

import csv
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytrec_eval

from lmkcli.data.collection import Qrel
from lmkcli.data.qrels import read_qrels
from lmkcli.data.run import read_run
from lmkcli.errors import DataError
from tests.conftest import Lmk

QRELS = [Qrel("q1", "d1", 1), Qrel("q1", "d2", 0), Qrel("q2", "d1", 2), Qrel("#tea", "d3", -1)]
SCORES = {"q1": {"d1": 2.5, "d2": 1.0}, "#tea": {"d3": -0.5}}
NAMES = [
    *(("query-id", "corpus-id", "score"), ("query_id", "doc_id", "relevance")),
    *(("q_id", "doc_id", "score"), ("qid", "docno", "label"), ("Query ID", "Document ID", "Grade")),
]


def nested(rows: Iterable[tuple[str, str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for query, doc, number in rows:
        found.setdefault(query, {})[doc] = number
    return found


def written(path: Path, rows: list[tuple[Any, ...]], names: tuple[str, ...] = ()) -> Path:
    """Write a table in the format of the suffix, compressed or not."""
    kind = path.suffixes[0]
    if kind == ".parquet":
        pq.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), path)
        return path
    if kind in (".csv", ".tsv"):
        separator = "," if kind == ".csv" else "\t"
        lines = [separator.join(map(str, row)) for row in ([names] if names else []) + rows]
        text = "\n".join(lines) + "\n"
    elif kind == ".jsonl":
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    else:
        value = [dict(zip(names, row, strict=True)) for row in rows] if names else nested(rows)
        text = json.dumps(value, indent=2 if len(rows) % 2 else None)
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = pa.Codec("zstd").compress(data, asbytes=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "jsonl", "json", "parquet", "csv.gz", "tsv.zst", "json.zst"]
)
def test_tables_with_names(tmp_path: Path, kind: str, names: tuple[str, ...]) -> None:
    """The order of the columns is that of the names, and further columns do not matter."""
    rows = [(grade, "extra", doc, query) for query, doc, grade in QRELS]
    columns = (names[2], "other", names[1], names[0])
    assert list(read_qrels(written(tmp_path / f"q.{kind}", rows, columns))) == QRELS
    hits = [
        (score, "x", doc, query) for query, each in SCORES.items() for doc, score in each.items()
    ]
    if kind != "tsv" and not kind.startswith("tsv"):
        run = read_run(written(tmp_path / f"r.{kind}", hits, columns))
        assert scores_of(run) == SCORES


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet", "csv.gz"])
def test_a_table_of_pyterrier(tmp_path: Path, kind: str) -> None:
    """The id of a document is docno; docid is an internal number. A table may have scores and grades."""
    names = ("qid", "docid", "docno", "rank", "score", "query", "label")
    rows = [("q1", 7, "d1", 0, 2, "tea", 1), ("q1", 3, "d2", 1, 1, "tea", 0)]
    file = written(tmp_path / f"t.{kind}", rows, names)
    assert scores_of(read_run(file)) == {"q1": {"d1": 2.0, "d2": 1.0}}
    assert list(read_qrels(file)) == [Qrel("q1", "d1", 1), Qrel("q1", "d2", 0)]


def test_the_grades_of_a_table_with_tabs(tmp_path: Path) -> None:
    file = tmp_path / "q.tsv"
    file.write_text("qid\tdocid\tdocno\tscore\tlabel\nq1\t7\td1\t3\t1\n")
    assert list(read_qrels(file)) == [Qrel("q1", "d1", 1)]


def scores_of(run: Any) -> dict[str, dict[str, float]]:
    return {
        query: dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
        for query, ranking in run.rankings.items()
    }


@pytest.mark.parametrize("kind", ["json", "json.gz", "json.zst"])
def test_objects_by_id(tmp_path: Path, kind: str) -> None:
    assert list(read_qrels(written(tmp_path / f"q.{kind}", [*QRELS]))) == QRELS
    assert list(read_qrels(written(tmp_path / f"q3.{kind}", QRELS[:3]))) == QRELS[:3]
    hits = [(query, doc, score) for query, each in SCORES.items() for doc, score in each.items()]
    assert scores_of(read_run(written(tmp_path / f"r.{kind}", hits))) == SCORES
    (tmp_path / "lines.jsonl").write_text('{"q1": {"d1": 1}}\n{"q2": {"d1": 2}}\n')
    assert list(read_qrels(tmp_path / "lines.jsonl")) == [QRELS[0], QRELS[2]]


LINES = {
    "trec": "q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n#tea 0 d3 -1\n",
    "tabs": "q1\t0\td1\t1\nq1\t0\td2\t0\nq2\t0\td1\t2\n#tea\t0\td3\t-1\n",
    "spaces": "  q1   0  d1   1\nq1 0\td2  0\n\n\nq2 Q0 d1 2 \n#tea\tQ0 d3 -1",
    "beir": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\nq2\td1\t2\n#tea\td3\t-1\n",
    "beir without a header": "q1\td1\t1\nq1\td2\t0\nq2\td1\t2\n#tea\td3\t-1\n",
    "header of four": "qid iter docid rel\nq1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n#tea 0 d3 -1\n",
    "header with #": "#score\tdocid\tqid\n1\td1\tq1\n0\td2\tq1\n2\td1\tq2\n-1\td3\t#tea\n",
    "decimals": "q1 0 d1 1.0\nq1 0 d2 0.000\nq2 0 d1 +2\n#tea 0 d3 -1.\n",
    "comments": "# judgements of 2026\n#\n## more\nq1 0 d1 1\n#note q1\nq1 0 d2 0\nq2 0 d1 2\n#tea 0 d3 -1\n",
    "mark": "\ufeffq1 0 d1 1\r\nq1 0 d2 0\r\nq2 0 d1 2\r\n#tea 0 d3 -1\r\n",
    "mark and comment": "\ufeff# by me\nq1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n#tea 0 d3 -1",
}  # fmt: skip


@pytest.mark.parametrize("shape", LINES)
@pytest.mark.parametrize("suffix", ["qrels", "txt", "tsv", ""])
def test_judgements_in_lines(tmp_path: Path, shape: str, suffix: str) -> None:
    path = tmp_path / f"q.{suffix}"
    path.write_text(LINES[shape], newline="")
    assert list(read_qrels(path)) == QRELS


def test_judgements_are_those_of_pytrec_eval(tmp_path: Path) -> None:
    path = tmp_path / "q"
    for shape in ("trec", "tabs"):
        path.write_text(LINES[shape])
        with path.open() as file:
            assert nested(read_qrels(path)) == pytrec_eval.parse_qrel(file)
    path.write_text("q1 Q0 d1 1 2.5 x\nq1 Q0 d2 2 1.0 x\n#tea Q0 d3 1 -0.5 x\n")
    with path.open() as file:
        assert scores_of(read_run(path)) == pytrec_eval.parse_run(file) == SCORES


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("q", "q1 0 d1 1.5\n", "not a judgement: the measures need an integer grade"),
        ("q", "q1 0 d1\n", "not a judgement"),
        ("q", "q1 0 d1 1 x\n", "not a judgement"),
        ("q", "q1 0 d\x001 1\n", "control character"),
        ("q", "q1 0 d1 1\n#q1 0 d2 1\n", "write '# ' with a space for a comment"),
        ("q", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n", "git lfs pull"),
        ("q.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n", "git lfs pull"),
        ("q.csv", "a,b,c\nq1,d1,1\n", "name its columns query_id"),
        ("q.csv", "query_id,doc_id,score\nq1,d1,x\n", "integer grade"),
        ("q.csv", "query_id,doc_id,score\nq1,d1\n", "2 fields"),
        ("q.json", '{"q1": {"d1": 1.5}}', "integer grade"),
        ("q.json", '{"q1": {"d1": null}}', "integer"),
        ("q.json", '{"q1": {"d1": true}}', "integer"),
        ("q.json", '{"q1": ["d1"]}', "name its columns"),
        ("q.json", '{"q 1": {"d1": 1}}', "white space"),
        ("q.json", '{"q1": {"d1": 1}, "q1": {"d2": 1}}', "twice"),
        ("q.jsonl", '{"query_id": "q1", "doc_id": "d1", "score": 1}\n{"query_id": "q1"}\n', "missing"),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path: Path, name: str, text: str, advice: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=advice):
        list(read_qrels(tmp_path / name))


@pytest.mark.parametrize(
    "text",
    [
        "# made by x\nq1 Q0 d1 1 2.5 x\nq1 Q0 d2 2 1.0 x\n#tea Q0 d3 1 -0.5 x\n",
        "q1 Q0 d1 1 2.5 x\n#q0 is missing, as 1 of 3 says\nq1 Q0 d2 2 1.0 x\n#tea Q0 d3 1 -0.5 x",
        "\ufeff#run\nq1\tQ0\td1\t1\t2.5\tx\nq1  Q0 d2 2 1.0 x more\r\n\n#tea Q0 d3 1 -5e-1 x\n",
    ],
)
def test_comments_in_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    assert scores_of(read_run(tmp_path / "r")) == SCORES
    (tmp_path / "r").write_text(text + "\n#q1 Q0 d7 1 1 x\n")
    with pytest.raises(DataError, match="a comment, or a hit"):
        read_run(tmp_path / "r")


def test_eval_recognises_every_kind(lmk: Lmk, tmp_path: Path) -> None:
    """The first file is recognised as judgements, as in trec_eval, also if it is a table or JSON."""
    rows = [("q1", "d1", 1), ("q2", "d3", 1)]
    names = NAMES[0]
    hits = tmp_path / "r.trec"
    hits.write_text("# mine\nq1 Q0 d1 1 1 x\nq2 Q0 d9 1 1 x\n")
    packed = tmp_path / "r.trec.zst"
    packed.write_bytes(pa.Codec("zstd").compress(hits.read_bytes(), asbytes=True))
    run = tmp_path / "run.json"
    run.write_text('{"q1": {"d1": 0.5}, "q2": {"d9": 1}}')
    files = [
        written(tmp_path / f"j.{kind}", rows, names) for kind in ("csv", "jsonl", "parquet", "tsv")
    ]
    files += [written(tmp_path / "nested.json", rows), tmp_path / "c.qrels"]
    files[-1].write_text("# judgements\nq1 0 d1 1\nq2 0 d3 1\n")
    for qrels in files:
        for each in (hits, packed, run):
            for words in ([qrels, each], [each, "--qrels", qrels]):
                table = lmk("eval", *words, "-m", "nDCG@10", "--json").out
                assert json.loads(table)[0]["nDCG@10"] == 0.5
    assert "looks like qrels" in lmk("eval", files[-1], "--qrels", files[0], code=2).err


def test_splits_of_a_folder_in_other_formats(tmp_path: Path, lmk: Lmk) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "green tea"}\n')
    (tmp_path / "queries.json").write_text('{"q1": "tea", "q2": "bread"}')
    written(tmp_path / "qrels" / "test.json", [("q1", "d1", 1)])
    written(tmp_path / "qrels" / "dev.parquet", [("q2", "d1", 1)], NAMES[0])
    from lmkcli.data.collection import open_collection

    assert list(open_collection(str(tmp_path)).qrels()) == [QRELS[0]]
    assert list(open_collection(f"{tmp_path}:dev").qrels()) == [Qrel("q2", "d1", 1)]
    assert [query.text for query in open_collection(str(tmp_path)).judged_queries()] == ["tea"]


def test_quoted_csv(tmp_path: Path) -> None:
    with (tmp_path / "q.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";", quoting=csv.QUOTE_ALL)
        writer.writerows([("", *NAMES[0]), (0, "q1", "d1", "1"), (1, "q1", "d,2", "0")])
    assert list(read_qrels(tmp_path / "q.csv")) == [QRELS[0], Qrel("q1", "d,2", 0)]
    (tmp_path / "bare.csv").write_text("q1,d1,1\nq1,d2,0\n")
    assert list(read_qrels(tmp_path / "bare.csv")) == QRELS[:2]
    (tmp_path / "bare.csv").write_text("q1,0,d1,1\nq1,0,d2,0\n")
    assert list(read_qrels(tmp_path / "bare.csv")) == QRELS[:2]
