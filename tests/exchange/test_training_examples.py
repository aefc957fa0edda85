"""Training examples for tevatron: what it reads, and what lmk reads back."""

import json
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.run import Run, ranked, write_run
from lmkcli.errors import Mismatch
from lmkcli.exchange.training_examples import export_examples
from lmkcli.training.layouts import read_examples
from lmkcli.training.sources import parse_source, read_sources


@pytest.fixture
def judged(beir: Path, tmp_path: Path) -> str:
    """The collection with negatives from a run over all of its documents."""
    ids = [f"d{number:03d}" for number in range(20)]
    scores = [float(-number) for number in range(20)]
    rankings = {f"q{number}": ranked(ids, np.array(scores)) for number in range(12)}
    write_run(tmp_path / "run.trec", Run(rankings))
    return f"{beir},negatives={tmp_path / 'run.trec'},depth=2:8"


def test_a_judged_collection_with_negatives_of_a_run(judged: str, tmp_path: Path) -> None:
    tally = export_examples(judged, tmp_path / "out")
    wanted, _ = read_sources([parse_source(judged)])
    assert tally.read == len(wanted) == 12
    lines = (tmp_path / "out" / "train.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record, example in zip(records, (wanted[n] for n in range(len(wanted))), strict=True):
        assert record["query_id"] == example.id
        assert record["query"] == example.query
        for name, passages in (("positive", example.positives), ("negative", example.negatives)):
            assert record[f"{name}_passages"] == [{"text": each.text} for each in passages]
    assert any(record["negative_passages"] for record in records)


def test_what_is_written_is_read_back(judged: str, tmp_path: Path) -> None:
    export_examples(judged, tmp_path / "out")
    wanted, _ = read_sources([parse_source(judged)])
    again = list(read_examples(str(tmp_path / "out" / "train.jsonl")))
    assert [str(one) for one in again] == [str(wanted[number]) for number in range(len(wanted))]
    export_examples(str(tmp_path / "out" / "train.jsonl"), tmp_path / "twice")
    files = [(tmp_path / name / "train.jsonl").read_bytes() for name in ("out", "twice")]
    assert files[0] == files[1]


def test_an_export_is_made_once(judged: str, beir: Path, tmp_path: Path) -> None:
    export_examples(judged, tmp_path / "out")
    before = (tmp_path / "out" / "train.jsonl").stat().st_mtime_ns
    export_examples(judged, tmp_path / "out")
    assert (tmp_path / "out" / "train.jsonl").stat().st_mtime_ns == before
    with pytest.raises(Mismatch, match="another identity"):
        export_examples(str(beir), tmp_path / "out")


def test_tevatron_reads_it(judged: str, tmp_path: Path) -> None:
    """With its own classes, where it is installed; a text is the query or passage as it was."""
    preprocessor = pytest.importorskip("tevatron.datasets.preprocessor")

    class Words:
        def encode(self, text: str, **_: object) -> list[str]:
            return text.split()

    export_examples(judged, tmp_path / "out")
    wanted, _ = read_sources([parse_source(judged)])
    read = preprocessor.TrainPreProcessor(Words())
    for number, line in enumerate((tmp_path / "out" / "train.jsonl").open(encoding="utf-8")):
        made, example = read(json.loads(line)), wanted[number]
        assert made["query"] == example.query.split()
        assert made["positives"] == [each.text.split() for each in example.positives]
        assert made["negatives"] == [each.text.split() for each in example.negatives]
