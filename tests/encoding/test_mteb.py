"""mteb runs every type of task on an exported folder, with the scores of the vectors of lmk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.data.collection import open_collection
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.sentence_folder import export_model
from lmkcli.encoding.text_encoder import load_encoder
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from tests import tiny

Models = Callable[[str], Path]
TEXTS = [tiny.sentence(number, 4 + number % 17) + f" {number}" for number in range(72)]
TYPES = {
    "Classification": {"accuracy", "f1"},
    "MultilabelClassification": {"accuracy", "f1", "lrap"},
    "Clustering": {"v_measure"},
    "PairClassification": {"max_ap", "cosine_ap"},
    "STS": {"cosine_spearman", "cosine_pearson"},
    "Summarization": {"cosine_spearman"},
}


@pytest.fixture(scope="module")
def both(tiny_model: Models, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A loaded exported folder, and lmk with the same recipe."""
    pytest.importorskip("mteb", minversion="2.20")
    sentence_transformers = pytest.importorskip("sentence_transformers", minversion="5.4")
    from tests.mteb_task import ByLmk

    options = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="8", max_length=64)
    folder = tmp_path_factory.mktemp("exported") / "st"
    export_model(resolve(options), folder)
    model = sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=True
    )
    settings = EncodeSettings(dtype="fp32", device="cpu")
    return model, ByLmk(load_encoder(options.model, options, settings))


def scores_of(model: Any, task: Any) -> dict[str, Any]:
    import mteb

    done = mteb.evaluate(
        model, task, cache=None, show_progress_bar=False, encode_kwargs={"batch_size": 8}
    )
    [scores] = done.task_results[0].scores["test"]
    return dict(scores)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_task(both: tuple[Any, Any], kind: str) -> None:
    from tests.mteb_task import labelled_task

    folder, mine = (scores_of(model, labelled_task(kind, TEXTS)) for model in both)
    for name in TYPES[kind]:
        assert np.isfinite(folder[name])
        assert folder[name] == pytest.approx(mine[name], abs=1e-4)
    others = scores_of(both[0], labelled_task(kind, TEXTS[::-1]))
    assert any(others[name] != folder[name] for name in TYPES[kind])  # scores depend on the texts


def test_retrieval_and_reranking(both: tuple[Any, Any], beir: Path) -> None:
    from tests.mteb_task import local_task

    collection = open_collection(str(beir))
    ids = [doc.id for doc in collection.docs()]
    judged = {qrel.query_id: qrel.doc_id for qrel in collection.qrels()}
    few = {name: [doc, *ids[:9]] for name, doc in judged.items() if doc not in ids[:9]}
    few |= {name: ids[:9] for name in judged if name not in few}
    for candidates in (None, few):
        folder, mine = (scores_of(model, local_task(collection, candidates)) for model in both)
        assert 0 < folder["ndcg_at_10"] < 1
        assert folder["ndcg_at_10"] == pytest.approx(mine["ndcg_at_10"], abs=1e-4)
