"""Breakdowns: counts of words, groups that contain each query once, scores of groups."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import Collection, Qrel, open_collection
from lmkcli.data.run import Run, ranked
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.breakdown import (
    Stratum,
    mean_lengths,
    score_groups,
    strata,
    token_counter,
    values_of,
    words,
)
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.evaluation.results import ScoredRun

TEXTS = {"short": "one two", "long": " ".join(["word"] * 10), "other": "x"}
QUERIES: dict[str, dict[str, object]] = {
    "q1": {"text": "who", "position": 0.25, "language": "en"},
    "q2": {"text": "what is it", "metadata": {"position": 0.75, "language": "de"}},
    "q3": {"text": "你好 world", "language": "zh"},
}
QRELS = [
    ("q1", "short", 1),
    ("q1", "long", 2),
    ("q2", "long", 1),
    ("q3", "lost", 1),
    ("q2", "other", 0),
]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    docs = [{"_id": name, "title": "", "text": text} for name, text in TEXTS.items()]
    queries = [{"_id": name, **record} for name, record in QUERIES.items()]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (tmp_path / "qrels" / "test.tsv").write_text("".join(f"{q}\t{d}\t{g}\n" for q, d, g in QRELS))
    return open_collection(str(tmp_path))


def values(by: str, collection: Collection, rel: int = 1) -> dict[str, object]:
    return dict(values_of(by, collection, list(collection.qrels()), rel))


def test_values_of_a_query(collection: Collection) -> None:
    assert values("length", collection) == {
        "q1": 6.0,
        "q2": 10.0,
    }  # q3's document is not in the collection
    assert values("length", collection, rel=2) == {"q1": 10.0}
    chunk = [Qrel("q1", "long#3", 1), Qrel("q1", "short", 1), Qrel("q2", "#", 1)]
    assert values_of("length", collection, chunk, 1) == {"q1": 6.0}
    assert values("query-length", collection) == {"q1": 1.0, "q2": 3.0, "q3": 3.0}
    assert values("position", collection) == {"q1": 0.25, "q2": 0.75}
    assert values("language", collection) == {"q1": "en", "q2": "de", "q3": "zh"}
    collection.query_metadata = lambda name: {"q1": 0.0}  # type: ignore[method-assign]
    assert values("position", collection) == {"q1": 0.0}
    with pytest.raises(DataError, match="its qrels"):
        values_of("length", collection, [Qrel("q3", "lost", 1)], 1)


def test_mean_lengths_are_whole_numbers() -> None:
    qrels = [Qrel("q1", "a", 1), Qrel("q1", "b", 1), Qrel("q2", "a", 1), Qrel("q3", "c", 1)]
    means = mean_lengths(qrels, 1, {"a": 8, "b": 9, "c": 40})
    assert means == {"q1": 8, "q2": 8, "q3": 40}


def test_an_unknown_field_is_refused(collection: Collection) -> None:
    with pytest.raises(DataError, match="have no colour"):
        values("colour", collection)


def test_the_language_of_a_known_collection_is_in_its_name(collection: Collection) -> None:
    collection.query_metadata = lambda name: {}  # type: ignore[method-assign]
    collection.name = "miracl/sw/dev"
    assert set(values("language", collection).values()) == {"sw"}
    for name in ("beir/nq", "my/sw/dev"):
        collection.name = name
        with pytest.raises(DataError, match="have no language"):
            values("language", collection)


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), (" a  b\n", 2), ("don't stop-gap", 2), ("日本の car", 4)]
)
def test_words(text: str, count: int) -> None:
    assert words(text) == count


def keyed(numbers: list[float]) -> dict[tuple[str, str], str | float]:
    return {("c", str(n)): value for n, value in enumerate(numbers)}


@pytest.mark.parametrize("edges", [[3.0, 3.0], [5.0, 3.0], [math.nan, 3.0], [10.0], [math.nan]])
def test_edges_that_separate_nothing(edges: list[float]) -> None:
    with pytest.raises(UsageError, match="--bins"):
        strata(keyed([0, 1, 2]), edges)


def test_bins_are_half_open_and_the_last_has_no_upper_limit() -> None:
    found = strata(keyed([0, 511, 512, 2048, 90000, -1]), [0, 512, 2048, 8192])
    assert [(each.name, len(each.queries)) for each in found] == [
        ("[0, 512)", 2),
        ("[512, 2048)", 1),
        ("[2048, 8192)", 1),
        ("[8192, ∞)", 1),
    ]


def test_empty_bins_are_left_out() -> None:
    assert [each.name for each in strata(keyed([5, 700]), [0, 10, 20, 100])] == [
        "[0, 10)",
        "[100, ∞)",
    ]


def test_quarters_are_the_default_and_few_numbers_are_groups() -> None:
    quarters = strata(keyed([float(n) for n in range(1, 101)]))
    assert [len(each.queries) for each in quarters] == [25, 25, 25, 25]
    assert [each.name for each in quarters] == ["[1, 26)", "[26, 51)", "[51, 76)", "[76, 100]"]
    few = strata(keyed([0.5, 0.25, 0.5, 1000000]))
    assert [(each.name, len(each.queries)) for each in few] == [
        ("0.25", 1),
        ("0.5", 2),
        ("1000000", 1),
    ]


def test_texts_that_are_numbers_are_numbers_and_names_are_sorted() -> None:
    assert [each.name for each in strata(keyed(["10", "2"]))] == ["2", "10"]  # type: ignore[list-item]
    assert [each.name for each in strata(keyed(["en", "de", "en"]))] == ["de", "en"]  # type: ignore[list-item]


def test_invalid_edges() -> None:
    with pytest.raises(UsageError, match=r"are for numbers.* \('en'"):
        strata(keyed(["en"]), [0, 1])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="must rise"):
        strata(keyed([1.0]), [0, 0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_without_edges_every_query_is_in_one_group(numbers: list[float]) -> None:
    found = strata(keyed(numbers))
    members = [key for each in found for key in each.queries]
    assert sorted(members) == sorted(keyed(numbers))
    assert len({each.name for each in found}) <= 10


def test_scores_of_groups_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(1)
    qrels = [Qrel(f"q{n}", "d", 1) for n in range(40)]
    orders = {f"q{n}": ranked(["d", "e", "f"], rng.random(3)) for n in range(39)}  # q39 is missing
    names = ["RR@3", "NumRet"]
    measures = dict(zip(names, parse_measures(names), strict=True))
    scores = evaluate(Run(orders), qrels, list(measures.values()))
    each = ScoredRun(Path("r"), "s", "c", scores, measures)
    groups = strata({("c", f"q{n}"): float(n) for n in range(40)})
    rr, count = (score_groups([each], groups, name).rows["s"] for name in names)
    sizes = [len(group.queries) for group in groups]
    assert sum(
        s * x for s, x in zip(sizes, rr, strict=True) if x is not None
    ) / 40 == pytest.approx(scores.aggregated["RR@3"])
    assert count == [30.0, 30.0, 30.0, 27.0]  # a sum: the missing query adds 0


def test_a_system_without_the_collection_of_a_group_has_no_value_there() -> None:
    measures = {"P@1": parse_measures(["P@1"])[0]}
    scores = evaluate(Run(), [Qrel("q", "d", 1)], list(measures.values()))
    runs = [
        ScoredRun(Path("r"), "a", "c", scores, measures),
        ScoredRun(Path("r"), "b", "e", scores, measures),
    ]
    made = score_groups(
        runs, [Stratum("x", [("c", "q")]), Stratum("y", [("c", "q"), ("e", "q")])], "P@1"
    )
    assert made.rows == {"a": [0.0, None], "b": [None, None]}


def test_lengths_in_tokens_of_a_model(
    collection: Collection, tiny_model: Callable[[str], Path]
) -> None:
    """Groups of queries by the tokens of their documents (M2-BERT, Table 24)."""
    model = str(tiny_model("bert"))
    counts = {name: token_counter(model)(text) for name, text in TEXTS.items()}
    assert counts["short"] < counts["long"]
    found = values_of(f"tokens:{model}", collection, [Qrel(*each) for each in QRELS], 1)
    assert found == {"q1": (counts["short"] + counts["long"]) / 2, "q2": counts["long"]}
    with pytest.raises(UsageError, match="name the model of the tokenizer"):
        values_of("tokens", collection, [Qrel(*each) for each in QRELS], 1)
