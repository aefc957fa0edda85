"""Hit@k of the neighbouring chunks of a landmark, and of the landmark after the answer to a query."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.collection import open_collection
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError
from lmkcli.plugins.analysis import locality
from lmkcli.plugins.analysis.documents import long_enough
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings


def test_ranks_of_the_neighbouring_chunks() -> None:
    similarity = np.array(
        [
            [0.9, 0.5, 0.1],  # nearest to its left, then its right
            [0.8, 0.1, 0.7],  # its right is second, its left last
            [0.0, 0.0, 0.0],  # has no right
        ]
    )
    found = locality._neighbour_ranks(similarity)
    assert found["left"].tolist() == [0, 2]
    assert found["right"].tolist() == [1, 1]
    assert found["either"].tolist() == [0, 1]


def test_hits_for_k_below_the_number_of_chunks() -> None:
    ranks = {"left": [np.array([0, 1]), np.array([4])], "answer": [np.array([0])]}
    found = locality._hits(ranks, [3, 6])
    assert found.depths == [1, 2, 5]
    assert found.hits["left"] == pytest.approx([1 / 3, 2 / 3, 1])
    assert found.hits["chance"] == pytest.approx(
        [(2 / 3 + 5 / 6) / 7, (2 * 2 / 3 + 5 * 2 / 6) / 7, (2 + 5 * 5 / 6) / 7]
    )
    assert (found.documents, found.landmarks, found.queries) == (2, 3, 1)


def test_answers_are_from_judged_chunks(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "a\\fb\\fc"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "b"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td#1\t1\n")
    collection = open_collection(str(tmp_path))
    (answer,) = locality.answers(collection, "given")["d"]
    assert (answer.query.id, answer.chunk) == ("q", 1)
    assert locality.answers(collection, "64") == {}


def test_landmarks_of_a_model(tiny_model: Callable[[str], Path], beir: Path) -> None:
    """The documents are cut: chunks without a landmark are not compared."""
    options = RecipeOptions(
        model=str(tiny_model("bert")), pool="lmk", gran="4", unit="chunk", max_length=32
    )
    encoders = locality.open_encoders(resolve(options), EncodeSettings(dtype="fp32"))
    collection = open_collection(str(beir))
    rows = list(long_enough(collection, encoders.together.tokenizer, 4, 20, Report()))
    assert len(rows) == 4
    found = locality.locality(encoders, rows, {})
    assert found.documents == 4
    assert set(found.hits) == {"left", "right", "either", "chance"}
    for left, either in zip(found.hits["left"], found.hits["either"], strict=True):
        assert 0 <= left <= either <= 1
    with pytest.raises(DataError, match="three chunks"):
        locality.locality(encoders, rows[:0], {})


def test_an_error_if_no_document_is_long_enough(
    tiny_model: Callable[[str], Path], beir: Path
) -> None:
    options = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="4", unit="chunk")
    encoders = locality.open_encoders(resolve(options), EncodeSettings(dtype="fp32"))
    with pytest.raises(DataError, match="lower --min-tokens"):
        list(long_enough(open_collection(str(beir)), encoders.query.tokenizer, 1, 9999, Report()))
