"""lmk repro: every kind of run is reproduced from its sources, and differences are named."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.artifact import manifest
from lmkcli.provenance import lineage
from lmkcli.retrieval.index_folder import read_record, write_record
from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model: Models) -> Path:
    """A folder with a collection, a model, all artifacts and their log. Tests do not write into it."""
    folder = tmp_path_factory.mktemp("made")
    tiny.collection(folder / "beir")
    shutil.copytree(tiny_model("bert"), folder / "model")
    return folder


LINES = [
    "encode ./beir -m ./model --pool lmk --gran 8 -o vectors",
    "index vectors -o graph",
    "index ./beir --kind bm25 -o bm25",
    "search vectors ./beir -k 20 -o exact.trec",
    "search graph ./beir -k 20 -o ann.trec",
    "search bm25 ./beir -k 20 --tag vectors -o bm25.trec",
    "search vectors ./beir -k 20 --with bm25 --fuse rrf -o fused.trec",
    "search bm25 ./beir -k 20 --rerank vectors --interpolate 0.5 -o reranked.trec.gz",
    "search exact.trec ./beir -k 10 --with bm25.trec --fuse linear:0.3,0.7 -o runs.trec",
    "eval exact.trec ann.trec bm25.trec fused.trec reranked.trec.gz runs.trec -m nDCG@10 -m R@5"
    " --log scores.jsonl",
]


@pytest.fixture
def house(lmk: Lmk, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`made`, with all artifacts made on first use."""
    monkeypatch.chdir(made)
    if not (made / "scores.jsonl").exists():
        for line in LINES:
            lmk(*line.split())
    return made


@pytest.fixture
def own(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder made by the same commands elsewhere, which the test may damage."""
    shutil.copytree(house, tmp_path / "own")
    for path in (tmp_path / "own").rglob("*.json*"):
        path.write_text(path.read_text().replace(str(house), str(tmp_path / "own")))
    record = read_record(tmp_path / "own/bm25")  # of another folder
    assert record
    write_record(tmp_path / "own/bm25", record.facts, record.of, record.at)
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize("number", range(1, 7))
def test_every_kind_of_run_is_reproduced_from_a_log(lmk: Lmk, house: Path, number: int) -> None:
    done = lmk("repro", f"scores.jsonl#{number}", "--json")
    assert all(row["same"] for row in done.json)
    assert {row["what"] for row in done.json} >= {"qrels", "nDCG@10", "R@5"}
    assert "is reproduced" in done.err


@pytest.mark.parametrize("what", ["vectors", "graph", "bm25", "fused.trec", "reranked.trec.gz"])
def test_every_artifact_is_reproduced(lmk: Lmk, house: Path, what: str) -> None:
    rows = lmk("repro", house / what, "--json").json
    assert rows[-1]["what"].endswith(what)
    assert all(row["same"] for row in rows)


def test_steps_come_once_and_sources_first(house: Path) -> None:
    kinds = [Path(step.path).name for step in lineage.steps(house / "reranked.trec.gz")]
    assert kinds == ["bm25", "vectors", "reranked.trec.gz"]
    assert [Path(s.path).name for s in lineage.steps(house / "ann.trec")] == [
        "vectors",
        "graph",
        "ann.trec",
    ]


def test_the_log_is_enough(lmk: Lmk, own: Path) -> None:
    """All artifacts are deleted and reproduced from the sources and the log. The table of a run names its
    steps."""
    for name in ("vectors", "graph", "bm25"):
        shutil.rmtree(own / name)
    for path in own.glob("*.trec*"):
        path.unlink()
    out = lmk("repro", "scores.jsonl#4").out
    assert "fused.trec" in out
    assert "NO" not in out


def test_reproduced_artifacts_can_be_kept(lmk: Lmk, house: Path, tmp_path: Path) -> None:
    lmk("repro", "exact.trec", "-o", tmp_path / "again")
    kept = sorted(path.name for path in (tmp_path / "again").iterdir())
    assert kept == ["1-vectors", "2-exact.trec", "2-exact.trec.json"]
    assert "choose a new folder" in lmk("repro", "exact.trec", "-o", tmp_path / "again", code=3).err


def test_the_same_command_continues_an_interrupted_reproduction(
    lmk: Lmk, house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["repro", "exact.trec", "-o", tmp_path / "again"]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lmkcli.operations.search.Search.execute", interrupt)
        lmk(*words, code=130)
    lmk(*words)
    kept = sorted(path.name for path in (tmp_path / "again").iterdir())
    assert kept == ["1-vectors", "2-exact.trec", "2-exact.trec.json"]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_changed_byte_of_a_document_is_named(lmk: Lmk, own: Path) -> None:
    edit(own / "beir" / "corpus.jsonl", "landmark", "landmarc")
    for number in (1, 3):
        err = lmk("repro", f"scores.jsonl#{number}", code=4).err
        assert f"First difference: documents of {own / 'beir'}" in err
        assert "documents (60)" in err


def test_changed_queries_and_judgements_are_named(lmk: Lmk, own: Path) -> None:
    edit(own / "beir" / "qrels" / "test.tsv", "\t2\n", "\t1\n")
    assert "First difference: qrels. the judgements" in lmk("repro", "scores.jsonl#3", code=4).err
    lines = (own / "beir" / "queries.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    record = json.loads(lines[0])
    lines[0] = json.dumps({**record, "text": record["text"] + " more"}) + "\n"
    (own / "beir" / "queries.jsonl").write_text("".join(lines), encoding="utf-8")
    assert "the queries have changed" in lmk("repro", "scores.jsonl#3", code=4).err


def test_another_model_is_named(lmk: Lmk, own: Path, tiny_model: Models) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(own / "model" / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name] + torch.randn_like(weights[name])
    save_file(weights, own / "model" / "model.safetensors", {"format": "pt"})
    done = lmk("repro", "scores.jsonl#1", code=4)
    assert "First difference: weights of" in done.err
    assert "weights" in done.err
    assert "NO" in next(line for line in done.out.splitlines() if line.startswith("vectors "))


def rewrite(log: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the records of all steps."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        for facts in (entry, *(step["facts"] for step in entry["lineage"])):
            change(facts)
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_another_library_version_that_agrees_is_named_and_passes(lmk: Lmk, own: Path) -> None:
    rewrite(own / "scores.jsonl", lambda facts: facts["packages"].update(torch="1.0"))
    now = manifest.environment()["packages"]["torch"]
    err = lmk("repro", "scores.jsonl#1").err
    assert re.search(rf"torch 1\.0 .*{re.escape(now)}", err)
    assert "is reproduced" in err


def test_another_library_version_that_does_not_agree_is_the_suspect(lmk: Lmk, own: Path) -> None:
    """Simulate vectors of another version of torch: the recorded parts contain other numbers."""
    import numpy as np

    for path in (own / "vectors" / "parts").glob("*/vectors.npy"):
        part = json.loads((path.parent / "part.json").read_text())
        (path.parent / "part.json").write_text(json.dumps({**part, "digest": "other"}))
        matrix = np.load(path)
        np.save(path, matrix[:, ::-1])
    for file in (own / "vectors" / "done").glob("*.json"):
        facts = json.loads(file.read_text())
        file.write_text(json.dumps({**facts, "parts": dict.fromkeys(facts["parts"], "other")}))
    facts = json.loads((own / "vectors" / "manifest.json").read_text())
    facts["facts"]["packages"]["torch"] = "1.0"
    (own / "vectors" / "manifest.json").write_text(json.dumps(facts))
    err = lmk("repro", "vectors", code=4).err
    assert re.search("vectors vectors.*cosine", err)
    assert "torch 1.0 then" in err


def test_parts_that_were_cut_otherwise_are_compared_by_value(lmk: Lmk, own: Path) -> None:
    shutil.rmtree(own / "vectors")
    for shard in ("1/3", "0/3", "2/3"):
        words = "encode ./beir -m ./model --pool lmk --gran 8 -o vectors --shard".split()
        lmk(*words, shard)
    (*_, row) = lmk("repro", "vectors", "--json").json
    assert row["recorded"] != row["now"]
    assert row["same"]
    assert "least cosine 1.0" in row["why"]


@pytest.mark.parametrize("gone", ["beir", "model"])
def test_a_missing_source_is_reported(lmk: Lmk, own: Path, gone: str) -> None:
    shutil.rmtree(own / gone)
    err = lmk("repro", "scores.jsonl#1", code=3).err
    assert f"{own / 'vectors'} cannot be reproduced" in err
    assert gone in err


def test_artifacts_without_a_record_cannot_be_reproduced(lmk: Lmk, own: Path) -> None:
    found = json.loads((own / "bm25" / "manifest.json").read_text())
    found["facts"]["operation"] = {}
    (own / "bm25" / "manifest.json").write_text(json.dumps(found))
    assert "does not record which operation" in lmk("repro", "bm25", code=3).err
    found["facts"]["operation"] = {"operation": "index", "source": "-", "kind": "bm25"}
    (own / "bm25" / "manifest.json").write_text(json.dumps(found))
    assert "made from stdin" in lmk("repro", "bm25", code=3).err
    found["facts"]["operation"] = {
        "operation": "index",
        "version": 1,
        "source": "beir",
        "no_such": 1,
    }
    (own / "bm25" / "manifest.json").write_text(json.dumps(found))
    assert "no setting no_such" in lmk("repro", "bm25", code=3).err
    assert "no such artifact" in lmk("repro", "nothing", code=3).err
    Path("other.trec").write_text("q1 Q0 d1 1 2.0 t\n")
    assert "was not made by lmk" in lmk("repro", "other.trec", code=3).err


@pytest.mark.parametrize(
    "wrong",
    [
        {"b": False},
        {"b": [1]},
        {"b": {}},
        {"source": ["a", "b"]},
        {"map_ids": "x"},
        {"map_ids": [1]},
    ],
    ids=str,
)
def test_a_record_with_values_that_no_flag_takes_is_refused(
    lmk: Lmk, own: Path, wrong: dict[str, Any]
) -> None:
    found = json.loads((own / "bm25" / "manifest.json").read_text())
    found["facts"]["operation"] |= wrong
    (own / "bm25" / "manifest.json").write_text(json.dumps(found))
    assert "the record" in lmk("repro", "bm25", code=3).err


def test_a_pretrained_model_is_made_again(lmk: Lmk, own: Path) -> None:
    words = ["--steps", 1, "--batch-size", 2, "--pool", "mean"]
    lmk("pretrain", "./beir", "-m", "model", *words, "-o", "pretrained")
    assert all(row["same"] for row in lmk("repro", "pretrained", "--json").json)


def test_a_run_that_lmk_did_not_make_is_evaluated_again(lmk: Lmk, own: Path) -> None:
    (own / "bm25.trec.json").unlink()
    (own / "scores.jsonl").unlink()
    lmk("eval", "bm25.trec", "--qrels", "./beir", "--log", "scores.jsonl", "-m", "nDCG@10")
    assert all(row["same"] for row in lmk("repro", "scores.jsonl", "--json").json)
    edit(own / "bm25.trec", " 1 ", " 7 ")
    assert "First difference: run bm25.trec" in lmk("repro", "scores.jsonl", code=4).err
    (own / "bm25.trec").unlink()
    assert "missing" in lmk("repro", "scores.jsonl", code=3).err


def test_variables_of_the_environment_are_recorded_and_do_not_leak(
    lmk: Lmk, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMK_SEARCH_HITS", "3")
    lmk("search", "bm25", "./beir", "-o", "three.trec")
    monkeypatch.setenv("LMK_SEARCH_HITS", "5")
    assert lmk("repro", "three.trec", "--json").json[-1]["same"]
    monkeypatch.delenv("LMK_SEARCH_HITS")
    assert lmk("repro", "three.trec", "--json").json[-1]["same"]


def test_vectors_that_were_made_from_tokens(lmk: Lmk, own: Path) -> None:
    lmk("tokenize", "./beir", "-m", "./model", "-o", "tokens")
    lmk("encode", "tokens", "-m", "./model", "-o", "from-tokens")
    rows = lmk("repro", "from-tokens", "--json").json
    assert [row["what"] for row in rows if row["what"].startswith("tokens ")] == ["tokens tokens"]
    assert all(row["same"] for row in rows)
