"""Figures, and analyses of models, vectors and collections: attention, locality, lengths, maps."""

from lmkcli.catalog import PlotRow, ProjectionRow, VerbRow

_PLOTS = "lmkcli.plugins.analysis.plots"


def _plot(name: str, function: str, text: str) -> PlotRow:
    return PlotRow(name, f"{_PLOTS}:{function}", text, "plot", "matplotlib")


ROWS = (
    VerbRow(
        "plot",
        "lmkcli.plugins.analysis.plot:Plot",
        "Draw curves of scores, or of a training.",
        group="Evaluate",
        examples=(
            "lmk plot scores.jsonl --x gran -m nDCG@10 -o curve.svg",
            "lmk plot model/ -o training.svg",
        ),
    ),
    VerbRow(
        "analyze",
        "lmkcli.plugins.analysis.analyze:Analyze",
        "Inspect models and vectors: attention, lengths, maps.",
        group="Evaluate",
        examples=(
            "lmk analyze attention ./mydocs -m minilm --pool cls --pool lmk --gran 32 -o attention.svg",
            "lmk analyze map vectors/ --by chunk -o map.svg",
        ),
        meant=(("visualize", "lmk analyze map"),),
    ),
    _plot("bars", "bars", "means with intervals"),
    _plot("curve", "curve", "scores over a parameter"),
    _plot("curves", "curves", "curves by measure"),
    _plot("panels", "panels", "curves of a training"),
    _plot("differences", "query_differences", "differences by query"),
    _plot("histogram", "histogram", "histogram"),
    _plot("scatter", "scatter", "map of vectors"),
    _plot("heatmap", "heatmap", "matrix of cosines"),
    ProjectionRow("pca", "lmkcli.plugins.analysis.maps:pca", "the two principal components"),
    ProjectionRow(
        "tsne",
        "lmkcli.plugins.analysis.tsne_projection:tsne",
        "t-SNE projection",
        "umap",
        "sklearn",
    ),
    ProjectionRow(
        "umap", "lmkcli.plugins.analysis.umap_projection:umap", "UMAP projection", "umap", "umap"
    ),
)
