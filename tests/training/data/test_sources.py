"""Sources: how one is spelled, and that all are read into one set of examples."""

import json
from pathlib import Path

import pytest

from lmkcli import catalog
from lmkcli.errors import LmkError, UnknownName, UsageError
from lmkcli.training.data.mining import Mining
from lmkcli.training.data.sampling import Drawing
from lmkcli.training.data.sources import OPTIONS, Source, parse_source, read_sources


def test_options_of_training_are_taken_and_others_left_to_the_collection() -> None:
    found = parse_source(
        "./data:train,weight=0.3,map_ids=1,negatives=run.trec,depth=10:100,per-query=4,replace=1,"
        "teacher=ce.trec,relative-margin=0.05,positive=first,query_prompt=query: ,max_length=512"
    )
    assert found == Source(
        "./data:train,map_ids=1",
        weight=0.3,
        query_prompt="query: ",
        max_length=512,
        mining=Mining("run.trec", "10:100", relative_margin=0.05, teacher="ce.trec"),
        drawing=Drawing(4, replace=True, positive="first"),
    )


def test_every_option_is_a_field() -> None:
    assert all(option.field in option.owner.__dataclass_fields__ for option in OPTIONS.values())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("beir/scifact:train", "beir/scifact/train"),
        ("irds:beir/scifact/train", "irds:beir/scifact/train"),
        ("./scifact:train", "./scifact:train"),
        ("scifact:train", "scifact:train"),
    ],
)
def test_a_split_of_a_name_is_part_of_the_name(spelling: str, name: str) -> None:
    assert parse_source(spelling).name == name


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("x.jsonl,weigth=1", r"'weigth': .*\bweight\b"),
        ("x.jsonl,weight=much", "weight=much: .*number"),
        ("x.jsonl,weight=-1", r"'x\.jsonl': weight and per-query .*at least 0"),
        ("x.jsonl,per-query=1.5", r"per-query=1\.5: .*whole number"),
        ("x.jsonl,replace=yes", r"replace=yes: .*\b0 or 1"),
        ("x.jsonl,positive=worst", "positive=worst: .*random, first or best"),
        ("x.jsonl,positive=best,replace=1", r"'x\.jsonl': replace .*positive=best"),
        ("x.jsonl,weight", "'weight' .*name,key=value"),
        ("x.jsonl,negatives=run.trec", r"'x\.jsonl': .*no run.*corpus\.jsonl"),
    ],
)
def test_what_cannot_be_is_refused(spelling: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_source(spelling)


def test_files_and_collections_are_told_apart(beir: Path, tmp_path: Path) -> None:
    assert parse_source("-").is_file
    assert parse_source("train.jsonl.gz").is_file
    assert parse_source("train.parquet,weight=2").is_file
    assert not parse_source("docs.jsonl,queries=q.jsonl,qrels=train.tsv").is_file
    assert not parse_source(str(beir)).is_file
    assert not parse_source("beir/scifact:train").is_file


def test_sources_are_read_into_one_set_of_examples(beir: Path, tmp_path: Path) -> None:
    lines = [{"query": "q", "positive": "a", "negative": "a"}, {"query": "", "positive": "b"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spellings = [f"{tmp_path}/pairs.jsonl,weight=0.5", str(beir)]
    examples, (pairs, judged) = read_sources([parse_source(spelling) for spelling in spellings])
    assert examples.sources.tolist() == [0] + [1] * 12
    assert pairs.found() == {"read": 2, "empty_examples": 1, "positives_among_negatives": 1}
    assert judged.read == 12


def test_the_page_tells_of_every_option_and_objective() -> None:
    page = (Path(__file__).parents[3] / "docs" / "training-data.md").read_text(encoding="utf-8")
    assert [name for name in (*OPTIONS, *catalog.LOSSES) if f"`{name}`" not in page] == []


def test_an_unknown_collection_is_named() -> None:
    with pytest.raises(LmkError, match="nothing-of-this"):
        read_sources([parse_source("nothing-of-this/here:train")])
    assert issubclass(UnknownName, LmkError)


def test_a_negative_that_answers_the_query_in_another_record_is_dropped(tmp_path: Path) -> None:
    """Its record or source does not matter, and neither do other queries with the same negative."""
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(
        '{"query": "same", "pos": ["p one"], "neg": ["p two", "n"], '
        '"neg_scores": [3, 1], "pos_scores": [4]}\n'
        '{"query": "other", "pos": ["p three"], "neg": ["p two", "p one"]}\n'
        '{"query": "same", "pos": ["p two"], "neg": ["p one", "p four"]}\n'
    )
    second.write_text('{"query": "same", "pos": ["p four"], "neg": ["p two"]}\n')
    examples, tallies = read_sources([parse_source(str(first)), parse_source(str(second))])
    found = [
        (each.query, [p.text for p in each.positives], [n.text for n in each.negatives])
        for each in map(examples.__getitem__, range(len(examples)))
    ]
    assert found == [
        ("same", ["p one"], ["n"]),
        ("other", ["p three"], ["p two", "p one"]),
        ("same", ["p two"], []),
        ("same", ["p four"], []),
    ]
    assert [each.positives_among_negatives for each in tallies] == [3, 1]
    assert examples[0].negatives[0].score == 1
