"""ONNX graphs: onnxruntime computes the vectors of lmk, for any number and length of inputs."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError, UsageError
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from tests import tiny
from tests.models.families import add_pooling

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from lmkcli.plugins.exchange import onnx_graph  # noqa: E402

Models = Callable[[str], Path]
SETTINGS = EncodeSettings(dtype="fp32", device="cpu")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "onnx_landmarks.py"
TEXTS = ["copper conducts electricity", "birds migrate south in autumn " * 9, "x", ""]


def by_onnxruntime(folder: Path, texts: list[str]) -> np.ndarray:
    """Vectors of queries, by the code for other programs: tokenize, place landmarks, run the graph."""
    graph = runpy.run_path(str(EXAMPLE))["Graph"](folder)
    return np.asarray(graph.encode(texts, "query"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "modernbert", "qwen2"])
def test_the_graph_computes_the_vectors_of_lmk(
    tiny_model: Models, tmp_path: Path, kind: str
) -> None:
    options = {"pool": "lmk", "gran": "8", "max_length": 40}
    resolved = resolve(RecipeOptions(model=str(tiny_model(kind)), **options))
    facts = onnx_graph.export_graph(resolved, tmp_path / "graph")
    assert facts["difference"] < 1e-4
    encoder = open_encoder(resolved.recipe.query, resolved.folder, SETTINGS)
    ours = encoder.queries([Query(str(n), text) for n, text in enumerate(TEXTS)]).vectors
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "graph", TEXTS), ours, atol=1e-4)
    one = by_onnxruntime(tmp_path / "graph", TEXTS[:1])
    np.testing.assert_allclose(one, ours[:1], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False])
def test_white_space_is_tokenized_as_lmk_does(tmp_path: Path, declared: bool) -> None:
    """A folder that declares a pooling keeps white space at the ends of a text."""
    folder = tiny.save(tmp_path / "model", "qwen2")
    if declared:
        add_pooling(folder, "mean", 64)
    texts = ["  two spaces before", "a line break after\n", " \t "]
    options = RecipeOptions(model=str(folder), pool="lmk", gran="8", max_length=40)
    resolved = resolve(options)
    assert resolved.recipe.query.keep_space == declared
    onnx_graph.export_graph(resolved, tmp_path / "graph")
    encoder = open_encoder(resolved.recipe.query, resolved.folder, SETTINGS)
    ours = encoder.queries([Query(str(n), text) for n, text in enumerate(texts)]).vectors
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "graph", texts), ours, atol=1e-4)


def test_a_graph_with_other_vectors_is_not_written(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "_export", lambda *_: None)
    monkeypatch.setattr(onnx_graph, "_difference", lambda *_: 2e-4)
    resolved = resolve(RecipeOptions(model=str(tiny_model("bert")), pool="cls"))
    with pytest.raises(DataError, match="other vectors"):
        onnx_graph.export_graph(resolved, tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


def test_models_without_a_graph(tmp_path: Path) -> None:
    config = {"model_type": "tite", "max_position_embeddings": 40, "kernel_sizes": [None, 4]}
    (tmp_path / "tite").mkdir()
    (tmp_path / "tite" / "config.json").write_text(json.dumps(config))
    resolved = resolve(RecipeOptions(model=str(tmp_path / "tite")))
    with pytest.raises(UsageError, match="layers that ONNX cannot express"):
        onnx_graph.export_graph(resolved, tmp_path / "out")
    assert not (tmp_path / "out").exists()
