"""golden.py itself: its cases cover every command, and a comparison reports what it should."""

from pathlib import Path

from lmkcli.catalog import OPERATIONS
from tests import golden

RECORD = {
    "command": "lmk show v",
    "before": [],
    "code": 0,
    "stdout": {"text": ["60 documents"]},
    "stderr": ["a note"],
    "files": {"new": ["out/manifest.json"]},
    "digests": {"out/manifest.json": {"kind": "vectors"}},
}


def test_every_command_has_cases() -> None:
    names = [name for name, _ in golden.cases()]
    assert len(names) == len(set(names)) >= 200
    verbs = {case.line.split(" ")[0] for _, case in golden.cases()}
    assert verbs >= set(OPERATIONS)


def test_equal_records_have_no_differences() -> None:
    assert list(golden.differences(RECORD, {**RECORD}, wording=True)) == []


def test_each_difference_is_reported_in_its_place() -> None:
    other = {**RECORD, "code": 3, "digests": {"out/manifest.json": {"kind": "index"}}}
    assert list(golden.differences(RECORD, other, wording=True)) == [
        "code:",
        "  -: 0",
        "  +: 3",
        "digests:",
        '  -out/manifest.json.kind: "vectors"',
        '  +out/manifest.json.kind: "index"',
    ]


def test_wording_can_be_ignored() -> None:
    other = {**RECORD, "stdout": {"text": ["60 texts"]}, "stderr": ["another note"]}
    assert list(golden.differences(RECORD, other, wording=False)) == []
    parsed = {**RECORD, "stdout": {"json": 1}}
    assert list(golden.differences(RECORD, parsed, wording=False))


def test_what_varies_between_runs_is_removed() -> None:
    plain = golden.Plain(Path("/tmp/x"))
    said = "/tmp/x/work/v: 60 documents in 0.31 s, 1,234.5 docs/s, 20.2 GB free, process 77"
    assert (
        plain.text(said)
        == "<work>/v: 60 documents in <duration>, <rate>, <size> free, process <number>"
    )
    value = {"seconds": 1.5, "score": 0.123456, "made": "2026-01-01T00:00:00Z"}
    assert plain.value(value) == {"seconds": "<varies>", "score": 0.1235, "made": "<varies>"}
