"""Importing: vectors that another tool made become a vectors folder.

Their manifest says that they were imported, and from which model if that was told; without one nothing
can encode a query for them, but they can be indexed and exported.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli import manifest
from lmkcli.data.collection import WHOLE, Doc, check_id, map_id
from lmkcli.data.digest import doc_hash
from lmkcli.encoding.resolving import Resolved
from lmkcli.errors import DataError, LmkError, Mismatch, UnknownName, UsageError
from lmkcli.exchange.flatfile import open_flat
from lmkcli.manifest import Manifest
from lmkcli.progress import Call, Report
from lmkcli.reading import LONG_LINE, bounded_lines, check_finite, parsed
from lmkcli.recipe import EncoderConfig, Recipe
from lmkcli.settings import EncodeSettings
from lmkcli.store import parts
from lmkcli.store.arrays import ArrayTypes
from lmkcli.store.doctable import DocRow
from lmkcli.store.outputs import rollback_on_error
from lmkcli.store.part_writer import Target, shard_writer
from lmkcli.store.vectors import Vectors

ROWS = 1000  # at a time
UNIT = 1e-3  # how far from 1 the length of a unit vector may be


class Row(NamedTuple):
    """One document that comes in: where it stands, its id, its text if there is one, its vector."""

    where: str
    id: str
    text: str
    vector: NDArray[np.floating]


@dataclass(frozen=True)
class Incoming:
    """Vectors of another tool: `rows()` reads them; `dtype` is float16 or float32, as they are stored."""

    kind: str
    files: list[Path]
    dim: int
    dtype: str
    has_text: bool
    rows: Callable[[], Iterator[Row]]


class Imported(NamedTuple):
    """What came in, and how many vectors were brought to unit length on the way."""

    documents: int
    dim: int
    normalized: int


def open_incoming(source: Path, kind: str, ids: Path | None) -> Incoming:
    """What is at `source`, written by `kind`. UnknownName, UsageError or DataError if that cannot be."""
    if kind not in READERS:
        raise UnknownName("import format", kind, READERS)
    if not source.exists():
        raise DataError(f"there is no {source}; give the vectors that another tool wrote")
    return READERS[kind](source, ids)


def _open_numpy(source: Path, ids: Path | None) -> Incoming:
    """A matrix in a .npy file and its ids, one a line; or a folder with vectors.npy and ids.txt."""
    matrix = source / "vectors.npy" if source.is_dir() else source
    lines = ids or (source / "ids.txt" if source.is_dir() else None)
    if lines is None:
        raise UsageError(
            f"whose are the rows of {source}? Give a file with an id a line: --ids FILE"
        )
    try:
        check_finite(matrix)
        array = np.load(matrix, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{matrix} cannot be read ({error.strerror or error})") from None
    except LmkError:
        raise
    except Exception:  # numpy's own message would advise loading pickles
        raise DataError(
            f"{matrix} cannot be read as a .npy file of numbers (pickles and arrays of objects never are)"
        ) from None
    if array.ndim != 2 or array.dtype.kind != "f" or not array.shape[1]:
        raise DataError(
            f"{matrix} holds {array.dtype} of shape {array.shape}; vectors are floating-point rows "
            "[documents, dimensions]"
        )
    dtype = "float16" if array.dtype == np.float16 else "float32"
    named = _named(array, lines)
    return Incoming("numpy", [matrix, lines], array.shape[1], dtype, False, named)


def _open_pyserini(source: Path, ids: Path | None) -> Incoming:
    """A folder with `index` and `docid`, or with the .jsonl files that pyserini.encode writes."""
    if ids is not None:
        raise UsageError(
            "--ids has no effect with --from pyserini, whose files name their rows; drop it"
        )
    if (source / "index").is_file():
        array = open_flat(source / "index")
        named = _named(array, source / "docid")
        files = [source / "index", source / "docid"]
        return Incoming("pyserini", files, array.shape[1], "float32", False, named)
    files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source} has neither 'index' and 'docid' nor any .jsonl file of pyserini")

    def rows() -> Iterator[Row]:
        return (row for file in files for row in _json_rows(file))

    first = next(rows(), None)
    if first is None or not len(first.vector):
        raise DataError(f"{source} has no vectors in it")
    return Incoming("pyserini", files, len(first.vector), "float32", True, rows)


READERS: dict[str, Callable[[Path, Path | None], Incoming]] = {
    "numpy": _open_numpy,
    "pyserini": _open_pyserini,
}


def _named(array: NDArray[np.floating], path: Path) -> Callable[[], Iterator[Row]]:
    """Rows of a matrix with the ids of a file beside it; DataError when their numbers differ."""
    count = sum(1 for _ in _lines(path))
    if count != len(array):
        raise DataError(f"{path} has {count} ids for {len(array)} vectors; a line each is needed")
    plain = np.asarray(array)  # rows of a memory map are slow to make

    def rows() -> Iterator[Row]:
        for number, name in enumerate(_lines(path)):
            yield Row(f"{path} line {number + 1}", name, "", plain[number])

    return rows


def _lines(path: Path) -> Iterator[str]:
    try:
        check_finite(path)
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in bounded_lines(file, path, LONG_LINE):
                yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as lines in UTF-8 ({error})") from None


def _json_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield _json_row(line, f"{path} line {number}")


def _json_row(line: str, where: str) -> Row:
    try:
        record = parsed(line)
        name = next(record[key] for key in ("id", "_id", "docid") if record.get(key) is not None)
        with np.errstate(over="ignore"):
            vector = np.asarray(record["vector"], np.float32)
    except (ValueError, TypeError, AttributeError, KeyError, StopIteration):
        raise DataError(
            f"{where}: this is not what pyserini.encode writes, one JSON object with 'id' and 'vector'"
        ) from None
    if vector.ndim != 1:
        raise DataError(f"{where}: 'vector' is no list of numbers")
    return Row(where, str(name), str(record.get("contents") or ""), vector)


def unknown_recipe(unit: str = "doc") -> Recipe:
    """The recipe of vectors of which nobody said what made them."""
    side = EncoderConfig("", "", "", pool="", normalize=False, similarity="dot")
    return Recipe(replace(side, unit=unit), side)


def check_width(incoming: Incoming, resolved: Resolved) -> None:
    """Mismatch when the model that shall encode the queries makes vectors of another width."""
    from lmkcli.encoding.encoder import open_encoder  # here, after what torch is not needed for

    settings = EncodeSettings(dtype="fp32", device="cpu")
    dim = open_encoder(resolved.recipe.query, resolved.folder, settings).dim
    if dim != incoming.dim:
        raise Mismatch(
            f"{incoming.files[0]} has vectors of {incoming.dim} dimensions, and {resolved.folder.name} "
            f"makes {dim}; give the model that made them with -m"
        )


def run_import(
    incoming: Incoming, recipe: Recipe, folder: Path, map_ids: bool, report: Report
) -> Imported:
    """Write `folder`, going on after the parts that are there; a refusal leaves nothing claimed.

    With unit chunk the rows of one id, one after another, are the chunks of a document; where they
    stand in its text is not known. DataError, with the place, for ids that are empty, repeated or have
    white space, and for vectors of another width or with values that are not finite; Mismatch when
    something else is in the folder.
    """
    described = _manifest(incoming, recipe, report.call)
    with rollback_on_error(folder):
        manifest.claim(folder, described)
        normalized = 0
        if parts.done_rows(folder, WHOLE) is None:
            normalized = _write(incoming, (folder, recipe.doc), map_ids, report)
    return Imported(Vectors(folder).rows, incoming.dim, normalized)


def _manifest(incoming: Incoming, recipe: Recipe, call: Call) -> Manifest:
    identity = {
        "recipe": recipe.identity(),
        "dim": incoming.dim,
        "text": {"fields": "contents"} if incoming.has_text else {},
        "imported": incoming.kind,
    }
    stats = [(file, file.stat()) for file in incoming.files]
    stamp = {file.name: [stat.st_size, stat.st_mtime_ns] for file, stat in stats}
    execution = {
        "source": {"name": str(incoming.files[0].parent), "stamp": stamp},
        "shards": 1,
        "dtype": "fp32",  # in which queries are encoded; of the documents nobody knows
        "store_dtype": "fp16" if incoming.dtype == "float16" else "fp32",
        "store_text": incoming.has_text,
    }
    facts = {**manifest.environment(call), "models": recipe.located()}
    return Manifest("vectors", identity, execution, facts)


def _write(
    incoming: Incoming, what: tuple[Path, EncoderConfig], map_ids: bool, report: Report
) -> int:
    """Write the rows that are not there yet; returns how many vectors were brought to unit length."""
    folder, side = what
    many = side.unit == "chunk"
    spans: ArrayTypes = {"spans": ("int32", (2,))} if many else {}
    arrays: ArrayTypes = {"vectors": (incoming.dtype, (incoming.dim,)), **spans}
    normalized = 0
    with shard_writer(Target(folder, WHOLE, arrays, incoming.has_text), report) as writer:
        for docs in _batched(_documents(incoming.rows(), many), writer.row):
            rows = [row for doc in docs for row in doc]
            vectors = _matrix(rows, incoming.dim)
            normalized += _to_unit_length(vectors) if side.normalize else 0
            report.progress(writer.row + len(docs), None, "documents" if many else "vectors")
            stored = {"vectors": vectors.astype(incoming.dtype)}
            nowhere = {name: np.zeros((len(rows), 2), np.int32) for name in spans}
            writer.append(
                [_doc_row(doc, map_ids) for doc in docs],
                {**stored, **nowhere},
                rows[0].where.rsplit(" line ", 1)[0],
            )
    return normalized


def _doc_row(rows: list[Row], map_ids: bool) -> DocRow:
    doc = Doc(_checked(rows[0], map_ids).id, rows[0].text)
    return DocRow(doc, doc_hash(doc), 0, 0, len(rows))


def _documents(rows: Iterator[Row], many: bool) -> Iterator[list[Row]]:
    """The rows of each document: one, or all that follow one another with the same id."""
    if not many:
        return ([row] for row in rows)
    return (list(same) for _, same in groupby(rows, lambda row: row.id))


def _to_unit_length(vectors: NDArray[np.float32]) -> int:
    """Scale, in place, those that are not of length 1 and not zero; returns how many there were."""
    lengths = np.linalg.norm(vectors, axis=1)
    off = np.flatnonzero((abs(lengths - 1) > UNIT) & (lengths > 0))
    vectors[off] /= lengths[off, None]
    return len(off)


def _batched(docs: Iterator[list[Row]], skip: int) -> Iterator[list[list[Row]]]:
    rest = islice(docs, skip, None)
    while held := list(islice(rest, ROWS)):
        yield held


def _checked(row: Row, map_ids: bool) -> Row:
    if row.id.split() != [row.id] and row.id and not map_ids:
        reason = "has white space, which no TREC run can hold; --map-ids makes it '_'"
        raise DataError(f"{row.where}: the id {row.id!r} {reason}")
    return row._replace(id=check_id(map_id(row.id) if map_ids else row.id, row.where))


def _matrix(rows: list[Row], dim: int) -> NDArray[np.float32]:
    """[rows, dim] float32; DataError for the first row of another width or with NaN or infinity."""
    for row in rows:
        if len(row.vector) != dim:
            raise DataError(
                f"{row.where}: {len(row.vector)} dimensions, but the first vector has {dim}; "
                "one model makes vectors of one width"
            )
    with np.errstate(over="ignore"):
        matrix = np.stack([row.vector for row in rows]).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(bad):
        raise DataError(
            f"{rows[bad[0]].where}: the vector has values that are not finite in float32"
        )
    return matrix
