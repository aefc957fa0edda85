"""The description of the package on an index: the README with links and pictures that work there.

A build hook of hatchling (pyproject.toml, tool.hatch.metadata.hooks.custom). An index shows the README alone,
so a path into the repository leads nowhere. With the address of the repository (`Source` of project.urls),
paths become addresses of its files. Without it, links become their text, and pictures are left out. The
install commands name the package, not a copy of the repository, and the command of the tests is left out.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:)([^)\s]+)\)")
_COPY = (
    (re.compile(r"In a copy of this repository, install"), "Install"),
    (re.compile(r'-c constraints\.txt "\.(\[[^]]*\])"'), r'"lmkcli\1"'),
    (re.compile(r"\nRun the tests:\n\n```\n.*?\n```\n", re.DOTALL), ""),
)
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def description(readme: str, source: str) -> str:
    """Return a README for an index. `source` is the address of the repository, or empty."""

    def outside(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if path.startswith("#"):
            return link[0]
        if not source:
            return "" if picture else text
        kind = "raw" if picture else "blob"
        return f"{picture}[{text}]({source.rstrip('/')}/{kind}/HEAD/{path})"

    for of_a_copy, on_an_index in _COPY:
        readme = of_a_copy.sub(on_an_index, readme)
    pieces = _FENCE.split(readme)
    return "".join(
        piece if number % 2 else _LINK.sub(outside, piece) for number, piece in enumerate(pieces)
    )


def get_metadata_hook() -> Any:
    """Return the hook for hatchling, which is imported only in a build."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class Description(MetadataHookInterface):
        def update(self, metadata: dict[str, Any]) -> None:
            readme = (ROOT / "README.md").read_text("utf-8")
            source = metadata.get("urls", {}).get("Source", "")
            text = description(readme, source)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}

    return Description
