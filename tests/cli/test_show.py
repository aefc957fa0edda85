"""The text of `lmk show`, and the details of -v and --json."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmkcli.operations.show import Described

Lmk = Callable[..., Any]
Models = Callable[[str], Path]
_DIGEST = re.compile(r"\b[0-9a-f]{16,}\b")


def test_text_has_no_digests_and_no_repetitions(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    folder = tmp_path / "v"
    words = ["encode", beir, "-m", tiny_model("bert"), "--pool", "lmk", "--gran", 8]
    lmk(*words, "--query-max-length", 16, "-o", folder)
    text = lmk("show", folder).out
    assert not _DIGEST.search(text)
    lines = text.splitlines()
    assert lines[:3] == [f"artifact: vectors {folder}", "contents:", "  docs: 60"]
    assert lines[-1].startswith("command: ")
    assert lines[lines.index("queries:") + 1] == "  max_length: 16"
    facts = lmk("show", folder, "--json").json
    assert facts["documents"]["weights"] in lmk("-v", "show", folder).out
    assert list(facts)[:3] == ["artifact", "fingerprint", "made"]


def test_queries_with_the_settings_of_documents(
    lmk: Lmk, beir: Path, tmp_path: Path, tiny_model: Models
) -> None:
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "v")
    assert "queries: as documents\n" in lmk("show", tmp_path / "v").out


def test_a_model_shows_what_it_declares(lmk: Lmk, tiny_model: Models, tmp_path: Path) -> None:
    own = lmk("show", "mean-minilm", "--json").json
    assert (own["documents"]["pool"], own["documents"]["window"]) == ("mean", "even:512")
    plain = lmk("show", tiny_model("bert")).out.splitlines()
    assert plain[:2] == [f"artifact: model {tiny_model('bert')}", "model kind: transformer"]
    assert any("declares no pooling" in line for line in plain)
    folder = tmp_path / "landmarks"
    words = ["export", "-m", tiny_model("bert"), "--to", "sentence-transformers"]
    lmk(*words, "--pool", "lmk", "--gran", 8, "-o", folder)
    declared = lmk("show", folder, "--json").json
    assert (declared["documents"]["pool"], declared["documents"]["gran"]) == ("lmk", "8")


def test_a_collection_with_a_configuration_of_its_own(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(beir, tmp_path / "c"))
    (folder / "config.json").write_text('{"theme": "dark"}')
    assert lmk("show", folder, "--json").json == lmk("show", beir, "--json").json | {
        "collection": str(folder)
    }


def test_a_log_with_very_many_measures(lmk: Lmk, tmp_path: Path) -> None:
    log = tmp_path / "scores.jsonl"
    scores = {f"nDCG@{cut}": 0.5 for cut in range(1, 60_001)}
    log.write_text(json.dumps({"run": "a.trec", "scores": scores}) + "\n")
    shown = lmk("show", log)
    assert len(shown.out.splitlines()[-1].split()) <= 22  # the number, the run and 20 values
    assert "59,980 more measures" in shown.err
    assert len(lmk("show", log, "--json").json[0]["scores"]) == 60_000


def test_facts_are_written_for_people(lmk: Lmk, beir: Path, tiny_model: Models) -> None:
    """Sizes, times, lists and truth values are words; --json has the values."""
    text = lmk("show", beir).out
    assert re.search(
        r"files:\n  corpus.jsonl: [\d.]+ k?B, changed 20\d\d-\d\d-\d\d \d\d:\d\d", text
    )
    assert "[" not in text
    assert lmk("show", beir, "--json").json["stamp"].keys() == {"corpus.jsonl"}
    text = lmk("show", tiny_model("bert")).out
    assert "dim: all" in text
    assert not re.search(r": (True|False|0)$", text.replace("overlap: 0", ""), re.MULTILINE)


def test_long_fractions_are_rounded() -> None:
    facts = {"mean_length": 21.205882352941178, "rate": 1e-05, "b": 0.4, "bytes": 1000000.0}
    assert str(Described(facts)).splitlines() == [
        "mean_length: 21.2059", "rate: 1e-05", "b: 0.4", "bytes: 1000000.0",
    ]  # fmt: skip
    assert Described(facts).as_json() == facts
