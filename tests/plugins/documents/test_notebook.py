"""Jupyter notebooks."""

import contextlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lmkcli.data.collection import Doc, open_collection
from lmkcli.errors import DataError
from lmkcli.plugins.documents.notebook import SHORT, read
from lmkcli.plugins.documents.plain_text import read_markdown
from tests.conftest import Lmk

PICTURE = "iVBORw0KGgo" * 500


def notebook(*cells: dict[str, Any], **metadata: Any) -> bytes:
    whole = {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole).encode()


def markdown(text: str) -> dict[str, Any]:
    attachments = {"a.png": {"image/png": PICTURE}}
    lines = text.splitlines(keepends=True)
    return {"cell_type": "markdown", "metadata": {}, "source": lines, "attachments": attachments}


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": 1, "source": source, "outputs": list(outputs)}


def shown(**data: Any) -> dict[str, Any]:
    """An output with a form for each kind: text_plain='…'."""
    forms = {kind.replace("_", "/"): value for kind, value in data.items()}
    return {"output_type": "display_data", "data": forms, "metadata": {}}


def printed(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text.splitlines(keepends=True)}


def test_cells_are_markdown_and_code_and_the_title_is_the_first_heading() -> None:
    data = notebook(
        markdown("# Tying knots\n\nTwo *ropes*.\n"),
        code("# a comment, no heading\nlength = 3\nlength", shown(text_plain=["3"])),
        code(""),
        markdown("## Splices"),
        {"cell_type": "raw", "source": "raw words"},
    )
    assert read(data, "utf-8") == (
        "Tying knots",
        "Two *ropes*.\n\n```\n# a comment, no heading\nlength = 3\nlength\n```\n\n```\n3\n```\n\n"
        "## Splices\n\nraw words",
    )


def test_pictures_long_outputs_and_names_of_objects_are_no_text() -> None:
    figure = "<Figure size 640x480 with 1 Axes>"
    outputs = [
        shown(image_png=PICTURE, text_plain=figure),
        shown(text_html="<b>x</b>", text_plain="[<matplotlib.lines.Line2D at 0x7f0a>]"),
        shown(text_plain="<IPython.core.display.Markdown object>", text_markdown="**3 ropes**"),
        printed("\x1b[31mred\x1b[0m\n\0"),
        printed("a warning", "stderr"),
        printed("x" * (SHORT + 1)),
        {
            "output_type": "error",
            "ename": "ValueError",
            "evalue": "too short",
            "traceback": ["T" * 99],
        },
        shown(application_json={"a": 1}),
    ]
    text = read(notebook(code("tie()", *outputs)), "utf-8").text
    assert text == (
        "```\ntie()\n```\n\n**3 ropes**\n\n```\nred\n```\n\n```\nValueError: too short\n```"
    )
    data = f"before\n![a plot](data:image/png;base64,{PICTURE}) after"
    assert read(notebook(markdown(data)), "utf-8").text == "before\n![a plot]() after"


def test_pictures_inside_markdown_files_are_no_text() -> None:
    uri = f"data:image/png;base64,{PICTURE}"
    data = f"![][image1]\n\n[image1]: <{uri}>\n<img src='{uri}'>"
    assert read_markdown(data.encode(), "utf-8").text == "![][image1]\n\n[image1]: <>\n<img src=''>"
    prose = "A data:text/plain;base64 URL is described in RFC 2397."
    assert read_markdown(prose.encode(), "utf-8").text == prose


def test_format_3_and_a_title_in_the_metadata() -> None:
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Old knots"]},
        {"cell_type": "code", "input": ["1 + 1"], "outputs": [
            {"output_type": "pyout", "text": ["2"]},
            {"output_type": "display_data", "png": PICTURE, "text": ["<matplotlib.figure.Figure at 0x1>"]},
            {"output_type": "stream", "stream": "stdout", "text": "out"},
            {"output_type": "pyerr", "ename": "KeyError", "evalue": "'a'", "traceback": []},
        ]},
        {"cell_type": "html", "source": "<b>bold</b>"},
    ]  # fmt: skip
    old = {"nbformat": 3, "worksheets": [{"cells": cells}], "metadata": {"name": ""}}
    rest = (
        "```\n1 + 1\n```\n\n```\n2\n```\n\n```\nout\n```\n\n```\nKeyError: 'a'\n```\n\n<b>bold</b>"
    )
    assert read(json.dumps(old).encode(), "utf-8") == ("Old knots", rest)
    titled = notebook(markdown("# Heading\nwords"), title="Knots, a title")
    assert read(titled, "utf-8") == ("Knots, a title", "# Heading\nwords")


def test_notebooks_of_the_library_nbformat_are_read() -> None:
    nbformat = pytest.importorskip("nbformat")
    new = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# T\né"), nbformat.v4.new_code_cell("```\nx\n```")]
    )
    for version in (3, 4):
        data = nbformat.writes(nbformat.convert(new, version), version).encode("utf-8-sig")
        assert read(data, "utf-8") == ("T", "é\n\n````\n```\nx\n```\n````")


WRONG = [
    b"{", b"[]", b'"x"', b"{}", b'{"cells": 3}', b'{"cells": [3]}', b'{"worksheets": [[]]}', b"[" * 100_000,
    b'{"cells": [{"cell_type": "code", "source": 3}]}', b'{"cells": [{"source": [3]}]}',
    b'{"cells": [{"cell_type": "code", "source": "x", "outputs": {"a": 1}}]}',
    b'{"cells": [{"cell_type": "code", "source": "x", "outputs": [{"output_type": "stream", "text": 1}]}]}',
    b'{"cells": [{"cell_type": "markdown", "source": "x"}], "metadata": 1}',
]  # fmt: skip


@pytest.mark.parametrize("data", WRONG)
def test_damage_is_named(data: bytes) -> None:
    with pytest.raises(DataError, match="is not a Jupyter notebook, or a damaged one"):
        read(data, "utf-8")


def test_any_damage_ends_in_a_text_or_in_a_reason() -> None:
    whole = notebook(markdown("# T\nwords"), code("x", printed("3"), shown(text_plain="4")))
    random = Random(1)
    for _ in range(300):
        data = bytearray(whole)
        data[random.randrange(len(data) - 40)] = random.randrange(256)
        with contextlib.suppress(DataError):
            read(bytes(data), "utf-8")
    surrogate = read(notebook(markdown("half \ud83d of a pair")), "utf-8").text
    assert surrogate == "half ? of a pair"


def test_empty_notebooks_are_empty_files() -> None:
    assert read(b" \n", "utf-8") == ("", "")
    assert read(notebook(), "utf-8") == ("", "")
    assert read(notebook(code(""), markdown("")), "utf-8") == ("", "")


def test_a_notebook_in_a_folder_and_alone(tmp_path: Path, lmk: Lmk) -> None:
    (tmp_path / "a.ipynb").write_bytes(notebook(markdown("# Knots\nTie a bowline.")))
    (tmp_path / "b.ipynb").write_bytes(b"{")
    collection = open_collection(f"folder:{tmp_path}")
    assert list(collection.docs()) == [Doc("a.ipynb", "Tie a bowline.", "Knots")]
    assert "1 file left out (1 not a Jupyter notebook)" in collection.summary()
    alone = open_collection(str(tmp_path / "a.ipynb"))
    assert [doc.title for doc in alone.docs()] == ["Knots"]
