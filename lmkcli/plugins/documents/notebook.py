"""Jupyter notebooks (.ipynb, formats 2 to 4): their cells and short outputs as Markdown."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from lmkcli.data.filetext import FileText, decode_text
from lmkcli.errors import DataError
from lmkcli.plugins.documents.plain_text import markdown_document
from lmkcli.system.input_files import parse_json

SHORT = 1000  # characters; a longer output, such as a log of a training, is left out
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours of a terminal
_FENCES = re.compile(r"`{3,}")
# What Python prints for an object that has no text of its own: <Figure size 640x480 with 1 Axes>.
_OBJECT = re.compile(r"\[?<[\w.]+ (?:at 0x[^<>]*|size [^<>]*|object[^<>]*)>[\],]?")


def read(data: bytes, encoding: str) -> FileText:
    """Read the cells as Markdown, with code in fences; the title is in the metadata, or the first heading.

    Outputs are text if they have at most SHORT characters. Pictures, warnings and tracebacks are left out.
    """
    if not data.strip():
        return FileText("", "")
    try:
        notebook = parse_json(decode_text(data, "utf-8"))
        cells = chain.from_iterable(map(_cell, _cells(notebook)))
        text = "\n\n".join(filter(None, (each.strip("\n") for each in cells)))
        title = notebook.get("metadata", {}).get("title", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is not a Jupyter notebook, or a damaged one ({error})") from None
    content = markdown_document(_clean(text))
    if not isinstance(title, str) or not title.strip():
        return content
    return markdown_document(_clean(text), " ".join(_clean(title).split()))


def _cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells; those of the formats before 4 are in worksheets."""
    if "worksheets" in notebook:
        return [cell for sheet in notebook["worksheets"] for cell in sheet["cells"]]
    cells: list[dict[str, Any]] = notebook["cells"]
    return cells


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the blocks of Markdown of a cell."""
    kind = cell["cell_type"]
    if kind == "code":
        yield _fenced(_joined(cell["source"] if "source" in cell else cell["input"]))
        for output in cell.get("outputs", []):
            yield _output(output)
    elif kind == "heading":  # before format 4
        yield f"{'#' * int(cell.get('level', 1))} {_joined(cell['source'])}"
    else:
        yield _joined(cell["source"])


def _output(output: dict[str, Any]) -> str:
    """Return an output as Markdown; '' if it is long, a warning, or only for the eye."""
    kind = output["output_type"]
    if kind in ("error", "pyerr"):
        return _fenced(f"{output.get('ename', '')}: {output.get('evalue', '')}")
    if kind == "stream":
        warning = "stderr" in (output.get("name"), output.get("stream"))
        return "" if warning else _short(_joined(output["text"]))
    forms = output.get("data", output)
    if "text/markdown" in forms:
        text = _joined(forms["text/markdown"])
        return text if len(text) <= SHORT else ""
    text = _joined(forms.get("text/plain", forms.get("text", "")))
    return "" if _OBJECT.fullmatch(text.strip()) else _short(text)


def _short(text: str) -> str:
    text = _ESCAPES.sub("", text)
    return _fenced(text) if len(text) <= SHORT else ""


def _fenced(code: str) -> str:
    """Code in a fence, so that its comments are no headings; '' without code."""
    code = _clean(code).strip("\n")
    if not code.strip():
        return ""
    fence = max(("`" * 3, *(f"{each}`" for each in _FENCES.findall(code))), key=len)
    return f"{fence}\n{code}\n{fence}"


def _joined(lines: str | list[str]) -> str:
    """Return a text, which a notebook may store as a list of lines."""
    return lines if isinstance(lines, str) else "".join(lines)


def _clean(text: str) -> str:
    """Return the text without NULs, and with '?' for halves of characters, which JSON can contain."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
