"""Exports of sparse vectors: the JSON vectors that Anserini indexes (JsonVectorCollection)."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ExportFacts, ExportIdentity, ExportManifest
from lmkcli.artifact.outputs import write_once
from lmkcli.encoding.encoder import check_folder
from lmkcli.models.lookup import read_model
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.plugins.exchange.export import ExportCounts
from lmkcli.plugins.sparse.sparse_vectors import SparseRows, open_sparse
from lmkcli.progress import Report
from lmkcli.vectors.stored import Vectors

ANSERINI = "anserini-json"
SCALE = 100  # Anserini's impacts are whole numbers: the weight times 100, rounded


def write_json(source: Path, prepare: Callable[[], Path], report: Report) -> ExportCounts:
    """Export a folder of sparse vectors. `prepare` returns the output folder, once the input is open."""
    vectors = open_sparse(source)
    folder = prepare()
    with report.step("export") as job:
        rows = export_sparse(vectors, folder, job)
    return ExportCounts(vectors.rows, rows, vectors.dim)


def export_sparse(vectors: Vectors[SparseRows], folder: Path, report: Report = Report()) -> int:
    """Write `docs.jsonl`, a line for each vector, and return the number of vectors.

    A line has `id`, `contents` and `vector`: token -> impact. Terms with an impact of 0 are left out. The
    chunks of a document are 'id#0', 'id#1' and so on. A folder with the same export is left unchanged.
    Raises DataError if the tokenizer of the model is missing, Mismatch if it is another one.
    """
    side = vectors.recipe.doc
    model = read_model(side.model, side.revision or None, offline=True)
    check_folder(side, model)
    tokens = open_tokenizer(model, side).tokens(np.arange(vectors.dim, dtype=np.int32))
    described = ExportManifest(
        identity=ExportIdentity(to=ANSERINI, vectors=vectors.digest()),
        facts=ExportFacts(
            **manifest.environment(report.call), made_of=str(vectors.folder.absolute())
        ),
    )

    def write(growing: Path) -> None:
        done = 0
        with open(growing / "docs.jsonl", "w", encoding="utf-8") as file:
            for docs, encoded, _ in vectors.batches():
                impacts = np.rint(encoded.weights.astype(np.float64) * SCALE).astype(np.int64)
                for number, doc in enumerate(docs.docs):
                    first, stop = encoded.starts[number : number + 2].tolist()
                    for vector in range(first, stop):
                        own = slice(*encoded.offsets[vector : vector + 2])
                        pairs = zip(encoded.terms[own].tolist(), impacts[own].tolist(), strict=True)
                        name = doc.id if vectors.single else f"{doc.id}#{vector - first}"
                        weights = {tokens[term]: impact for term, impact in pairs if impact}
                        record = {"id": name, "contents": "", "vector": weights}
                        file.write(json.dumps(record, ensure_ascii=False) + "\n")
                done += len(docs)
                report.progress(done, vectors.rows, "documents")

    write_once(folder, described, write)
    return vectors.total
