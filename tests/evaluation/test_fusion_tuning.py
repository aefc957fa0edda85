"""A fusion that development queries choose."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.collection import Qrel
from lmkcli.data.run import Run, ranked
from lmkcli.errors import DataError
from lmkcli.evaluation.fusion_tuning import tune
from lmkcli.evaluation.measures import evaluate
from lmkcli.retrieval.fusion import Fusion, fuse
from tests.conftest import Lmk


def runs(good: float, queries: int = 40) -> tuple[list[Run], list[Qrel]]:
    """A run that finds the relevant document with noise of `good`, and a run of noise."""
    rng = np.random.default_rng(int(good * 10))
    docs = [f"d{number}" for number in range(30)]
    first, second, qrels = {}, {}, []
    for number in range(queries):
        relevant = int(rng.integers(len(docs)))
        scores = rng.normal(size=len(docs)) * good
        scores[relevant] += 2
        first[f"q{number}"] = ranked(docs, scores)
        second[f"q{number}"] = ranked(docs, rng.normal(size=len(docs)))
        qrels.append(Qrel(f"q{number}", docs[relevant], 1))
    return [Run(first), Run(second)], qrels


def test_the_better_run_gets_the_weight_and_the_scores_are_those_of_eval() -> None:
    both, qrels = runs(0.5)
    tuned = tune(both, None, qrels)
    assert tuned.fusion.method == "linear"
    assert tuned.fusion.weights[0] > tuned.fusion.weights[1]
    scored = evaluate(fuse(both, tuned.fusion, 10), qrels, ["nDCG@10"])
    assert tuned.score == pytest.approx(scored.aggregated["nDCG@10"])
    assert tuned.score >= tuned.rrf
    assert tuned.held_out <= tuned.score
    swapped = tune(both[::-1], None, qrels)
    assert swapped.fusion.weights[1] > swapped.fusion.weights[0]


def test_the_held_out_score_of_noise_is_lower_than_its_best_score() -> None:
    """The best of many candidates on pure noise looks better than it is."""
    gaps = []
    for seed in range(5):
        noise, qrels = runs(1000 + seed)
        tuned = tune(noise, None, qrels)
        gaps.append(tuned.score - tuned.held_out)
    assert min(gaps) >= 0
    assert np.mean(gaps) > 0


def test_few_queries_are_refused() -> None:
    both, qrels = runs(0.5, 3)
    with pytest.raises(DataError, match="at least 4 judged development queries"):
        tune(both, None, qrels)


def test_a_search_tunes_on_another_split(
    lmk: Lmk, beir: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "mini"
    shutil.copytree(beir, folder)
    lines = (folder / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    head, rows = lines[0], lines[1:]
    (folder / "qrels" / "test.tsv").write_text("".join([head, *rows[: len(rows) // 2]]))
    (folder / "qrels" / "tuning.tsv").write_text("".join([head, *rows[len(rows) // 2 :]]))
    lmk("encode", folder, "-m", tiny_model("bert"), "-o", tmp_path / "v")
    lmk("index", folder, "--kind", "bm25", "-o", tmp_path / "b")
    search = ["search", tmp_path / "v", folder, "--with", tmp_path / "b", "-o", tmp_path / "r.trec"]
    done = lmk(*search, "--fuse", "tune:tuning")
    assert "held out" in done.err
    assert "mini:tuning" in done.err
    recorded = json.loads((tmp_path / "r.trec.json").read_text())
    assert '"method": "' in json.dumps(recorded["identity"])
    identity = recorded["identity"]["search"]["fuse"]
    assert str(Fusion.from_identity(identity)) in done.err
    page = lmk("browse", tmp_path / "r.trec", "-o", tmp_path / "r.html", "--json")
    assert "no passages" not in page.err + (tmp_path / "r.html").read_text()
    question = ("search", tmp_path / "v", "--with", tmp_path / "b", "-q", "rivers")
    unclear = lmk(*question, "--fuse", "tune:tuning", code=2)
    assert "tune:./folder:tuning" in unclear.err
    refused = lmk(*search, "--fuse", "tune:test", "--if-exists", "overwrite", code=2)
    assert "queries of the search" in refused.err
    assert (
        "no effect" in lmk(*search, "--fuse", "tune:tuning", "--fuse-scale", "zscore", code=2).err
    )
