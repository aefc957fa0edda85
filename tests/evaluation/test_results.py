"""Tables of systems x collections: names of rows, columns and means."""

from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.data.collection import Qrel
from lmkcli.data.known_collections import members
from lmkcli.data.run import Run, ranked
from lmkcli.errors import UsageError
from lmkcli.evaluation.measures import evaluate, parse_measures
from lmkcli.evaluation.results import (
    ScoredRun,
    ScoreTable,
    best_values,
    columns_of,
    geometric,
    headings,
    score_table,
    system_names,
)

CQADUPSTACK = members("beir/cqadupstack")


def result(system: str, collection: str, hits: int) -> ScoredRun:
    """A result whose P@1 is `hits` quarters."""
    one = np.ones(1, np.float32)
    rankings = {f"q{n}": ranked(["d" if n < hits else "x"], one) for n in range(4)}
    (measure,) = parse_measures(["P@1"])
    scores = evaluate(Run(rankings), [Qrel(f"q{n}", "d", 1) for n in range(4)], [measure])
    return ScoredRun(Path(f"{system}.trec"), system, collection, scores, {"P@1": measure})


def table(cells: dict[tuple[str, str], int]) -> ScoreTable:
    return score_table([result(*key, hits) for key, hits in cells.items()], "P@1")


def test_means_over_collections() -> None:
    made = table({("a", "x/one"): 4, ("a", "x/two"): 1, ("b", "x/one"): 2, ("b", "x/two"): 2})
    assert made.columns == ["one", "two", "mean", "geometric mean"]
    assert made.rows == {
        "a": [1.0, 0.25, 0.625, pytest.approx(0.5)],
        "b": [0.5, 0.5, 0.5, pytest.approx(0.5)],
    }


def test_a_system_without_a_run_on_a_collection_has_no_mean() -> None:
    made = table({("a", "one"): 4, ("a", "two"): 1, ("b", "two"): 2})
    assert made.rows["b"] == [None, 0.5, None, None]


def test_the_twelve_of_cqadupstack_are_averaged_first() -> None:
    assert len(CQADUPSTACK) == 12
    scores = [0, 4, 2] * 4  # their mean is 1/2
    cells = {("a", name): score for name, score in zip(CQADUPSTACK, scores, strict=True)}
    made = table({("a", "beir/scifact/test"): 4} | cells)
    assert made.columns == ["scifact/test", "cqadupstack", "mean", "geometric mean"]
    assert made.rows["a"] == pytest.approx([1, 1 / 2, 3 / 4, (1 / 2) ** 0.5])
    alone = table({key: score for key, score in cells.items() if key[1] != CQADUPSTACK[0]})
    assert len(alone.columns) == 11 + 2
    short = table(
        {
            ("a", "beir/scifact/test"): 4,
            **dict(list(cells.items())[:3]),
            ("b", "beir/scifact/test"): 1,
        }
    )
    assert short.rows["b"][1] is None


def test_folders_of_cqadupstack_are_known_by_their_name() -> None:
    columns = columns_of(["/x/scifact", "/x/cqadupstack/unix", "/x/cqadupstack-tex", "/x/nq"])
    assert [column.name for column in columns] == ["scifact", "cqadupstack", "nq"]
    assert columns[1].collections == ("/x/cqadupstack/unix", "/x/cqadupstack-tex")


def test_each_known_benchmark_has_its_own_means() -> None:
    tracks = ["msmarco-passage/trec-dl-2019/judged", "msmarco-passage/trec-dl-2020/judged"]
    beir = ["beir/scifact/test", "beir/arguana"]
    made = table(
        {("a", name): hits for name, hits in zip(tracks + beir, (1, 3, 2, 4), strict=True)}
    )
    assert made.columns[4:] == [
        "trec-dl mean",
        "trec-dl geometric mean",
        "beir mean",
        "beir geometric mean",
    ]
    assert made.rows["a"][4::2] == [0.5, 0.75]
    one_of_them = table({("a", name): 2 for name in [tracks[0], *beir]})
    assert one_of_them.columns[3:] == ["beir mean", "beir geometric mean"]
    with_an_unknown_one = table({("a", name): 2 for name in [*tracks, "my/own"]})
    assert with_an_unknown_one.columns[3:] == ["mean", "geometric mean"]


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=20))
def test_geometric_mean(values: list[float]) -> None:
    found = geometric(values)
    assert found is not None
    assert found == pytest.approx(geometric_mean(values))
    assert found <= sum(values) / len(values) * (1 + 1e-9)
    assert geometric([*values, 0.0]) == 0.0
    assert geometric([*values, None]) is None


PUBLISHED = {  # nDCG@10 of two systems on 14 collections of BEIR, and their means (TITE, table 1)
    "BM25": (
        ".397 .165 .302 .318 .651 .236 .633 .322 .305 .789 .149 .679 .595 .442",
        (0.427, 0.379),
    ),
    "BERT": (
        ".336 .224 .319 .369 .727 .317 .574 .303 .510 .844 .146 .603 .756 .256",
        (0.449, 0.399),
    ),
}


@pytest.mark.parametrize("system", PUBLISHED)
def test_published_means_are_reproduced(system: str) -> None:
    text, means = PUBLISHED[system]
    scores = list(map(float, text.split()))
    assert (fmean(scores), geometric(scores)) == pytest.approx(means, abs=5e-4)


def test_the_best_values_are_all_that_are_printed_like_the_highest() -> None:
    assert best_values([0.5, 0.50001, 0.4, None], "P@1") == [True, True, False, False]
    assert best_values([None, None], "P@1") == [False, False]
    assert best_values([0.5], "P@1") == [False]
    assert best_values([1.0, 2.0], "NumRet") == [False, False]


def test_headings_have_no_common_start_or_end() -> None:
    assert list(headings(["beir/nq/test", "beir/fiqa/test"]).values()) == ["nq", "fiqa"]
    mixed = ["/data/nq", "/data/fiqa", "haystack,from=/data/nq,distractors=9"]
    assert list(headings(mixed).values()) == ["nq", "fiqa", "haystack"]
    assert list(headings(["/data/nq", "beir/nq/test"]).values()) == ["nq", "beir/nq/test"]
    same = ["haystack,position=1", "haystack,position=2"]
    assert list(headings(same).values()) == same


def test_rows_are_paths_on_one_collection_and_systems_on_several() -> None:
    one = [(Path("r/a.trec"), "bm25", "x"), (Path("r/b.trec"), "bm25", "x")]
    assert system_names(one) == ["r/a.trec", "r/b.trec"]
    tags = [(Path("1.trec"), "bm25", "x"), (Path("2.trec"), "tasb", "x"), (Path("3"), "bm25", "y")]
    assert system_names(tags) == ["bm25", "tasb", "bm25"]


@pytest.mark.parametrize(
    "paths",
    [
        ["dl19.bm25.txt", "dl19.tasb.txt", "dl20.bm25.txt", "dl20.tasb.txt"],
        [
            "r/dl19/bm25.trec.gz",
            "r/dl19/tasb.trec.gz",
            "r/dl20/bm25.trec.gz",
            "r/dl20/tasb.trec.gz",
        ],
        ["bm25/dl19.trec", "tasb/dl19.trec", "bm25/dl20.trec", "tasb/dl20.trec"],
    ],
)
def test_if_tags_repeat_systems_are_named_by_their_paths(paths: list[str]) -> None:
    runs = [(Path(path), "lmk", path[-20:].count("20") * "dl20" or "dl19") for path in paths]
    assert system_names(runs) == ["bm25", "tasb", "bm25", "tasb"]


def test_two_runs_of_one_name_on_a_collection_are_refused() -> None:
    same = [(Path("a.trec"), "t", "x"), (Path("a.trec"), "t", "x"), (Path("b.trec"), "t", "y")]
    with pytest.raises(UsageError, match=r"'a'.*--tag"):
        system_names(same)
