"""Imports: convert vectors from other tools to a vectors folder.

The manifest of the folder records the import and, if given, the model of the vectors. Without a model the
vectors can be indexed and exported, but not searched with text.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import (
    MOST_DIMS,
    Origin,
    VectorsExecution,
    VectorsFacts,
    VectorsIdentity,
    VectorsManifest,
)
from lmkcli.artifact.outputs import rollback_on_error
from lmkcli.data.collection import WHOLE, Doc, check_id, doc_hash, map_id
from lmkcli.encoding.resolution import ResolvedRecipe, representation_of
from lmkcli.errors import DataError, LmkError, Mismatch, UsageError
from lmkcli.plugins.exchange.faiss_flat import open_flat
from lmkcli.progress import Call, Report
from lmkcli.spec.recipe import EncoderConfig, Recipe
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import Device
from lmkcli.store import parts
from lmkcli.store.doctable import DocRows
from lmkcli.store.part_writer import PartTarget, shard_writer
from lmkcli.store.parts import ArrayTypes
from lmkcli.system.input_files import MAX_RECORD_LINE, bounded_lines, check_finite, parse_json
from lmkcli.vectors.codec import open_codec
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import SPANS, Vectors

ROWS = 1000  # documents in memory at a time
UNIT = 1e-3  # a unit vector has a length of 1 ± this


class ForeignVector(NamedTuple):
    """One vector of another tool: file and line, document id, text (if known), and values.

    terms: the terms of the values, in formats that list only some dimensions.
    """

    where: str
    id: str
    text: str
    vector: NDArray[np.floating]
    terms: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class ForeignVectors:
    """Vectors of another tool. `rows()` reads them; they are stored in `dtype`, float16 or float32."""

    kind: str
    files: list[Path]
    dim: int
    dtype: str
    has_text: bool
    rows: Callable[[], Iterator[ForeignVector]]

    @property
    def codec(self) -> str:
        """The codec of the vectors folder."""
        return "fp16" if self.dtype == "float16" else "fp32"

    def texts(self, rows: list[ForeignVector], normalize: bool) -> tuple[Any, int]:
        """Return some vectors as rows, one for each text, and how many vectors were normalised.

        Raises DataError, with file and line, for the first vector that is not valid.
        """
        vectors = _matrix(rows, self.dim)
        normalized = _normalize(vectors) if normalize else 0
        return Ragged.single(vectors), normalized


class ImportCounts(NamedTuple):
    """The number of documents and dimensions, and of vectors that were scaled to unit length."""

    documents: int
    dim: int
    normalized: int


def open_foreign(source: Path, kind: str, ids: Path | None) -> ForeignVectors:
    """Open the vectors of tool `kind` at `source`; UnknownName, UsageError or DataError if impossible."""
    opener: Callable[[Path, Path | None], ForeignVectors] = catalog.IMPORTERS.load(kind)
    if not source.exists():
        raise DataError(f"{source} does not exist; give the vectors of another tool")
    return opener(source, ids)


def open_numpy(source: Path, ids: Path | None) -> ForeignVectors:
    """Return a matrix in a .npy file and a file with an id per line; or a folder with vectors.npy and
    ids.txt.
    """
    matrix = source / "vectors.npy" if source.is_dir() else source
    lines = ids or (source / "ids.txt" if source.is_dir() else None)
    if lines is None:
        raise UsageError(
            f"the document ids of the rows of {source} are missing: give a file with an id on each line, "
            "--ids FILE"
        )
    try:
        check_finite(matrix)
        with np.errstate(over="ignore"):  # of an impossible shape
            array = open_memmap(matrix, mode="r")  # np.load also opens zip files
    except OSError as error:
        raise DataError(f"{matrix} cannot be read ({error.strerror or error})") from None
    except LmkError:
        raise
    except Exception:  # the message of NumPy would recommend pickles
        raise DataError(
            f"{matrix} cannot be read as a .npy file of numbers (pickles and arrays of objects are not read)"
        ) from None
    if array.ndim != 2 or array.dtype.kind != "f" or not array.shape[1]:
        raise DataError(
            f"{matrix} contains {array.dtype} of shape {array.shape}; expected floating-point numbers "
            "of shape [documents, dimensions]"
        )
    dtype = "float16" if array.dtype == np.float16 else "float32"
    rows = _rows_with_ids(array, lines)
    return ForeignVectors("numpy", [matrix, lines], array.shape[1], dtype, False, rows)


def open_pyserini(source: Path, ids: Path | None) -> ForeignVectors:
    """Yield a folder with `index` and `docid`, or with the .jsonl files of pyserini.encode."""
    if ids is not None:
        raise UsageError(
            "--ids has no effect with --from pyserini, because these files contain ids; drop it"
        )
    if (source / "index").is_file():
        array = open_flat(source / "index")
        of_index = _rows_with_ids(array, source / "docid")
        files = [source / "index", source / "docid"]
        return ForeignVectors("pyserini", files, array.shape[1], "float32", False, of_index)
    files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source} has neither 'index' and 'docid' nor any .jsonl file of pyserini")

    def rows() -> Iterator[ForeignVector]:
        for file in files:
            for number, line in enumerate(_lines(file), start=1):
                if line.strip():
                    yield _json_row(line, f"{file} line {number}")

    first = next(rows(), None)
    if first is None or not len(first.vector):
        raise DataError(f"{source} has no vectors in it")
    return ForeignVectors("pyserini", files, len(first.vector), "float32", True, rows)


def _rows_with_ids(
    array: NDArray[np.floating], path: Path
) -> Callable[[], Iterator[ForeignVector]]:
    """Yield the rows of a matrix with the ids of a file; DataError if their numbers differ."""
    count = sum(1 for _ in _lines(path))
    if count != len(array):
        raise DataError(
            f"{path} has {count} ids for {len(array)} vectors; write one id on each line"
        )
    plain = np.asarray(array)  # faster access to single rows than np.memmap

    def rows() -> Iterator[ForeignVector]:
        for number, name in enumerate(_lines(path)):
            yield ForeignVector(f"{path} line {number + 1}", name, "", plain[number])

    return rows


def _lines(path: Path) -> Iterator[str]:
    try:
        check_finite(path)
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in bounded_lines(file, path, MAX_RECORD_LINE):
                yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as lines in UTF-8 ({error})") from None


def _json_row(line: str, where: str) -> ForeignVector:
    try:
        record = parse_json(line)
        name = next(record[key] for key in ("id", "_id", "docid") if record.get(key) is not None)
        with np.errstate(over="ignore"):
            vector = np.asarray(record["vector"], np.float32)
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, StopIteration):
        raise DataError(
            f"{where}: this is not a line of pyserini.encode, a JSON object with 'id' and 'vector'"
        ) from None
    if vector.ndim != 1:
        raise DataError(f"{where}: 'vector' is not a list of numbers")
    return ForeignVector(where, str(name), str(record.get("contents") or ""), vector)


def unknown_recipe(unit: str = "doc") -> Recipe:
    """Return the recipe of vectors from an unknown model."""
    side = EncoderConfig("", "", "", pool="", normalize=False, similarity="dot")
    return Recipe(replace(side, unit=unit), side)


def check_width(incoming: ForeignVectors, resolved: ResolvedRecipe) -> None:
    """UsageError if the model makes vectors of another kind, Mismatch for another number of dimensions."""
    made, kind = (
        representation_of(resolved.recipe.doc.pool).kind,
        catalog.CODECS[incoming.codec].rows,
    )
    if made != kind:
        raise UsageError(
            f"--from {incoming.kind} reads {kind} vectors, and {resolved.folder.name} makes {made} ones "
            f"(--pool {resolved.recipe.doc.pool}); give the model of these vectors with -m"
        )
    from lmkcli.encoding.encoder import open_query_encoder  # here: torch takes seconds to import

    settings = EncodeSettings(dtype="fp32", device=Device("cpu"))
    dim = open_query_encoder(resolved.recipe.query, resolved.folder, settings).dim
    if dim != incoming.dim:
        raise Mismatch(
            f"{incoming.files[0]} has vectors of {incoming.dim} dimensions, but {resolved.folder.name} "
            f"makes {dim}; give the model of these vectors with -m"
        )


def run_import(
    incoming: ForeignVectors, recipe: Recipe, folder: Path, map_ids: bool, report: Report
) -> ImportCounts:
    """Write the vectors to `folder`, after the existing parts. An error leaves no output.

    With unit chunk, successive rows with the same id are the chunks of a document; their positions in its
    text are unknown. DataError, with file and line, for ids that are empty, repeated or contain white
    space, and for vectors of another width or with values that are not finite. Mismatch if the folder has
    other contents.
    """
    if incoming.dim > MOST_DIMS:
        raise DataError(
            f"{incoming.files[0]} has vectors of {incoming.dim:,} dimensions, and lmk stores at most "
            f"{MOST_DIMS:,}"
        )
    described = _manifest(incoming, recipe, report.call)
    with rollback_on_error(folder):
        manifest.claim(folder, described)
        normalized = 0
        if not parts.is_finished(folder, WHOLE):
            normalized = _write(incoming, (folder, recipe.doc), map_ids, report)
    opened: Vectors[Any] = Vectors(folder)
    return ImportCounts(opened.rows, incoming.dim, normalized)


def _manifest(incoming: ForeignVectors, recipe: Recipe, call: Call) -> VectorsManifest:
    stats = [(file, file.stat()) for file in incoming.files]
    stamp = {file.name: [stat.st_size, stat.st_mtime_ns] for file, stat in stats}
    return VectorsManifest(
        identity=VectorsIdentity(
            recipe=recipe,
            dim=incoming.dim,
            text={"fields": "contents"} if incoming.has_text else {},
            imported=incoming.kind,
        ),
        execution=VectorsExecution(
            source=Origin(name=str(incoming.files[0].parent), stamp=stamp),
            shards=1,
            dtype="fp32",  # for queries; the dtype of the documents is unknown
            store_dtype=incoming.codec,
            store_text=incoming.has_text,
        ),
        facts=VectorsFacts(**manifest.environment(call), models=recipe.located()),
    )


def _write(
    incoming: ForeignVectors, target: tuple[Path, EncoderConfig], map_ids: bool, report: Report
) -> int:
    """Write the rows that are not stored yet; return the number of vectors that were normalised."""
    folder, side = target
    chunked = side.unit == "chunk"
    spans: ArrayTypes = SPANS if chunked else {}
    codec = open_codec(incoming.codec)
    arrays: ArrayTypes = {**codec.types(incoming.dim), **spans}
    foreign = incoming.rows()
    documents = (
        (list(same) for _, same in groupby(foreign, lambda row: row.id))
        if chunked
        else ([row] for row in foreign)
    )
    normalized = 0
    with shard_writer(PartTarget(folder, WHOLE, arrays, incoming.has_text), report) as writer:
        remaining = islice(documents, writer.row, None)
        while batch := list(islice(remaining, ROWS)):
            rows = [row for doc in batch for row in doc]
            texts, scaled = incoming.texts(rows, side.normalize)
            normalized += scaled
            report.progress(writer.row + len(batch), None, "documents" if chunked else "vectors")
            no_spans = {name: np.zeros((len(rows), 2), np.int32) for name in spans}
            writer.append(
                _doc_rows(batch, map_ids),
                {**codec.coded(texts, writer.array_rows), **no_spans},
                rows[0].where.rsplit(" line ", 1)[0],
            )
    return normalized


def _doc_rows(batch: list[list[ForeignVector]], map_ids: bool) -> DocRows:
    """Return the documents of lists of rows."""
    docs = [_doc(rows[0], map_ids) for rows in batch]
    vectors = np.array([len(rows) for rows in batch])
    return DocRows(docs, [doc_hash(doc) for doc in docs], {"vectors": vectors})


def _doc(row: ForeignVector, map_ids: bool) -> Doc:
    """Return the document of a row. Raises DataError for an id that a TREC run cannot contain."""
    if row.id.split() != [row.id] and row.id and not map_ids:
        raise DataError(
            f"{row.where}: the id {row.id!r} contains white space, which TREC runs do not allow; "
            "--map-ids replaces it by '_'"
        )
    return Doc(check_id(map_id(row.id) if map_ids else row.id, row.where), row.text)


def _normalize(vectors: NDArray[np.float32]) -> int:
    """Scale vectors to unit length in place, except zero and unit vectors; return their number."""
    lengths = np.linalg.norm(vectors, axis=1)
    scaled = np.flatnonzero((abs(lengths - 1) > UNIT) & (lengths > 0))
    vectors[scaled] /= lengths[scaled, None]
    return len(scaled)


def _matrix(rows: list[ForeignVector], dim: int) -> NDArray[np.float32]:
    """[rows, dim] float32; DataError for the first row of another width or with NaN or infinity."""
    for row in rows:
        if len(row.vector) != dim:
            raise DataError(
                f"{row.where}: {len(row.vector)} dimensions, but the first vector has {dim}; "
                "all vectors of a model have the same width"
            )
    with np.errstate(over="ignore"):
        matrix = np.stack([row.vector for row in rows]).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(bad):
        raise DataError(
            f"{rows[bad[0]].where}: the vector has values that are not finite in float32"
        )
    return matrix
