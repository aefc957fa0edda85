"""Development scores of a model in training are equal to those of encode, search and eval."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.data.run import write_runs
from lmkcli.encoding.encoder import open_forward
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.text_encoder import encode_collection
from lmkcli.errors import DataError, UsageError
from lmkcli.evaluation.dev_scorer import DevScorer
from lmkcli.evaluation.scoring import qrel_set_of, score
from lmkcli.models.forward import ModelOptions
from lmkcli.progress import silent
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.searching import queries_of, search
from lmkcli.retrieval.vectors.vector_index import open_vectors
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings

Models = Callable[[str], Path]


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen2"])
@pytest.mark.parametrize("measure", ["nDCG@10", "AP"])
def test_the_same_as_encode_search_and_eval(
    beir: Path, tiny_model: Models, tmp_path: Path, name: str, measure: str
) -> None:
    options = RecipeOptions(model=str(tiny_model(name)), pool="lmk", gran="8", max_length=32)
    spelling = f"{beir}:test"
    vectors = tmp_path / "vectors"
    settings = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")
    encode_collection(spelling, vectors, options.model, options, settings)
    index = open_vectors(vectors, OpenSettings(dtype="fp32", device="cpu"))
    runs = search(index, queries_of(spelling, False)[0], 1000, "run", silent)
    write_runs(tmp_path / "run.trec", runs)
    expected = score(tmp_path / "run.trec", qrel_set_of(spelling), [measure])

    resolved = resolve(options)
    scorer = DevScorer.of(resolved, [spelling], measure)
    forward = open_forward(
        resolved.recipe.doc, resolved.folder, ModelOptions("fp32", "cpu", trainable=True)
    ).eval()
    assert scorer(forward).scores == {spelling: pytest.approx(expected.scores.aggregated[measure])}
    forward(
        [*_inputs(scorer, forward)]
    ).sum().backward()  # scoring leaves no inference mode in the model


def _inputs(scorer: DevScorer, forward: object) -> list:  # type: ignore[type-arg]
    encoder = scorer._side(scorer.resolved.recipe.doc, forward)  # type: ignore[arg-type]
    return encoder.placed(encoder.tokenizer(["one two three", "four"]))[0].inputs


def test_unknown_measures_and_missing_judgements_are_refused(
    beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert")), pool="mean"))
    with pytest.raises(UsageError, match="nDCG@10"):
        DevScorer.of(resolved, [f"{beir}:test"], "ndcg_cut_10")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "corpus.jsonl").write_text('{"_id": "d", "text": "a"}\n')
    with pytest.raises(DataError, match="no judgements"):
        DevScorer.of(resolved, [str(tmp_path / "bare")], "nDCG@10")


def test_identity_depends_on_judgements_and_measure(beir: Path, tiny_model: Models) -> None:
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert")), pool="mean"))
    one, other = (DevScorer.of(resolved, [f"{beir}:test"], m) for m in ("nDCG@10", "AP"))
    assert one.identity == DevScorer.of(resolved, [f"{beir}:test"], "nDCG@10").identity
    assert one.identity != other.identity
