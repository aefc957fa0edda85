"""A hook of mkdocs: the pages of the repository as pages of the site, with the same relative links.

Five things differ between them. docs/README.md is the first page, as on every forge, and docs/index.md is
the page of `lmk index`, where mkdocs would take index.md for the first. Pages and files outside docs/ that
are linked to (CONTRIBUTING.md, examples/ …) belong to the site too, under their path from the root; notebooks
among them are pages as well. No line ends within a flag. And no page may load anything from another host.
"""

import json
import os.path
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "justfile",
    "benchmarks/*.md",
    "benchmarks/*.py",
    "benchmarks/*.svg",
    "examples",
    "tests/mteb_task.py",
)
NOTEBOOK = ".ipynb"
_LINK = re.compile(r"(\]\()([^)\s:#]+)([)#])")
_CODE = re.compile(r"<code>[^<]+</code>")
_FLAG = re.compile(r"--[a-z][a-z-]*")
_FOREIGN = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=\"?(?:https?:)?//|<link[^>]+stylesheet[^>]+//"
)


def on_files(files: Files, config: Any) -> Files:
    """Give the two pages named index their places, and add what lies outside docs/."""
    command = files.get_file_from_path("index.md")
    if command is not None:
        files.remove(command)
    docs, site = config["docs_dir"], config["site_dir"]
    files.append(File("index.md", docs, site, False, dest_uri="lmk-index.html"))
    files.append(File("README.md", docs, site, False, inclusion=InclusionLevel.INCLUDED))
    for path in _outside():
        notebook = path.startswith("benchmarks/")  # pages link to it; the navigation does not
        level = InclusionLevel.NOT_IN_NAV if notebook else InclusionLevel.INCLUDED
        files.append(File(path, str(ROOT), site, False, inclusion=level))
        if path.endswith(NOTEBOOK):
            page = _page_of(ROOT / path)
            files.append(File.generated(config, _as_page(path), content=page))
    return files


def _as_page(path: str) -> str:
    """Where the site has a notebook as a page."""
    return path.removesuffix(NOTEBOOK) + ".md"


def _page_of(notebook: Path) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed when it was saved."""
    blocks = []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join("".join(each.get("text", "")) for each in cell.get("outputs", ()))
        blocks += [f"```text\n{printed.rstrip()}\n```"] if printed else []
    blocks.append(f"This page is a notebook: [{notebook.name}]({notebook.name}).")
    return "\n\n".join(blocks) + "\n"


def _outside() -> list[str]:
    """Paths from the root of every file that OUTSIDE names, and in the folders that it names."""
    found = []
    for path in (path for name in OUTSIDE for path in sorted(ROOT.glob(name))):
        inside = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        found += [p.relative_to(ROOT).as_posix() for p in inside if "__pycache__" not in p.parts]
    return found


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its links, which lead through the repository, leading through the site."""
    source = page.file.src_uri
    if page.file.generated_by:  # made of a file beside it, to which it links
        return markdown
    outside = (ROOT / source).is_file() and not (ROOT / "docs" / source).is_file()
    here = posixpath.dirname(source if outside else f"docs/{source}")

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[2]))
        inside = target.removeprefix("docs/")
        inside = _as_page(inside) if inside.endswith(NOTEBOOK) else inside
        return match[1] + os.path.relpath(inside, posixpath.dirname(source) or ".") + match[3]

    return _LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """The page with its flags kept whole: browsers break lines after a hyphen."""
    return _CODE.sub(lambda code: _FLAG.sub(r'<span class="flag">\g<0></span>', code[0]), html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The page as it is; an error if it would load a script, a picture or a style from elsewhere."""
    found = _FOREIGN.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output
