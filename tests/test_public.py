"""The public names: each one loads, type checkers see the same modules as Python, and the import is light."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lmkcli
from lmkcli import RecipeOptions, encode_collection, load_encoder


def declared() -> dict[str, str]:
    """Name -> module, for the public names of the stub that type checkers read."""
    tree = ast.parse(Path(lmkcli.__file__).with_suffix(".pyi").read_text("utf-8"))
    imported = {
        alias.asname or alias.name: (node.module or "", alias)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    own = {name: module for name, (module, alias) in imported.items() if alias.asname == alias.name}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):  # class Encode(_Encode)
            own[node.name] = imported[f"_{node.name}"][0]
        elif isinstance(node, ast.FunctionDef):
            own[node.name] = lmkcli._MODULE_OF[node.name]
    return own


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    of_plugins = {name: module for name, module in declared().items() if ".plugins." in module}
    assert declared() == lmkcli._MODULE_OF | of_plugins
    assert sorted(declared()) == lmkcli.__all__


@pytest.mark.parametrize("name", lmkcli.__all__)
def test_every_name_loads_from_where_it_is_defined(name: str) -> None:
    value = getattr(lmkcli, name)
    assert name == "Source" or value.__module__ == declared()[name]
    assert name in dir(lmkcli)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="'lmkcli' has no attribute 'open_colection'"):
        lmkcli.open_colection  # noqa: B018


def test_the_import_itself_loads_nothing_heavy() -> None:
    code = "import sys, lmkcli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "lmkcli" in loaded
    assert not loaded & {"faiss", "numpy", "pyarrow", "torch", "transformers", "typer"}


TEXTS = ["Green tea", "Take the wheel off. Find the hole under water, dry it, patch it.", ""]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        (RecipeOptions(), [1, 1, 1]),
        (RecipeOptions(unit="chunk", gran="4"), None),
        (RecipeOptions(doc_prompt="passage: ", query_prompt="query: "), [1, 1, 1]),
    ],
)
def test_texts_have_the_vectors_that_a_collection_of_them_has(
    minilm: Path, tmp_path: Path, options: RecipeOptions, counts: list[int] | None
) -> None:
    lines = [f'{{"id": "{n}", "text": "{text}"}}\n' for n, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    settings = lmkcli.EncodeSettings(dtype="fp32", store_dtype="fp32")
    encoder = load_encoder(str(minilm), options, settings)
    stored = encode_collection(
        str(tmp_path / "texts.jsonl"), tmp_path / "vectors", str(minilm), options, settings
    )
    encoded = encoder.encode_documents(TEXTS)
    wanted = stored.at(np.arange(3))
    np.testing.assert_array_equal(encoded.starts, wanted.starts)
    np.testing.assert_allclose(encoded.vectors, wanted.vectors, atol=1e-6)
    assert encoded.counts.tolist() == (counts or wanted.counts.tolist())
    assert encoder.encode_queries(TEXTS[:2]).counts.tolist() == [1, 1]
    assert encoder.recipe == stored.recipe


def test_no_texts_have_no_vectors(minilm: Path) -> None:
    assert load_encoder(str(minilm)).encode_documents([]).vectors.shape == (0, 384)
