"""What a notebook shows: results as HTML, short errors, and progress without widgets."""

import re
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")

CELLS = {
    "import": "import lmkcli\ntexts = ['Steep green tea.', 'Take the wheel off.']",
    "index": "index = lmkcli.index(texts, {model!r})",
    "hits": "index.search('wheel')",
    "hit": "index.search('wheel')[0]",
    "wrong": "lmkcli.Encode(texts, model='minilm', chunk_size=3)",
    "encode": "lmkcli.Encode(texts, model={model!r}, output='vectors').run()",
}


@pytest.fixture(scope="module")
def shown(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of each cell."""
    sources = [source.format(model=str(minilm)) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in sources])
    folder = tmp_path_factory.mktemp("notebook")
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": folder}}
    )
    client.execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def test_progress_needs_no_widgets_and_leaves_nothing(shown: dict[str, list[Any]]) -> None:
    text = "".join(each.get("text", "") for outputs in shown.values() for each in outputs)
    assert not re.search("IProgress|ipywidgets|Warning", text)
    bars = [each for each in shown["index"] if each["output_type"] == "display_data"]
    assert bars
    assert all(each["data"] == {"text/plain": "", "text/html": ""} for each in bars)


def test_results_are_html_and_short_texts(shown: dict[str, list[Any]]) -> None:
    (hits,) = shown["hits"]
    assert hits["data"]["text/plain"].startswith("<Hits for 'wheel': 1 0.")
    assert hits["data"]["text/html"].count("<tr>") == 3
    assert shown["hit"][0]["data"]["text/plain"].startswith("<Hit 1. 1 0.")
    assert "vectors: 2 documents" in shown["encode"][-1]["data"]["text/html"]


def test_an_error_is_one_line(shown: dict[str, list[Any]]) -> None:
    (error,) = shown["wrong"]
    assert error["traceback"] == ["UsageError: Encode has no setting 'chunk_size'; use gran"]
