"""The work of an encoding: documents, seconds and memory, in the manifest and in the JSON result."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import VectorsManifest
from tests.conftest import Lmk


def test_the_manifest_and_the_result_have_seconds_and_memory(
    lmk: Lmk, beir: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    words = ["encode", beir, "-m", tiny_model("bert"), "--pool", "mean"]
    result = lmk(*words, "-o", tmp_path / "v", "--json").json
    work = manifest.read(tmp_path / "v", VectorsManifest).facts.work
    assert work is not None
    assert (work.documents, result["encoded"]) == (result["docs"], result["docs"])
    assert result["ms_per_document"] == pytest.approx(
        1000 * work.seconds / result["docs"], abs=0.01
    )
    assert result["peak_memory"] == work.peak_memory > 1 << 20
    again = lmk(*words, "-o", tmp_path / "v", "--json").json
    assert "seconds" not in again  # nothing was encoded
    assert manifest.read(tmp_path / "v", VectorsManifest).facts.work == work


def test_an_interrupted_encoding_adds_its_work(
    lmk: Lmk, beir: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    """The manifest of a continued folder has the work of both commands."""
    words = ["encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "v"]
    lmk(*words)
    (done,) = (tmp_path / "v" / "done").iterdir()
    done.unlink()  # as if it had been killed after its last part
    before = manifest.read(tmp_path / "v", VectorsManifest).facts.work
    lmk(*words)
    after = manifest.read(tmp_path / "v", VectorsManifest).facts.work
    assert before is not None
    assert after is not None
    assert after.documents == before.documents
    assert after.seconds > before.seconds


def test_shards_have_their_work_in_their_results(
    lmk: Lmk, beir: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    words = ["encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "v"]
    results = [lmk(*words, "--shard", f"{n}/2", "--json").json for n in range(2)]
    assert sum(each["encoded"] for each in results) == len(
        [json.loads(line) for line in (beir / "corpus.jsonl").open()]
    )
    assert manifest.read(tmp_path / "v", VectorsManifest).facts.work is None
