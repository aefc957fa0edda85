"""Imports of sparse vectors: the JSON vectors that Anserini indexes (JsonVectorCollection).

A line has `id`, `vector`, which maps the tokens of a vocabulary to their weights, and perhaps `contents`. The
weights of such files are usually impacts: whole numbers, 100 times the weights of the model, rounded.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmkcli.data.records import FileFormat, open_records
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import ResolvedRecipe, representation_of
from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.exchange.imports import ForeignVector, ForeignVectors
from lmkcli.plugins.sparse.sparse_exports import ANSERINI, SCALE
from lmkcli.plugins.sparse.sparse_settings import ScaleSettings
from lmkcli.plugins.sparse.sparse_vectors import SparseRows
from lmkcli.spec.settings import EncodeSettings, Settings
from lmkcli.spec.values import Device

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_LARGEST = float(np.finfo(np.float32).max)
_CHUNK = re.compile(r"(.*)#([0-9]{1,9})", re.DOTALL)  # the id of a chunk


class SparseForeign(ForeignVectors):
    """Sparse vectors of another tool."""

    @property
    def codec(self) -> str:
        """The codec of the vectors folder."""
        return "sparse"

    def texts(self, rows: list[ForeignVector], normalize: bool) -> tuple[SparseRows, int]:
        """Return some vectors as rows, and 0."""
        lengths = np.array([len(row.vector) for row in rows], np.int64)
        terms = np.concatenate([row.terms for row in rows if row.terms is not None])
        weights = np.concatenate([row.vector for row in rows], dtype=np.float32)
        vectors = SparseRows.of(lengths, terms, weights, np.ones_like(lengths), self.dim)
        return vectors.normalized() if normalize else vectors, 0


def read_json_vectors(source: Path, resolved: ResolvedRecipe, operation: Settings) -> SparseForeign:
    """Open JSON vectors with the settings of an import."""
    return open_json_vectors(source, resolved, operation.part(ScaleSettings).scale)


def open_json_vectors(
    source: Path, resolved: ResolvedRecipe, scale: float | None = None
) -> SparseForeign:
    """Open JSON vectors. The vocabulary of the model gives the terms their numbers.

    The weights of the file are divided by `scale`; None means SCALE, for whole numbers only. With unit chunk,
    the chunks of a document are successive lines with the ids 'id#0', 'id#1' and so on.

    Raises UsageError for a model of dense vectors. Raises DataError if there is no line, or no line with a
    term.
    """
    side = resolved.recipe.doc
    if representation_of(side.pool).codec != "sparse":
        raise UsageError(
            f"--from {ANSERINI} reads sparse vectors, and {resolved.folder.name} makes dense ones (--pool "
            f"{side.pool}); give the model of these vectors with -m, and --pool splade if it has no pooling"
        )
    if not source.exists():
        raise DataError(f"{source} does not exist; give the vectors of another tool")
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.name.endswith(SUFFIXES))
    settings = EncodeSettings(dtype="fp32", device=Device("cpu"))
    encoder = open_encoder(side, resolved.folder, settings)
    tokens = encoder.tokenizer.tokens(np.arange(encoder.dim, dtype=np.int32))
    vocabulary = {token: term for term, token in enumerate(tokens)}
    reader = _Lines(files, vocabulary, resolved.folder.name, scale, side.unit == "chunk")
    first = next((row for row in reader() if len(row.vector)), None)
    if first is None:
        raise DataError(
            f"{source} has no sparse vector with a term; give a file of JSON lines with 'id' and 'vector', "
            f"or a folder of {', '.join(SUFFIXES)} files"
        )
    return SparseForeign(ANSERINI, files, encoder.dim, "float32", bool(first.text), reader)


@dataclass(frozen=True)
class _Lines:
    """Reads the lines of files."""

    files: list[Path]
    vocabulary: dict[str, int]
    model: str
    scale: float | None
    chunked: bool

    def __call__(self) -> Iterator[ForeignVector]:
        """Yield the vectors in the order of the files. Raises DataError with file and line."""
        document, chunks = "", 0  # the document of the line before, and its number of chunks
        for file in self.files:
            for where, record in open_records(str(file), given=FileFormat(kind="jsonl")):
                row = self._row(record, where)
                if self.chunked:
                    matched = _CHUNK.fullmatch(row.id)
                    name, number = (matched[1], int(matched[2])) if matched else (row.id, -1)
                    expected = chunks if name == document else 0
                    if number != expected:
                        raise DataError(
                            f"{where}: expected the id '{name}#{expected}' instead of '{row.id}'; with "
                            "--unit chunk, the chunks of a document are successive lines, numbered from 0"
                        )
                    document, chunks = name, number + 1
                    row = row._replace(id=name)
                yield row

    def _row(self, record: dict[str, Any], where: str) -> ForeignVector:
        name, vector = record.get("id"), record.get("vector")
        if name is None or not isinstance(vector, dict):
            raise DataError(
                f"{where}: this is no sparse vector, a JSON object with 'id' and with 'vector', an object of "
                "terms and weights"
            )
        found = [self.vocabulary.get(term, -1) for term in vector]
        if -1 in found:
            unknown = list(vector)[found.index(-1)]
            raise DataError(
                f"{where}: the term {unknown!r} is not in the vocabulary of {self.model}; give the model of "
                "these vectors with -m"
            )
        for term, weight in vector.items():
            if type(weight) not in (int, float) or not 0 <= weight <= _LARGEST:
                raise DataError(
                    f"{where}: the weight of the term {term!r} is {str(weight)[:40]}; weights are finite "
                    "numbers of at least 0, so correct the line"
                )
            if self.scale is None and weight != int(weight):
                raise DataError(
                    f"{where}: the weight of the term {term!r} is {weight}, and impacts (weights "
                    f"times {SCALE}) are whole numbers; give --scale 1 to import the weights unchanged"
                )
        terms = np.array(found, np.int32)
        weights = np.array([*vector.values()], np.float64) / (self.scale or SCALE)
        weights = weights.astype(np.float32)
        kept = np.flatnonzero(weights)
        order = kept[np.argsort(terms[kept])]
        text = str(record.get("contents") or "")
        return ForeignVector(where, str(name), text, weights[order], terms[order])
