"""Tasks of mteb that lie on this machine: a collection as a retrieval task, and tiny ones of other types;
and lmk as an encoder of mteb.

Not a test module: importing it imports mteb.
"""

from collections import defaultdict
from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks import (
    AbsTask,
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskMultilabelClassification,
    AbsTaskPairClassification,
    AbsTaskSTS,
    AbsTaskSummarization,
)
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta
from mteb.types import PromptType

from lmkcli.data.collection import Collection
from lmkcli.encoding.text_encoder import TextEncoder

METADATA: dict[str, Any] = {
    "type": "Retrieval", "name": "LocalRetrieval", "main_score": "ndcg_at_10",
    "description": "A collection on this machine.", "reference": None,
    "dataset": {"path": "local", "revision": "1"}, "category": "t2t", "modalities": ["text"],
    "eval_splits": ["test"], "eval_langs": ["eng-Latn"], "date": ("2026-01-01", "2026-01-01"),
    "domains": [], "task_subtypes": [], "license": "cc-by-4.0", "annotations_creators": "derived",
    "dialect": [], "sample_creation": "found", "bibtex_citation": "",
}  # fmt: skip


class ByLmk(AbsEncoder):
    """The encoder interface of mteb, with the vectors of lmk."""

    mteb_model_meta = ModelMeta.create_empty({"name": "local/lmk"})

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def encode(self, inputs: Any, *, prompt_type: PromptType | None = None, **rest: Any) -> Any:
        texts = [text for batch in inputs for text in batch["text"]]
        if prompt_type == PromptType.query:
            return self.encoder.encode_queries(texts).vectors
        return self.encoder.encode_documents(texts).vectors


def local_task(
    collection: Collection, candidates: dict[str, list[str]] | None = None
) -> AbsTaskRetrieval:
    """The documents and judged queries of a collection, ready to be evaluated.

    With `candidates` it is a reranking task: for each query the ids of the documents that are ranked.
    """
    judged: dict[str, dict[str, int]] = defaultdict(dict)
    for qrel in collection.qrels():
        judged[qrel.query_id][qrel.doc_id] = qrel.grade
    corpus = [{"id": doc.id, "text": doc.text, "title": doc.title} for doc in collection.docs()]
    split = RetrievalSplitData(
        corpus=Dataset.from_list(corpus),
        queries=Dataset.from_list([query._asdict() for query in collection.judged_queries()]),
        relevant_docs=dict(judged),
        top_ranked=candidates,
    )
    kind = {"type": "Reranking"} if candidates else {}

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(**METADATA | kind)

        def load_data(self, num_proc: int | None = None, **settings: Any) -> None:
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return LocalRetrieval()


def _named(kind: str, measure: str) -> TaskMetadata:
    said = {"type": kind, "name": f"Local{kind}", "main_score": measure, "category": "t2t"}
    return TaskMetadata(**METADATA | said)


class _Local(AbsTask):
    """Its rows are given; there is nothing to load."""

    def __init__(self, rows: Dataset | DatasetDict) -> None:
        super().__init__()
        self._rows = rows

    def load_data(self, num_proc: int | None = None, **settings: Any) -> None:
        rows = self._rows
        whole = rows if isinstance(rows, DatasetDict) else DatasetDict({"test": rows})
        self.dataset = {"default": whole}
        self.data_loaded = True


class LocalClassification(_Local, AbsTaskClassification):
    metadata = _named("Classification", "accuracy")


class LocalMultilabel(_Local, AbsTaskMultilabelClassification):
    metadata = _named("MultilabelClassification", "f1")


class LocalClustering(_Local, AbsTaskClustering):
    metadata = _named("Clustering", "v_measure")
    max_fraction_of_documents_to_embed = None


class LocalPairs(_Local, AbsTaskPairClassification):
    metadata = _named("PairClassification", "max_ap")


class LocalSTS(_Local, AbsTaskSTS):
    metadata = _named("STS", "cosine_spearman")


class LocalSummaries(_Local, AbsTaskSummarization):
    metadata = _named("Summarization", "cosine_spearman")
    min_score, max_score = 0, 5


def labelled_task(kind: str, texts: list[str]) -> AbsTask:
    """A tiny task of a type, made of distinct texts; its labels follow from their order alone."""
    half = len(texts) // 2
    labels = [number % 3 for number in range(len(texts))]
    if kind in ("Classification", "MultilabelClassification"):
        many = [sorted({label, number % 2}) for number, label in enumerate(labels)]
        rows = {"text": texts, "label": many if kind.startswith("Multi") else labels}
        whole = Dataset.from_dict(rows)
        split = DatasetDict(
            train=whole.select(range(half)), test=whole.select(range(half, len(texts)))
        )
        return (LocalMultilabel if kind.startswith("Multi") else LocalClassification)(split)
    if kind == "Clustering":
        return LocalClustering(Dataset.from_dict({"sentences": texts, "labels": labels}))
    pairs = {"sentence1": texts[:half], "sentence2": texts[half : 2 * half]}
    if kind == "PairClassification":
        return LocalPairs(Dataset.from_dict({**pairs, "labels": [n % 2 for n in range(half)]}))
    if kind == "STS":
        return LocalSTS(Dataset.from_dict({**pairs, "score": [n * 7 % 6 for n in range(half)]}))
    rows = [
        {"text": texts[n], "human_summaries": texts[n + 1 : n + 3],
         "machine_summaries": texts[n + 3 : n + 8], "relevance": [1, 4, 2, 5, 3]}
        for n in range(0, len(texts) - 8, 8)
    ]  # fmt: skip
    return LocalSummaries(Dataset.from_list(rows))
