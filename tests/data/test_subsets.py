"""Subsets of the documents of a collection: nested, with their judgements, the same in all shards."""

from pathlib import Path

import pytest

from lmkcli.data.collection import WHOLE, Collection, PartOfCollection, Shard, open_collection
from lmkcli.errors import UsageError
from tests import tiny
from tests.conftest import Lmk


def ids(spelling: str, shard: Shard = WHOLE) -> list[str]:
    return [doc.id for doc in open_collection(spelling).docs(shard)]


def test_a_smaller_subset_is_a_part_of_a_larger_one(beir: Path) -> None:
    whole = ids(str(beir))
    found = [ids(f"{beir},subset={size}") for size in (3, 6, 9)]
    assert [len(each) for each in found] == [3, 6, 9]
    assert set(found[0]) < set(found[1]) < set(found[2]) < set(whole)
    assert [name for name in whole if name in found[2]] == found[2]  # in source order
    assert ids(f"{beir},subset={len(whole) + 5}") == whole
    parts = [ids(f"{beir},subset=9", Shard(n, 3)) for n in range(3)]
    assert [name for part in parts for name in part] == found[2]
    with pytest.raises(UsageError, match="subset=0"):
        open_collection(f"{beir},subset=0")


def test_only_judgements_of_the_subset_count(lmk: Lmk, tmp_path: Path, beir: Path) -> None:
    """A query whose answer is left out is not judged, and the run is on the subset."""
    subset = open_collection(f"{beir},subset=5")
    kept = set(ids(f"{beir},subset=5"))
    judged = {qrel.query_id for qrel in subset.qrels()}
    assert {qrel.doc_id for qrel in subset.qrels()} <= kept
    assert judged == {q.query_id for q in open_collection(str(beir)).qrels() if q.doc_id in kept}
    assert judged
    lmk("index", f"{beir},subset=5", "--kind", "bm25", "-o", tmp_path / "words")
    lmk("search", tmp_path / "words", f"{beir},subset=5", "-o", tmp_path / "run.trec")
    scored = lmk("eval", tmp_path / "run.trec", "-m", "R@5", "--per-query", "--json").json
    assert {row["query"] for row in scored} == judged


def test_the_chunks_of_a_document_stay_judged(tmp_path: Path) -> None:
    tiny.write_jsonl(
        tmp_path / "corpus.jsonl", [{"_id": f"d{n}", "chunks": ["a", "b"]} for n in range(4)]
    )
    tiny.write_jsonl(tmp_path / "queries.jsonl", [{"_id": "q", "text": "a"}])
    (tmp_path / "qrels").mkdir()
    rows = "".join(f"q\td{n}#1\t1\n" for n in range(4))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    kept = set(ids(f"{tmp_path},subset=2"))
    found = {qrel.doc_id for qrel in open_collection(f"{tmp_path},subset=2").qrels()}
    assert found == {f"{name}#1" for name in kept}


def test_a_part_of_a_collection_passes_on_every_fact_of_its_whole() -> None:
    facts = {name for name, value in vars(Collection).items() if callable(value)}
    own = {"docs", "records", "judged_queries"}  # follow from its documents and queries
    public = {name for name in facts if not name.startswith("_")}
    assert public - own <= set(vars(PartOfCollection))
