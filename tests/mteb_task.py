"""A collection as a retrieval task of mteb, which is not among the requirements of the tests.

Not a test module: importing it imports mteb.
"""

from collections import defaultdict
from typing import Any

from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata

from lmkcli.data.collection import Collection

METADATA: dict[str, Any] = {
    "type": "Retrieval", "name": "LocalRetrieval", "main_score": "ndcg_at_10",
    "description": "A collection on this machine.", "reference": None,
    "dataset": {"path": "local", "revision": "1"}, "category": "t2t", "modalities": ["text"],
    "eval_splits": ["test"], "eval_langs": ["eng-Latn"], "date": ("2026-01-01", "2026-01-01"),
    "domains": [], "task_subtypes": [], "license": "cc-by-4.0", "annotations_creators": "derived",
    "dialect": [], "sample_creation": "found", "bibtex_citation": "",
}  # fmt: skip


def local_task(collection: Collection) -> AbsTaskRetrieval:
    """The documents and judged queries of a collection, ready to be evaluated."""
    judged: dict[str, dict[str, int]] = defaultdict(dict)
    for qrel in collection.qrels():
        judged[qrel.query_id][qrel.doc_id] = qrel.grade
    split = RetrievalSplitData(
        corpus=Dataset.from_list([doc._asdict() for doc in collection.docs()]),
        queries=Dataset.from_list([query._asdict() for query in collection.judged_queries()]),
        relevant_docs=dict(judged),
        top_ranked=None,
    )

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(**METADATA)

        def load_data(self, num_proc: int | None = None, **settings: Any) -> None:
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return LocalRetrieval()
