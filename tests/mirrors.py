"""Mirror folders in the file layouts of the hub, a few rows each, for every known collection.

Not a test module. What a repository holds is written down here a second time, by family and as the
hub has it, so that a slip in hub_layouts.toml shows. The rows are the same everywhere: documents d0 … d5
and queries q0 … q2, of which qN has the words of dN and is answered by it (in ConTEB, by its chunk number N).
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.tiny import sentence

Rows = list[dict[str, Any]]
DOCS = [(f"d{i}", sentence(i, 12)) for i in range(6)]
QUERIES = [(f"q{i}", sentence(i, 12)) for i in range(3)]
PAIRS = [(f"q{i}", f"d{i}") for i in range(3)]


def parquet(path: Path, rows: Rows) -> None:
    """One parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def jsonl(path: Path, rows: Rows) -> None:
    """Lines of JSON, packed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def text(path: Path, content: str) -> None:
    """A text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def card(folder: Path, configs: dict[str, dict[str, str]]) -> None:
    """A README that declares configurations, their splits and files."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, path in splits.items():
            lines += [f"  - split: {split}", f"    path: {path}"]
    text(folder / "README.md", "\n".join([*lines, "---", "# Data", ""]))


def docs(**columns: str) -> Rows:
    """The documents under other column names; a value is 'id', 'text' or the constant itself."""
    return [_row(columns, {"id": name, "text": words}) for name, words in DOCS]


def queries(**columns: str) -> Rows:
    """The queries, likewise."""
    return [_row(columns, {"id": name, "text": words}) for name, words in QUERIES]


def pairs(**columns: Any) -> Rows:
    """The judgements, likewise: 'query' and 'doc'."""
    return [_row(columns, {"query": query, "doc": doc}) for query, doc in PAIRS]


def _row(columns: dict[str, Any], values: dict[str, str]) -> dict[str, Any]:
    return {
        name.replace("__", "-"): values.get(value, value) if isinstance(value, str) else value
        for name, value in columns.items()
    }


def mteb(folder: Path, prefix: str = "", split: str = "test", qrels: str = "default") -> None:
    """As mteb pushes a retrieval task: parquet, configurations in the README."""
    names = {"corpus": f"{prefix}corpus", "queries": f"{prefix}queries"}
    parquet(
        folder / names["corpus"] / "corpus-00000-of-00001.parquet",
        docs(_id="id", title="", text="text"),
    )
    parquet(
        folder / names["queries"] / "queries-00000-of-00001.parquet", queries(_id="id", text="text")
    )
    judged = "data" if qrels == "default" else f"{prefix}{qrels}"
    rows = pairs(query__id="query", corpus__id="doc", score=1)
    parquet(folder / judged / f"{split}-00000-of-00001.parquet", rows)
    configs = {
        names["corpus"]: {"corpus": f"{names['corpus']}/corpus-*"},
        names["queries"]: {"queries": f"{names['queries']}/queries-*"},
        qrels if qrels == "default" else f"{prefix}{qrels}": {split: f"{judged}/{split}-*"},
    }
    card(folder, configs)


def beir(root: Path, name: str, split: str = "test") -> None:
    """BEIR's own repositories: packed jsonl, judgements in a repository beside."""
    jsonl(root / "BeIR" / name / "corpus.jsonl.gz", docs(_id="id", title="", text="text"))
    jsonl(root / "BeIR" / name / "queries.jsonl.gz", queries(_id="id", title="", text="text"))
    lines = "".join(f"{query}\t{doc}\t1\n" for query, doc in PAIRS)
    header = "query-id\tcorpus-id\tscore\n"
    text(root / "BeIR" / f"{name}-qrels" / f"{split}.tsv", header + lines)


def nano(root: Path, hub: str) -> None:
    """NanoBEIR: three configurations with the split train, no grades."""
    folder = root / "zeta-alpha-ai" / f"Nano{hub}"
    parquet(folder / "corpus/train-00000-of-00001.parquet", docs(_id="id", text="text"))
    parquet(folder / "queries/train-00000-of-00001.parquet", queries(_id="id", text="text"))
    rows = pairs(query__id="query", corpus__id="doc")
    parquet(folder / "qrels/train-00000-of-00001.parquet", rows)


def mldr(root: Path, lang: str) -> None:
    """MLDR: packed jsonl, official judgements in four columns."""
    folder = root / "Shitao/MLDR"
    jsonl(folder / f"mldr-v1.0-{lang}/corpus.jsonl.gz", docs(docid="id", text="text"))
    rows = queries(query_id="id", query="text", positive_passages=[], negative_passages=[])
    jsonl(folder / f"mldr-v1.0-{lang}/test.jsonl.gz", rows)
    lines = "".join(f"{query} 0 {doc} 1\n" for query, doc in PAIRS)
    text(folder / f"qrels/qrels.mldr-v1.0-{lang}-test.tsv", lines)


def miracl(root: Path, lang: str) -> None:
    """MIRACL: the corpus in several packed files, topics and judgements in another repository."""
    rows = docs(docid="id", title="", text="text")
    corpus = root / "miracl/miracl-corpus" / f"miracl-corpus-v1.0-{lang}"
    jsonl(corpus / "docs-0.jsonl.gz", rows[:4])
    jsonl(corpus / "docs-1.jsonl.gz", rows[4:])
    folder = root / "miracl/miracl" / f"miracl-v1.0-{lang}"
    lines = "".join(f"{name}\t{words}\n" for name, words in QUERIES)
    text(folder / f"topics/topics.miracl-v1.0-{lang}-dev.tsv", lines)
    lines = "".join(f"{query}\tQ0\t{doc}\t1\n" for query, doc in PAIRS)
    text(folder / f"qrels/qrels.miracl-v1.0-{lang}-dev.tsv", lines)


def longembed(root: Path, task: str, lengths: tuple[int, ...] = ()) -> None:
    """LongEmbed: a configuration a task, a split a table; passkey and needle carry the length."""
    tables = {
        "corpus": docs(doc_id="id", text="text"),
        "queries": queries(qid="id", text="text"),
        "qrels": pairs(qid="query", doc_id="doc"),
    }
    for split, rows in tables.items():
        if lengths:
            rows = [
                {k: f"{n}-{v}" if k in ("doc_id", "qid") else v for k, v in row.items()}
                | {"context_length": n}
                for n in lengths
                for row in rows
            ]
        jsonl(root / "dwzhu/LongEmbed" / task / f"{split}.jsonl", rows)


def loco(root: Path, datasets: list[str]) -> None:
    """LoCoV1: two big tables for all tasks; one Qasper paper is empty."""
    documents, asked = [], []
    for name in datasets:
        documents += [
            row | {"pid": f"{name}_{row['pid']}"}
            for row in docs(dataset=name, pid="id", passage="text")
        ]
        asked += [
            row | {"qid": f"{name}_{row['qid']}", "answer_pids": [f"{name}_{doc}"]}
            for row, (_, doc) in zip(
                queries(dataset=name, qid="id", query="text"), PAIRS, strict=True
            )
        ]
        if name.startswith("qasper"):
            documents.append({"dataset": name, "pid": f"{name}_void", "passage": ""})
            asked.append(
                {
                    "dataset": name,
                    "qid": f"{name}_lost",
                    "query": "x",
                    "answer_pids": [f"{name}_void"],
                }
            )
    for table, rows in (("Documents", documents), ("Queries", asked)):
        folder = root / "hazyresearch" / f"LoCoV1-{table}"
        parquet(folder / "data/test-00000-of-00001.parquet", rows)


def conteb(root: Path, hub: str, split: str, column: str) -> None:
    """ConTEB: chunks of documents, queries without ids; the gold chunk is one or a list."""
    rows = [
        {"chunk_id": f"d{number}_{place}", "chunk": sentence(number * 3 + place, 8)}
        for number in (1, 0, 2)
        for place in range(3)
    ]
    parquet(root / "illuin-conteb" / hub / f"documents/{split}-00000-of-00001.parquet", rows)
    asked: Rows = [
        {"query": sentence(number * 4, 8), column: _gold(number, column)} for number in range(3)
    ]
    parquet(root / "illuin-conteb" / hub / f"queries/{split}-00000-of-00001.parquet", asked)


def _gold(number: int, column: str) -> str | list[str]:
    chunk = f"d{number}_{number}"
    return [chunk] if column == "chunk_ids" else chunk


LANGUAGES = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh".split()
LONG = "ar de en es fr hi it ja ko pt ru th zh".split()
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PROGRAMMING = "go java javascript php python ruby".split()
FORUMS = (
    "english gaming gis mathematica physics programmers stats tex unix webmasters wordpress".split()
)
NANO = {
    "ArguAna", "ClimateFEVER", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus",
    "NQ", "QuoraRetrieval", "SCIDOCS", "SciFact", "Touche2020",
}  # fmt: skip
LOCO = (
    "summ_screen_fd gov_report qmsum qasper_title qasper_abstract multifieldqa 2wikimqa "
    "passage_retrieval legal_case_reports courtlistener_HTML courtlistener_Plain_Text stackoverflow"
).split()
BEIR = (
    "trec-covid nfcorpus nq hotpotqa fiqa arguana webis-touche2020 quora dbpedia-entity scidocs "
    "fever climate-fever scifact"
).split()
CONTEB = {
    "mldr-conteb-eval": ("test", "chunk_id"), "squad-conteb-eval": ("validation", "chunk_id"),
    "narrative-qa": ("test", "chunk_id"), "covid-qa": ("train", "chunk_id"),
    "esg-reports": ("test", "chunk_ids"), "football": ("train", "chunk_id"),
    "geography": ("train", "chunk_id"), "insurance": ("train", "chunk_ids"),
}  # fmt: skip
MTEB = (
    "arguana cqadupstack-gaming cqadupstack-unix ClimateFEVER_test_top_250_only_w_correct-v2 "
    "FEVER_test_top_250_only_w_correct-v2 fiqa HotpotQA_test_top_250_only_w_correct-v2 scidocs "
    "trec-covid webis-touche2020-v3"
).split()
COIR = (
    "apps codefeedback-mt codefeedback-st codetrans-contest codetrans-dl cosqa synthetic-text2sql"
).split()


def build(root: Path) -> None:
    """Every repository that a known collection needs."""
    each: list[tuple[Callable[..., None], Any]] = [
        (mldr, LONG), (miracl, LANGUAGES), (nano, sorted(NANO)), (beir, BEIR),
        (longembed, ["narrativeqa", "qmsum", "2wikimqa", "summ_screen_fd"]),
    ]  # fmt: skip
    for write, names in each:
        for name in names:
            write(root, name)
    for task in ("passkey", "needle"):
        longembed(root, task, LENGTHS)
    loco(root, LOCO)
    for hub, (split, column) in CONTEB.items():
        conteb(root, hub, split, column)
    beir(root, "msmarco", "validation")
    _tasks(root)


def _tasks(root: Path) -> None:
    for name in MTEB + [f"cqadupstack-{forum}" for forum in FORUMS]:
        mteb(root / "mteb" / name)
    for name in ("CQADupstackAndroidRetrieval", "StackOverflowQA"):
        mteb(root / "mteb" / name)
    for name in COIR:
        mteb(root / "CoIR-Retrieval" / name)
    for lang in PROGRAMMING:
        for name in ("CodeSearchNet", "CodeSearchNet-ccr"):
            mteb(root / "CoIR-Retrieval" / name, f"{lang}-", qrels="qrels")
    for lang in LANGUAGES:
        mteb(root / "mteb/MIRACLRetrievalHardNegatives", f"{lang}-", "dev", "qrels")
    mteb(root / "mteb/msmarco", split="dev")
    for year in (2019, 2020):
        mteb(root / f"whybe-choi/trec-dl-{year}")
