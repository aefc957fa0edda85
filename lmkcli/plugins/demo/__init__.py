"""A demonstration of the main steps, offline."""

from lmkcli.catalog import VerbRow

REQUIRES = ("generated",)

ROWS = (
    VerbRow(
        "demo",
        "lmkcli.plugins.demo.demo:Demo",
        "Run the main steps offline; the first answer takes seconds.",
        group="Inspect",
        examples=("lmk demo", "lmk demo /tmp/lmk-demo --full"),
    ),
)
