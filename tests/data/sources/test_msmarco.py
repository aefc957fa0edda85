"""MS MARCO and TREC Deep Learning from ir_datasets' own cache, in a process without a network."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.data import hub_layouts, known_collections
from tests import mirrors
from tests.forkserver import ForkServer

NAMES = known_collections.members("msmarco") + known_collections.members("trec-dl")


def zipped(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A cache of ir_datasets as after its downloads; query qN has the words of dN."""
    passages, documents = tmp_path / "irds/msmarco-passage", tmp_path / "irds/msmarco-document"
    mirrors.text(passages / "irds_version.txt", "v2")
    mirrors.text(passages / "collection.tsv", "".join(f"{d}\t{t}\n" for d, t in mirrors.DOCS))
    trec = "<DOC>\n<DOCNO>{0}</DOCNO>\n<TEXT>\nhttp://x/{0}\nTitle\n{1}\n</TEXT>\n</DOC>\n"
    zipped(documents / "collection.tsv.gz", "".join(trec.format(*doc) for doc in mirrors.DOCS))
    queries = "".join(f"{query}\t{text}\n" for query, text in mirrors.QUERIES)
    titled = "".join(f"{query}\tTitle {text}\n" for query, text in mirrors.QUERIES)
    qrels = "".join(f"{query} 0 {doc} 2\n" for query, doc in mirrors.PAIRS)
    mirrors.text(passages / "dev/small/queries.tsv", queries)
    mirrors.text(passages / "dev/small/qrels", qrels)
    mirrors.text(passages / "trec-dl-2019/queries.tsv", queries)
    zipped(passages / "trec-dl-2020/queries.tsv.gz", queries)
    zipped(documents / "dev/queries.tsv.gz", titled)
    zipped(documents / "dev/qrels.gz", qrels)
    for year in (2019, 2020):
        mirrors.text(passages / f"trec-dl-{year}/qrels", qrels)
        mirrors.text(documents / f"trec-dl-{year}/qrels", qrels)
        zipped(documents / f"trec-dl-{year}/queries.tsv.gz", titled)
    return tmp_path / "irds"


def test_each_is_encoded_searched_and_scored_offline(
    forkserver: ForkServer, home: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    lines: list[list[object]] = []
    for number, name in enumerate(NAMES):
        vectors, run = tmp_path / f"v{number}", tmp_path / f"{number}.trec"
        lines.append(["encode", name, "-m", tiny_model("bert"), "-o", vectors])
        lines.append(["search", vectors, name, "-o", run])
        lines.append(["eval", run, "-m", "nDCG@10", "-m", "RR@10", "-f", "json"])
    words = json.dumps([[str(word) for word in line] for line in lines])
    env = {key: value for key, value in os.environ.items() if key != hub_layouts.MIRROR}
    done = forkserver.run(
        tmp_path / "attempts",
        words,
        function="tests.guarded:main",
        env={**env, "IR_DATASETS_HOME": str(home)},
    )
    assert json.loads(done.stderr.strip().splitlines()[-1]) == [0] * len(lines), done.stderr
    assert not (tmp_path / "attempts").exists()
    assert done.stdout.count("1.0") == 2 * len(NAMES)
    for number in range(len(NAMES)):
        assert len((tmp_path / f"{number}.trec").read_text().splitlines()) == 18
