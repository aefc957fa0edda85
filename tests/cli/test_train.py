"""lmk train on the command line: a model, its description, its vectors and a run."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.artifact.kinds import VectorsManifest
from lmkcli.artifact.manifest import read
from lmkcli.errors import Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.system.atomic import locked
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from lmkcli.training.training_job import plan
from tests import tiny
from tests.conftest import Lmk

Models = Callable[[str], Path]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    lines = [
        {"query": tiny.sentence(i, 4), "positive": f"{tiny.sentence(i, 20)} {i}"} for i in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_from_examples_to_scores(
    lmk: Lmk, pairs: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    words = ("-m", tiny_model("bert"), "--pool", "lmk", "--gran", "4,8", "--max-length", 32)
    more = ("--steps", 2, "--batch-size", 8, "--dtype", "fp32", "--log-every", 1)
    sources = (pairs, f"{beir}:test,per_query=1")
    made = lmk("train", *sources, *words, *more, "-o", model, "--json").json
    assert (made["output"], made["steps"]) == (str(model), 2)
    shown = lmk("show", model, "--json").json
    assert shown["steps"] == 2
    assert [source["name"] for source in shown["sources"]] == [str(pairs), f"{beir}:test"]
    assert shown["documents"]["pool"] == "lmk"
    again = lmk("train", *sources, *words, *more, "-o", model)
    assert "2 steps" in again.out
    lmk("train", *sources, *words, *more, "--lr", 1, "-o", model, code=3)
    lmk("encode", beir, "-m", model, "-o", tmp_path / "vectors", "--dtype", "fp32")
    recipe = json.loads((tmp_path / "vectors" / "manifest.json").read_text())["identity"]["recipe"]
    assert (recipe["doc"]["pool"], recipe["doc"]["gran"], recipe["doc"]["max_length"]) == (
        "lmk",
        "4",
        32,
    )
    lmk("search", tmp_path / "vectors", beir, "-o", tmp_path / "run.trec")
    assert "nDCG@10" in lmk("eval", tmp_path / "run.trec", "-m", "nDCG@10").out


def test_short_passages_suggest_a_maximum_length(
    lmk: Lmk, pairs: Path, tmp_path: Path, tiny_model: Models
) -> None:
    long = [{"query": f"rivers {i}", "positive": tiny.sentence(i, 300)} for i in range(2)]
    short = [{"query": f"rivers {i}", "positive": f"water {i}"} for i in range(200)]
    for name, rows in (("short", [*short, long[0]]), ("long", long)):
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ("-m", tiny_model("bert"), "--pool", "mean", "--batch-size", 2, "--dry-run")
    limit = ("--max-length", 128)
    noted = lmk("train", tmp_path / "short", *words, *limit).err
    assert re.search(r"\b128\b.*--max-length 64", noted)
    assert "short passages" not in lmk("train", tmp_path / "long", *words, *limit).err
    assert "short passages" not in lmk("train", tmp_path / "short", *words, "--max-length", 64).err


def test_settings_from_a_file(lmk: Lmk, pairs: Path, tiny_model: Models, tmp_path: Path) -> None:
    config = tmp_path / "recipe.toml"
    config.write_text(
        f"""[train]
model = "{tiny_model("bert")}"
pool = "lmk"
gran = "4,8"
max-length = 32
steps = 1
batch-size = 8
dims = "32,16"
"""
    )
    lmk("train", pairs, "--config", config, "-o", tmp_path / "model")
    facts = json.loads((tmp_path / "model" / "training.json").read_text())
    assert facts["settings"]["dims"] == "32,16"
    assert "infonce@16" in facts["curve"][0]


def test_overwriting_keeps_other_files(
    lmk: Lmk, pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    words = ("-m", tiny_model("bert"), "--pool", "mean", "--max-length", 32, "--batch-size", 8)
    lmk("train", pairs, *words, "--steps", 1, "-o", model)
    (model / "thesis.tex").write_text("mine")
    lmk("train", pairs, *words, "--steps", 2, "-o", model, "--if-exists", "overwrite")
    assert (model / "thesis.tex").read_text() == "mine"
    assert lmk("show", model, "--json").json["steps"] == 2


def test_only_the_first_of_several_processes_clears_an_existing_folder(
    lmk: Lmk, pairs: Path, tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun numbers its processes with RANK. The second one must not remove the work of the first."""
    model = tmp_path / "model"
    words = ("-m", tiny_model("bert"), "--pool", "mean", "--max-length", 32, "--batch-size", 8)
    lmk("train", pairs, *words, "--steps", 1, "-o", model)
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    monkeypatch.setenv("RANK", "1")
    again = lmk("train", pairs, *words, "--steps", 1, "-o", model, "--if-exists", "overwrite")
    assert "1 steps" in again.out
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before


def test_an_output_that_another_process_changes_is_not_overwritten(
    lmk: Lmk, pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    words = ("train", pairs, "-m", tiny_model("bert"), "--steps", 1, "--batch-size", 8, "-o", model)
    lmk(*words)
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    with locked(model):
        refused = lmk(*words, "--if-exists", "overwrite", code=75)
    assert "is being changed by process" in refused.err
    (model / "update.lock").unlink()
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before


def test_the_window_in_which_its_documents_will_be_read(
    lmk: Lmk, pairs: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    """Training reads whole texts. The model folder declares the window, and so do models trained from it."""
    taught, again, short = (
        tmp_path / "taught",
        tmp_path / "again",
        ("--steps", 1, "--batch-size", 8),
    )
    one = (
        "train",
        pairs,
        *short,
        "--max-length",
        32,
        "--pool",
        "lmk",
        "--gran",
        "4,8",
        "-o",
        taught,
    )
    message = lmk(*one, "-m", tiny_model("bert"), "--window", 16).err
    assert re.search(r"cosine.* 16 positions\n", message)
    config = json.loads((taught / "sentence_bert_config.json").read_text())
    assert (config["window"], config["max_seq_length"]) == ("16", 32)
    lmk("train", pairs, *short, "-m", taught, "-o", again)
    lmk("encode", beir, "-m", again, "-o", tmp_path / "vectors")
    assert read(tmp_path / "vectors", VectorsManifest).identity.recipe.doc.window == "16"
    refused = lmk(*one, "-m", tiny_model("bert"), "--window", 8, code=3)
    assert "window: '16' | '8'" in refused.err


def test_a_training_without_examples(lmk: Lmk, tiny_model: Models, tmp_path: Path) -> None:
    words = ("-m", tiny_model("bert"), "-o", tmp_path / "model")
    lmk("train", tmp_path / "none.jsonl", *words, code=3)
    (tmp_path / "empty.jsonl").write_text("")
    lmk("train", tmp_path / "empty.jsonl", *words, code=3)
    assert not (tmp_path / "model").exists()


def test_a_dry_run_writes_nothing(
    lmk: Lmk, pairs: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    words = ("-m", tiny_model("bert"), "--pool", "lmk", "--gran", "4,8", "--max-length", 32)
    more = ("--batch-size", 8, "--steps", 50, "--dry-run")
    before = sorted(tmp_path.iterdir())
    shown = lmk("train", pairs, *words, *more).out
    assert "1 query (gran" in shown
    assert "«[SEP]»" in shown
    assert "tokens/s in 5 steps" in shown
    facts = lmk("train", pairs, *words, *more, "--json", "-o", tmp_path / "model").json
    assert (facts["examples"], facts["steps"], facts["counted"]) == (30, 50, 50)
    dev = ("--dev", f"{beir}:test", "--dev-every", 1)
    assert "scoring" in lmk("train", pairs, *words, *more, *dev).out
    assert sorted(tmp_path.iterdir()) == before


def test_scored_as_it_trains(
    lmk: Lmk, pairs: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    words = ("-m", tiny_model("bert"), "--pool", "lmk", "--gran", "4,8", "--max-length", 32)
    more = ("--steps", 6, "--batch-size", 8, "--dtype", "fp32", "--lr", 1e-3)
    dev = ("--dev", f"{beir}:test", "--dev-every", 2, "--patience", 9)
    done = lmk("train", pairs, *words, *more, *dev, "-o", model)
    scored = json.loads((model / "training.json").read_text())["dev"]["published"]
    assert f"weights of step {scored['step']}" in done.out
    assert "step 2: nDCG@10" in done.err
    assert lmk("show", model, "--json").json["best"] == scored
    assert lmk("train", pairs, *words, *more, *dev, "-o", model, "--json").json["dev"] == scored
    store = ("--dtype", "fp32", "--store-dtype", "fp32")
    lmk("encode", beir, "-m", model, "-o", tmp_path / "vectors", *store)
    lmk("search", tmp_path / "vectors", f"{beir}:test", "-o", tmp_path / "run.trec")
    found = lmk("eval", tmp_path / "run.trec", "-m", "nDCG@10", "--json").json
    assert found[0]["nDCG@10"] == pytest.approx(scored["score"], abs=1e-6)


def test_scoring_that_cannot_be(
    lmk: Lmk, pairs: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    words = ("-m", tiny_model("bert"), "--pool", "mean", "--max-length", 32, "-o", tmp_path / "m")
    assert "--dev" in lmk("train", pairs, *words, "--patience", 2, code=2).err
    lmk("train", pairs, *words, "--dev", f"{beir}:test", "--dev-measure", "ndcg", code=2)
    lmk("train", pairs, *words, "--dev", tmp_path / "none", code=3)
    assert not (tmp_path / "m").exists()


def test_a_model_is_shown_and_trained_again(
    lmk: Lmk, pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    words = ("-m", tiny_model("bert"), "--pool", "lmk", "--gran", "4,8", "--max-length", 32)
    more = ("--steps", 2, "--batch-size", 8, "--dtype", "fp32", "--device", "cpu")
    lmk("train", pairs, *words, *more, "-o", model)
    lines = lmk("show", model).out.splitlines()
    (last,) = (line for line in lines if line.startswith("repeat with: lmk train"))
    assert last.endswith(f"--device cpu -o {model}-again")
    rows = lmk("repro", model, "--json").json
    assert [(row["what"], row["same"]) for row in rows] == [("model model", True)]
    pairs.write_text(pairs.read_text().replace("landmark", "landmarks", 1))
    err = lmk("repro", model, code=4).err
    assert "data has changed" in err


def test_a_sparse_model_is_scored_and_its_log_counts_terms(
    lmk: Lmk, beir: Path, masked_model: Callable[[str], Path], tmp_path: Path
) -> None:
    lines = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 9)} for i in range(30)]
    tiny.write_jsonl(tmp_path / "pairs.jsonl", lines)
    model = tmp_path / "model"
    trained = lmk(
        *("train", tmp_path / "pairs.jsonl", "-m", masked_model("bert"), "--pool", "splade"),
        *("--steps", 6, "--batch-size", 8, "--log-every", 1, "--dtype", "fp32", "--device", "cpu"),
        *("--doc-flops", 0.5, "--query-l1", 0.1, "--sparsity-warmup", 0.5, "--lr", 0.01),
        *("--dev", beir, "--dev-every", 3, "-o", model),
    )
    log = [json.loads(line) for line in (model / "log.jsonl").read_text().splitlines()]
    losses, scored = ([line for line in log if name in line] for name in ("loss", "score"))
    assert losses[0]["sparsity"] == 0
    assert losses[3]["sparsity"] > losses[1]["sparsity"] > 0
    assert losses[5]["doc_terms"] < losses[0]["doc_terms"] <= tiny.VOCABULARY
    assert losses[3]["loss"] == pytest.approx(
        losses[3]["infonce"] + losses[3]["sparsity"], rel=1e-4
    )
    best = max(scored, key=lambda line: line["score"])
    assert f"{best['doc_terms']:.1f} terms per document" in trained.out
    assert f"{best['query_terms']:.1f} per query" in trained.err
    drawn = lmk("plot", model, "-o", tmp_path / "curves.svg")
    assert drawn.code == 0
    assert "query_terms" in (tmp_path / "curves.svg").read_text()
    lmk("encode", beir, "-m", model, "-o", tmp_path / "vectors", "--dtype", "fp32")
    lmk("search", tmp_path / "vectors", beir, "-o", tmp_path / "run.trec", "--dtype", "fp32")
    (found,) = lmk("eval", tmp_path / "run.trec", "-m", "nDCG@10", "--json").json
    assert found["nDCG@10"] == pytest.approx(best["score"], abs=1e-5)


def test_a_batch_of_one_query_is_for_losses_of_single_queries(
    lmk: Lmk, pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    words = ("train", pairs, "-m", tiny_model("bert"), "--pool", "mean", "--batch-size", 1)
    more = ("--steps", 2, "--dtype", "fp32", "--log-every", 1, "-o", tmp_path / "model")
    for loss in ("infonce", "opl+infonce"):
        err = lmk(*words, *more, "--loss", loss, code=2).err
        assert re.search(r"--batch-size 1: --loss infonce contrasts .*opl", err)
    lmk(*words, *more, "--loss", "opl")
    curve = json.loads((tmp_path / "model" / "training.json").read_text())["curve"]
    assert curve[0]["loss"] > 0


def test_a_cosine_schedule_ends_at_the_least_learning_rate(
    lmk: Lmk, pairs: Path, tiny_model: Models, tmp_path: Path
) -> None:
    words = ("train", pairs, "-m", tiny_model("bert"), "--pool", "mean", "--batch-size", 4)
    more = ("--steps", 20, "--dtype", "fp32", "--log-every", 1, "--lr", 0.01, "--warmup", 0)
    rate = ("--min-lr-rate", 0.5)
    lmk(*words, *more, "--schedule", "cosine", *rate, "-o", tmp_path / "model")
    lines = [json.loads(line) for line in (tmp_path / "model" / "log.jsonl").open()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert 0.005 <= rates[-1] < 0.0051
    assert rates == sorted(rates, reverse=True)
    err = lmk(*words, *more, *rate, "-o", tmp_path / "other", code=2).err
    assert "--min-lr-rate has no effect with --schedule linear" in err


def test_texts_that_are_cut_are_counted(lmk: Lmk, tiny_model: Models, tmp_path: Path) -> None:
    """In the output, the manifest and --json; an interrupted training counts the same."""
    file = tmp_path / "pairs.jsonl"
    long = tiny.sentence(1, 90)
    rows = [
        {
            "query": f"{long} {i}" if i < 3 else f"tea {i}",
            "positive": f"{long} {i}",
            "negatives": [f"x {i}"],
        }
        for i in range(8)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = (
        file,
        "-m",
        tiny_model("bert"),
        "--pool",
        "mean",
        "--max-length",
        32,
        "--device",
        "cpu",
    )
    more = ("--epochs", 2, "--batch-size", 4, "--dtype", "fp32", "--log-every", 3)
    whole = lmk("train", *words, *more, "-o", tmp_path / "whole")
    assert "6 queries" in whole.err
    assert "16 documents" in whole.err
    expected = {"cut_queries": 6, "cut_documents": 16}
    shown = lmk("train", *words, *more, "-o", tmp_path / "whole", "--json").json
    assert {name: shown[name] for name in expected} == expected
    facts = json.loads((tmp_path / "whole" / "manifest.json").read_text())["facts"]
    assert {name: facts[name] for name in expected} == expected

    steps = itertools.count(1)
    job = plan(
        [str(file)],
        RecipeOptions(model=str(tiny_model("bert")), pool="mean", max_length=32),
        TrainSettings(epochs=2, batch_size=4, dtype="fp32", device="cpu", log_every=3),
    )
    with pytest.raises(Stopped):
        execution.run(job, tmp_path / "parts", Report(stopping=lambda: next(steps) == 2))
    execution.run(job, tmp_path / "parts", Report())
    made = json.loads((tmp_path / "parts" / "training.json").read_text())
    assert {name: made[name] for name in expected} == expected
