"""Training examples in tevatron's layout: a judged collection or a file of examples becomes train.jsonl."""

import json
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.manifest import Manifest
from lmkcli.progress import Report
from lmkcli.store.outputs import write_once
from lmkcli.training.examples import Example, Passage, Tally
from lmkcli.training.sources import parse_source, read_sources

TO = "tevatron-train"


def export_examples(spelling: str, folder: Path, report: Report = Report()) -> Tally:
    """Write `folder/train.jsonl`, a line for each example of a source; returns what was found in it.

    A source is spelled as for training: 'beir/scifact:train,negatives=run.trec,depth=10:100', or a file.
    A folder that holds this very export is left as it is; Mismatch when it holds another.
    """
    examples, [tally] = read_sources([parse_source(spelling)])
    facts = {**manifest.environment(report.call), "from": spelling}
    described = Manifest("export", {"to": TO, "examples": examples.digest}, facts=facts)

    def write(growing: Path) -> None:
        with open(growing / "train.jsonl", "w", encoding="utf-8") as file:
            for number in range(len(examples)):
                file.write(json.dumps(_record(examples[number]), ensure_ascii=False) + "\n")
                report.progress(number + 1, len(examples), "examples")

    write_once(folder, described, write)
    return tally


def _record(example: Example) -> dict[str, Any]:
    """What tevatron reads: a query, and lists of passages, each with its text (a title joined before)."""
    return {
        "query_id": example.id,
        "query": example.query,
        "positive_passages": [_passage(each) for each in example.positives],
        "negative_passages": [_passage(each) for each in example.negatives],
    }


def _passage(passage: Passage) -> dict[str, str]:
    return {"text": passage.text}
