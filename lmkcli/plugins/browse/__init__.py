"""Pages to explore and compare runs."""

from lmkcli.catalog import VerbRow

ROWS = (
    VerbRow(
        "browse",
        "lmkcli.plugins.browse.browse:Browse",
        "Write a page to explore and compare runs.",
        group="Evaluate",
        examples=(
            "lmk browse bm25.trec dense.trec -o report.html",
            "lmk browse run.trec --qrels qrels.txt --collection ./mydocs -o report.html",
        ),
    ),
)
