"""Grids of experiments: cells, their shared steps, execution, scores and tables."""

from lmkcli.catalog import DescriberRow, VerbRow

ROWS = (
    VerbRow(
        "grid",
        "lmkcli.plugins.grid.grid:Grid",
        "Run all combinations of settings; print one table.",
        group="Evaluate",
        examples=(
            "lmk grid grid.toml -o results/ --dry-run",
            "lmk grid grid.toml -o results/ -j 2 -f latex",
        ),
        meant=(("sweep", "lmk grid"),),
    ),
    DescriberRow(
        "results of a grid",
        "lmkcli.plugins.grid.grid:described",
        "the state of a grid, or the steps of a cell",
        marker="plan.json",
    ),
)
