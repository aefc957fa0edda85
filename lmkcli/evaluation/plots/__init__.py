"""Plots, plain data to a file: a function each kind of figure; what they share is in `looks`."""

from lmkcli.evaluation.plots.bar_charts import bars, histogram, query_differences
from lmkcli.evaluation.plots.line_charts import curve, curves, panels
from lmkcli.evaluation.plots.maps import heatmap, scatter

__all__ = [
    "bars",
    "curve",
    "curves",
    "heatmap",
    "histogram",
    "panels",
    "query_differences",
    "scatter",
]
