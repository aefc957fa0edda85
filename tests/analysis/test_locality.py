"""Hit@k of the chunks beside a landmark, and of the landmark that a query's answer belongs to."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli.analysis import locality
from lmkcli.analysis.documents import long_enough
from lmkcli.data.collection import open_collection
from lmkcli.encoding.resolving import resolve
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings


def test_ranks_of_what_stands_beside() -> None:
    similarity = np.array(
        [
            [0.9, 0.5, 0.1],  # nearest to its left, then its right
            [0.8, 0.1, 0.7],  # its right is second, its left last
            [0.0, 0.0, 0.0],  # has no right
        ]
    )
    found = dict(locality._beside(similarity))
    assert found["left"].tolist() == [0, 2]
    assert found["right"].tolist() == [1, 1]
    assert found["either"].tolist() == [0, 1]


def test_hits_are_counted_below_the_number_of_chunks() -> None:
    ranks = {"left": [np.array([0, 1]), np.array([4])], "answer": [np.array([0])]}
    found = locality._counted(ranks, [3, 6])
    assert found.depths == [1, 2, 5]
    assert found.hits["left"] == pytest.approx([1 / 3, 2 / 3, 1])
    assert found.hits["chance"] == pytest.approx(
        [(2 / 3 + 5 / 6) / 7, (2 * 2 / 3 + 5 * 2 / 6) / 7, (2 + 5 * 5 / 6) / 7]
    )
    assert (found.documents, found.landmarks, found.queries) == (2, 3, 1)


def test_answers_are_where_the_collection_says(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "a\\fb\\fc"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "b"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td#1\t1\n")
    collection = open_collection(str(tmp_path))
    (answer,) = locality.answers(collection, "given")["d"]
    assert (answer.query.id, answer.chunk) == ("q", 1)
    assert locality.answers(collection, "64") == {}


def test_landmarks_of_a_model(tiny_model: Callable[[str], Path], beir: Path) -> None:
    """Cut documents: the chunks that no landmark stands for are not compared."""
    options = RecipeOptions(
        model=str(tiny_model("bert")), pool="lmk", gran="4", unit="chunk", max_length=32
    )
    pair = locality.open_pair(resolve(options), EncodeSettings(dtype="fp32"))
    collection = open_collection(str(beir))
    rows = list(long_enough(collection, pair.together.tokenizer, 4, 20, Report()))
    assert len(rows) == 4
    found = locality.locality(pair, rows, {})
    assert found.documents == 4
    assert set(found.hits) == {"left", "right", "either", "chance"}
    for left, either in zip(found.hits["left"], found.hits["either"], strict=True):
        assert 0 <= left <= either <= 1
    with pytest.raises(DataError, match="three chunks"):
        locality.locality(pair, rows[:0], {})


def test_no_document_is_long_enough(tiny_model: Callable[[str], Path], beir: Path) -> None:
    options = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="4", unit="chunk")
    tokenizer = locality.open_pair(resolve(options), EncodeSettings(dtype="fp32")).query.tokenizer
    with pytest.raises(DataError, match="lower --min-tokens"):
        list(long_enough(open_collection(str(beir)), tokenizer, 1, 9999, Report()))
