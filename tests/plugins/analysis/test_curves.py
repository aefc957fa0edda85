"""Curves of a score log: the entries on a line, and names with all differences."""

from typing import Any

from lmkcli.evaluation.score_plots import Point
from lmkcli.plugins.analysis import curves
from lmkcli.provenance import scorelog


def entry(score: float, on: str = "c", k: int = 10, **side: Any) -> dict[str, Any]:
    """An entry of a run by exact search in vectors."""
    doc = {"max_length": 512, "pool": "lmk", "gran": "", "unit": "doc", "window": "full"} | side
    vectors: dict[str, Any] = {
        "identity": {"recipe": {"doc": doc, "query": {**doc, "gran": "7"}}},
        "facts": {"operation": {"operation": "encode", "batch_tokens": 4096, "model": "a/m"}},
    }
    if doc["gran"]:
        vectors["facts"]["operation"]["gran"] = "9"
    run = {"identity": {"k": k, "search": {}}, "facts": {"collection": on, "call": {}}}
    return {"scores": {"nDCG@10": score, "P@1": 0.0}, "lineage": [vectors, run], "qrels": None}


def lexical(score: float) -> dict[str, Any]:
    index = {"identity": {"family": "bm25", "settings": {"k1": 0.9}}, "facts": {"operation": {}}}
    return {"scores": {"nDCG@10": score}, "lineage": [index], "qrels": "c"}


def drawn(entries: list[dict[str, Any]], x: str, by: str | None = None) -> curves.Series:
    return curves.series(entries, x, by, "nDCG@10")


def test_settings_are_found_in_the_lineage() -> None:
    one = entry(0.5, gran="64")
    assert scorelog.setting(one, "gran") == "64"  # the value for documents, not the flag
    assert scorelog.setting(one, "k") == 10
    assert scorelog.setting(one, "batch-tokens") == 4096
    assert scorelog.setting(one, "no-such") is None
    assert scorelog.setting({"scores": {}}, "gran") is None


def test_a_line_is_one_method() -> None:
    entries = [
        entry(0.3, gran="64"),
        entry(0.2, gran="16"),
        entry(0.1, gran="sentence"),
        entry(0.4, gran="64"),  # measured again
    ]
    made = drawn(entries, "gran")
    assert made.lines == {"lmk": [Point(16.0, 0.2), Point(64.0, 0.4)]}
    assert made.levels == {"gran sentence": Point(0.0, 0.1)}
    assert made.replaced == 1
    assert drawn(entries, "nothing").lines == {}


def test_names_contain_only_the_differences() -> None:
    entries = [
        entry(0.3, gran="64"),
        entry(0.4, gran="64", pool="mean", unit="chunk"),
        entry(0.2, pool="mean"),
        entry(0.1, pool="cls", window="128", max_length=128),
        entry(0.1, pool="cls", window="even:128", max_length=128),
        entry(0.5, gran="64", max_length=8192),
        lexical(0.6),
    ]
    made = drawn(entries, "gran", "pool")
    long, short = "lmk, max-length 8192", "lmk, max-length 512"
    assert list(made.lines) == [short, "mean, unit chunk, max-length 512", long]
    assert list(made.levels) == [
        "mean, max-length 512",
        "cls, window 128",
        "cls, window even:128",
        "bm25",
    ]


def test_settings_that_repeat_the_axis_separate_no_lines() -> None:
    entries = [
        entry(0.1, window="128", max_length=128),
        entry(0.2, window="512", max_length=512),
    ]
    assert list(drawn(entries, "window").lines) == ["nDCG@10"]
    stretched = [
        entry(0.1, max_length=1024, extend="ntk:1024"),
        entry(0.2, max_length=2048, extend="ntk:2048"),
        entry(0.3, max_length=512, extend=""),
    ]
    made = drawn(stretched, "max-length")
    assert {name: len(line) for name, line in made.lines.items()} == {
        "extend ntk": 2,
        "no extend": 1,
    }


def test_other_settings_are_named_only_to_distinguish_lines() -> None:
    assert list(drawn([entry(0.1, gran="8"), entry(0.2, gran="8", k=99)], "gran").lines) == [
        "k 10",
        "k 99",
    ]
    both = [entry(0.1, gran="8"), entry(0.2, gran="8", k=99, pool="multicls")]
    assert list(drawn(both, "gran").lines) == ["lmk", "multicls"]


def test_digests_are_short_in_names() -> None:
    entries = [
        entry(0.1, gran="8", weights="0123456789abcdef" * 2),
        entry(0.2, gran="8", weights="f" * 32),
    ]
    assert list(drawn(entries, "gran").lines) == ["weights 01234567", "weights ffffffff"]


def test_each_collection_has_a_line_and_all_measures_have_equal_names() -> None:
    entries = [entry(0.3, gran="64"), entry(0.9, gran="64", on="d")]
    assert list(drawn(entries, "gran").lines) == ["c", "d"]
    other = curves.series(entries, "gran", None, "P@1")
    assert list(other.lines) == ["c", "d"]
    assert other.lines["c"] == [Point(64.0, 0.0)]
    assert list(drawn(entries[:1], "gran").lines) == ["nDCG@10"]
    bare = curves.series([*entries[:1], {"scores": {}, "qrels": "c"}], "gran", None, "P@1")
    assert bare.levels == {}  # an entry without the measure has no point


def test_intervals_and_runs_without_a_lineage() -> None:
    one = entry(0.3, gran="64") | {"intervals": {"nDCG@10": [0.2, 0.4]}}
    other = {"scores": {"nDCG@10": 0.5}, "run": "runs/splade.trec", "qrels": "c"}
    made = drawn([one, other], "gran")
    assert made.lines == {"lmk": [Point(64.0, 0.3, 0.2, 0.4)]}
    assert made.levels == {"splade": Point(0.0, 0.5)}


def test_names_of_the_settings_in_a_log() -> None:
    entries = [entry(0.1, gran="8"), entry(0.2, gran="16"), lexical(0.3)]
    known = curves.parameters(entries, numeric=True)
    assert known[0] == "gran"  # settings that differ come first
    assert {"k", "max-length", "k1"} < set(known)
    assert "batch-tokens" not in known
    assert {"pool", "model"} < set(curves.parameters(entries))
