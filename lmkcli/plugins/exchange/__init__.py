"""Formats of other tools: imports and exports of vectors, examples and models."""

from lmkcli.catalog import ExporterRow, ImporterRow, VerbRow

_EXPORTS = "lmkcli.plugins.exchange.exports"

ROWS = (
    VerbRow(
        "import",
        "lmkcli.plugins.exchange.import_:Import",
        "Import vectors from another tool.",
        group="Prepare",
        examples=(
            "lmk import vectors.npy --from numpy --ids ids.txt -m minilm -o vectors/",
            "lmk import theirs/ --from pyserini -m minilm -o vectors/",
        ),
        makes=True,
    ),
    VerbRow(
        "export",
        "lmkcli.plugins.exchange.export:Export",
        "Export vectors, training examples or a model to other tools.",
        group="Prepare",
        examples=(
            "lmk export vectors/ --to pyserini -o theirs/",
            "lmk export -m minilm --to sentence-transformers -o model/",
        ),
        meant=(("convert", "lmk export (to other tools) or lmk import (from them)"),),
    ),
    ImporterRow(
        "numpy",
        "lmkcli.plugins.exchange.imports:open_numpy",
        "a matrix in a .npy file, and a file with an id per line",
    ),
    ImporterRow(
        "pyserini",
        "lmkcli.plugins.exchange.imports:open_pyserini",
        "a folder with `index` and `docid`, or the .jsonl files of pyserini.encode",
    ),
    ExporterRow("numpy", f"{_EXPORTS}:write_numpy", "a matrix in a .npy file, and its ids"),
    ExporterRow("parquet", f"{_EXPORTS}:write_parquet", "a table of ids and vectors"),
    ExporterRow(
        "pyserini",
        f"{_EXPORTS}:write_pyserini",
        "an index for the FaissSearcher of pyserini",
        units=("doc", "chunk"),
    ),
    ExporterRow(
        "tevatron",
        f"{_EXPORTS}:write_tevatron",
        "pickled vectors for the search of tevatron",
        units=("doc", "chunk"),
    ),
    ExporterRow(
        "tevatron-train",
        f"{_EXPORTS}:export_examples",
        "training examples for tevatron",
        takes="examples",
    ),
    ExporterRow(
        "sentence-transformers",
        "lmkcli.encoding.sentence_folder:export_model",
        "a model folder for sentence-transformers",
        takes="model",
    ),
    ExporterRow(
        "onnx", "lmkcli.plugins.exchange.onnx_graph:export_graph", "an ONNX graph", takes="model"
    ),
    ExporterRow(
        "hub",
        "lmkcli.plugins.exchange.hub_upload:upload",
        "a model folder with a card, for the Hugging Face hub",
        takes="model",
    ),
)
