"""Imports from numpy and pyserini: exact values, checks, continued imports."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.artifact import manifest
from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.jobs import plan
from lmkcli.encoding.resolution import resolve
from lmkcli.encoding.shard_run import run_encode
from lmkcli.encoding.vector_updates import compact
from lmkcli.encoding.verification import verify
from lmkcli.errors import DataError, Mismatch, Stopped, UnknownName, UsageError
from lmkcli.models.lookup import read_model
from lmkcli.plugins.exchange import imports
from lmkcli.plugins.exchange.exports import export
from lmkcli.plugins.exchange.faiss_flat import write_flat
from lmkcli.plugins.exchange.imports import (
    ImportCounts,
    check_width,
    open_foreign,
    run_import,
    unknown_recipe,
)
from lmkcli.progress import Report
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.spec.recipe import Recipe, RecipeOptions
from lmkcli.spec.settings import EncodeSettings, ModelSettings
from lmkcli.spec.values import WHOLE
from lmkcli.vectors.stored import Vectors

Models = Callable[[str], Path]
DIM = 4
VECTORS = np.random.default_rng(0).standard_normal((2500, DIM)).astype(np.float32)
IDS = [f"d{number}" for number in range(len(VECTORS))]
SETTINGS = EncodeSettings(dtype="fp32", store_dtype="fp32", device="cpu")


def import_from(
    source: Path, folder: Path, kind: str = "numpy", ids: Path | None = None,
    recipe: Recipe | None = None, map_ids: bool = False, **report: Any,
) -> ImportCounts:  # fmt: skip
    incoming = open_foreign(source, kind, ids)
    recipe = recipe or unknown_recipe()
    return run_import(incoming, recipe, folder, map_ids, Report(**report))


def put_numpy(folder: Path, vectors: Any = VECTORS, ids: list[str] = IDS) -> Path:
    folder.mkdir()
    np.save(folder / "vectors.npy", vectors)
    (folder / "ids.txt").write_text("".join(f"{name}\n" for name in ids), "utf-8")
    return folder


def put_jsonl(folder: Path, records: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    half = len(records) // 2
    for name, part in (("b.jsonl", records[half:]), ("a.jsonl", records[:half])):
        lines = (json.dumps(record) + "\n" for record in part)
        (folder / name).write_text("".join(lines), "utf-8")
    return folder


def records(ids: list[str] = IDS, vectors: Any = VECTORS) -> list[dict[str, Any]]:
    return [
        {"id": name, "contents": f"text of {name}", "vector": vector.tolist()}
        for name, vector in zip(ids, vectors, strict=True)
    ]


def put_flat(folder: Path) -> Path:
    folder.mkdir()
    write_flat(folder / "index", len(VECTORS), DIM, [VECTORS])
    (folder / "docid").write_text("\n".join(IDS))  # without a line feed at the end
    return folder


def same(folder: Path) -> Vectors:
    made = Vectors(folder)
    every = np.arange(made.rows)
    assert made.ids(every) == IDS
    np.testing.assert_array_equal(made.at(every).vectors, VECTORS)
    return made


@pytest.mark.parametrize("kind", ["numpy", "jsonl", "flat"])
def test_ids_and_vectors_are_unchanged(tmp_path: Path, kind: str) -> None:
    if kind == "jsonl":
        source = put_jsonl(tmp_path / "in", records())
    else:
        source = (put_numpy if kind == "numpy" else put_flat)(tmp_path / "in")
    made = import_from(source, tmp_path / "v", "numpy" if kind == "numpy" else "pyserini")
    assert made == ImportCounts(2500, DIM, 0)
    vectors = same(tmp_path / "v")
    identity = vectors.manifest.identity
    assert identity.imported == ("numpy" if kind == "numpy" else "pyserini")
    assert vectors.manifest.execution.store_dtype == "fp32"
    text = "text of d7" if kind == "jsonl" else ""
    assert vectors.docs(np.array([7]))[0].text == text


def test_one_file_and_its_ids(tmp_path: Path) -> None:
    folder = put_numpy(tmp_path / "in")
    with pytest.raises(UsageError, match="--ids"):
        import_from(folder / "vectors.npy", tmp_path / "v")
    import_from(folder / "vectors.npy", tmp_path / "v", ids=folder / "ids.txt")
    same(tmp_path / "v")


def test_half_precision_is_kept(tmp_path: Path) -> None:
    half = VECTORS.astype(np.float16)
    import_from(put_numpy(tmp_path / "in", half), tmp_path / "v")
    made = Vectors(tmp_path / "v")
    assert made.coded(0).arrays["vectors"].dtype == np.float16
    np.testing.assert_array_equal(made.coded(0).arrays["vectors"], half)
    import_from(put_numpy(tmp_path / "double", VECTORS.astype(np.float64)), tmp_path / "w")
    same(tmp_path / "w")


@pytest.mark.parametrize("to", ["numpy", "pyserini"])
def test_export_and_import_again(tmp_path: Path, to: str) -> None:
    import_from(put_numpy(tmp_path / "in"), tmp_path / "v")
    export(Vectors(tmp_path / "v"), to, tmp_path / "out")
    import_from(tmp_path / "out", tmp_path / "w", to)
    same(tmp_path / "w")


def test_a_stopped_import_continues(tmp_path: Path, part_bytes: Callable[[int], None]) -> None:
    part_bytes(1)
    source = put_numpy(tmp_path / "in")
    seen: list[int] = []

    def progress(done: int, total: int | None, unit: str) -> None:
        seen.append(done)

    with pytest.raises(Stopped):
        import_from(source, tmp_path / "v", stopping=lambda: len(seen) == 2, progress=progress)
    assert seen == [1000, 2000]
    with pytest.raises(DataError, match="not complete"):
        Vectors(tmp_path / "v")
    import_from(source, tmp_path / "v", progress=progress)
    assert seen == [1000, 2000, 2500]
    import_from(source, tmp_path / "v", progress=progress)
    assert len(seen) == 3
    assert len(same(tmp_path / "v").slices) == 3
    part_bytes(1 << 20)
    compact(tmp_path / "v", keep_hours=0)
    import_from(source, tmp_path / "v", progress=progress)
    assert len(seen) == 3, "a compacted folder is imported again"
    assert len(same(tmp_path / "v").slices) == 1


def test_another_source_needs_another_folder(tmp_path: Path) -> None:
    import_from(put_numpy(tmp_path / "in"), tmp_path / "v")
    other = put_numpy(tmp_path / "other", -VECTORS)
    with pytest.raises(Mismatch, match="choose another output folder"):
        import_from(other, tmp_path / "v")
    same(tmp_path / "v")


BAD_IDS = {
    "occurs twice": "d3",
    "is empty": "",
    "white space": "d 7",
}


@pytest.mark.parametrize("reason", BAD_IDS)
@pytest.mark.parametrize("kind", ["numpy", "pyserini"])
def test_bad_ids_are_named_and_leave_nothing(tmp_path: Path, kind: str, reason: str) -> None:
    ids = [*IDS[:1800], BAD_IDS[reason], *IDS[1801:]]
    if kind == "numpy":
        source, where = put_numpy(tmp_path / "in", ids=ids), r"ids.txt line 1801"
    else:
        source, where = put_jsonl(tmp_path / "in", records(ids)), r"b.jsonl line 551"
    where = "" if "twice" in reason else where
    with pytest.raises(DataError, match=f"{where}.*{reason}"):
        import_from(source, tmp_path / "v", kind)
    assert not (tmp_path / "v").exists()


def test_white_space_in_ids_can_be_mapped(tmp_path: Path) -> None:
    ids = ["a b", "c\td", *IDS[2:]]
    import_from(put_numpy(tmp_path / "in", ids=ids), tmp_path / "v", map_ids=True)
    assert Vectors(tmp_path / "v").ids(np.arange(3)) == ["a_b", "c_d", "d2"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(tmp_path: Path, value: float) -> None:
    vectors = VECTORS.copy()
    vectors[1234, 2] = value
    with pytest.raises(DataError, match=r"ids.txt line 1235: .*not finite"):
        import_from(put_numpy(tmp_path / "in", vectors), tmp_path / "v")
    assert not (tmp_path / "v").exists()


@pytest.mark.filterwarnings("error")
def test_values_beyond_float32(tmp_path: Path) -> None:
    line = '{"id": "a", "vector": [1e300, 1]}\n'
    (tmp_path / "in.jsonl").write_text(line)
    with pytest.raises(DataError, match=r"line 1: .*not finite"):
        import_from(tmp_path / "in.jsonl", tmp_path / "v", "pyserini")
    np.save(tmp_path / "in.npy", np.array([[1e300, 1]]))
    (tmp_path / "ids.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"line 1: .*not finite"):
        import_from(tmp_path / "in.npy", tmp_path / "v", ids=tmp_path / "ids.txt")


@pytest.mark.parametrize(
    "line", [b'{"id": null, "vector": [1]}', b'{"id": "a", "vector": []}', b"\xff\xfe", b"[1]"]
)
def test_lines_without_a_vector_are_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(line + b"\n")
    with pytest.raises(DataError, match=r"in\.jsonl"):
        import_from(tmp_path / "in.jsonl", tmp_path / "v", "pyserini")
    assert not (tmp_path / "v").exists()


def test_a_vector_of_another_width(tmp_path: Path) -> None:
    made = records()
    made[1300]["vector"] = [1.0, 2.0]
    with pytest.raises(DataError, match=r"b.jsonl line 51: 2 .* 4"):
        import_from(put_jsonl(tmp_path / "in", made), tmp_path / "v", "pyserini")


@pytest.mark.parametrize(
    "line",
    ['{"id": "a"', '{"vector": [1, 2]}', '{"id": "a", "vector": ["x"]}', "[1]",
     '{"id": "a", "vector": 3}', '{"id": "a", "vector": [[1, 2]]}'],
)  # fmt: skip
def test_lines_that_pyserini_does_not_write(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "d", "vector": [1, 2]}\n' + line + "\n")
    with pytest.raises(DataError, match=r"x.jsonl line 2: "):
        import_from(path, tmp_path / "v", "pyserini")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (VECTORS[0], "shape"),
        (VECTORS.astype(np.int32), "int32"),
        (np.array([[1, "x"]], dtype=object), r"vectors\.npy .*pickles"),
        (VECTORS[:10], r"ids\.txt .*\b2500 ids .*\b10 vectors"),
    ],
)
def test_arrays_that_are_not_vectors(tmp_path: Path, array: Any, message: str) -> None:
    """An array of objects is a pickle; lmk reads no pickles."""
    with pytest.raises(DataError, match=message):
        import_from(put_numpy(tmp_path / "in", array), tmp_path / "v")


def npy(header: str) -> bytes:
    """A .npy file with any header, and no data."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


NPY = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}"


@pytest.mark.parametrize(
    "header",
    [
        NPY.format("'<f4'", shape)
        for shape in (
            "(-1, 4)",
            "(2**62, 4)",
            "(4611686018427387904, 4)",
            f"({10**30}, 4)",
            "(1e3, 4)",
        )
    ]
    + [
        NPY.format(kind, "(1, 4)")
        for kind in ("'|O'", "'<f4,<f4'", "[('a', '<f4')]", "'x'", "'<f' * 9")
    ]
    + ["", "[", "{}", "(" * 100, "9" * 110],
)
def test_headers_that_numpy_does_not_write(tmp_path: Path, header: str) -> None:
    matrix, ids = tmp_path / "z.npy", tmp_path / "ids.txt"
    matrix.write_bytes(npy(header))
    ids.write_text("a\n")
    with pytest.raises(DataError, match=r"z\.npy"):
        import_from(matrix, tmp_path / "out", ids=ids)
    assert not (tmp_path / "out").exists()


def test_zip_files_of_arrays_are_refused(tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("a\n")
    np.savez_compressed(tmp_path / "z.npz", a=VECTORS, b=np.array([{}]))
    with pytest.raises(DataError, match=r"z\.npz.*\.npy"):
        import_from(tmp_path / "z.npz", tmp_path / "out", ids=ids)


def test_missing_and_unknown_sources(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean numpy"):
        import_from(tmp_path, tmp_path / "v", "nunpy")
    with pytest.raises(DataError, match="does not exist"):
        import_from(tmp_path / "none", tmp_path / "v")
    with pytest.raises(DataError, match="'index' and 'docid'"):
        import_from(tmp_path, tmp_path / "v", "pyserini")
    (tmp_path / "index").write_bytes(b"IxPT and more, which is longer than any header of FAISS")
    with pytest.raises(DataError, match="not a flat inner-product index"):
        import_from(tmp_path, tmp_path / "v", "pyserini")
    with pytest.raises(UsageError, match="--ids"):
        import_from(tmp_path, tmp_path / "v", "pyserini", ids=tmp_path / "ids.txt")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no vectors in it"):
        import_from(tmp_path / "empty.jsonl", tmp_path / "v", "pyserini")
    with pytest.raises(DataError, match=r"npy"):
        import_from(tmp_path / "empty.jsonl", tmp_path / "v", ids=tmp_path / "empty.jsonl")


def test_the_given_model_encodes_the_queries(
    tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    """Vectors from the jsonl of pyserini get the recipe of the flags."""
    wishes = RecipeOptions(
        model=str(tiny_model("bert")), pool="lmk", gran="8", query_prompt="query: "
    )
    job = plan(str(beir), wishes, SETTINGS, WHOLE)
    run_encode(job, tmp_path / "v")
    native = Vectors(tmp_path / "v")
    every = np.arange(native.rows)
    written = [
        {"id": doc.id, "contents": doc.content, "vector": vector.tolist()}
        for doc, vector in zip(native.docs(every), native.at(every).vectors, strict=True)
    ]
    source = put_jsonl(tmp_path / "in", written)
    resolved = resolve(wishes)
    check_width(open_foreign(source, "pyserini", None), resolved)
    import_from(source, tmp_path / "w", "pyserini", recipe=resolved.recipe)
    made = Vectors(tmp_path / "w")
    assert made.recipe == native.recipe
    assert made.artifact.fingerprint != native.artifact.fingerprint
    folder = read_model(made.recipe.query.model)
    encoder = open_encoder(made.recipe.query, folder, SETTINGS)
    query = encoder.queries([Query("q", "copper conducts")]).vectors[0]
    scores = made.at(every).vectors @ query
    assert scores == pytest.approx(native.at(every).vectors @ query)
    found = verify(tmp_path / "w", 20, ModelSettings(device="cpu"))
    assert found.cosine > 0.99999


def test_a_model_of_another_width_is_refused(tiny_model: Models, tmp_path: Path) -> None:
    incoming = open_foreign(put_numpy(tmp_path / "in"), "numpy", None)
    with pytest.raises(Mismatch, match=r"4 dimensions, .* makes 32"):
        check_width(incoming, resolve(RecipeOptions(model=str(tiny_model("bert")))))


def test_vectors_for_cosine_are_normalised(tiny_model: Models, tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((6, 32)).astype(np.float32)
    vectors[:2] /= np.linalg.norm(vectors[:2], axis=1, keepdims=True)
    vectors[2] = 0
    recipe = resolve(RecipeOptions(model=str(tiny_model("bert")))).recipe
    assert recipe.doc.normalize
    source = put_numpy(tmp_path / "in", vectors, IDS[:6])
    assert import_from(source, tmp_path / "v", recipe=recipe).normalized == 3
    made = Vectors(tmp_path / "v").at(np.arange(6)).vectors
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), [1, 1, 0, 1, 1, 1], rtol=1e-6)
    np.testing.assert_array_equal(made[:3], vectors[:3])


def test_vectors_without_a_model_have_no_query_encoder(tmp_path: Path) -> None:
    import_from(put_numpy(tmp_path / "in"), tmp_path / "v")
    recipe = Vectors(tmp_path / "v").recipe
    assert manifest.read(tmp_path / "v").identity.recipe.query.weights == ""
    with pytest.raises(DataError, match="imported without a model"):
        read_model(recipe.query.model)


@pytest.mark.parametrize("stops", [False, True])
def test_chunks_are_exported_and_imported_again(
    tiny_model: Models,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part_bytes: Callable[[int], None],
    stops: bool,
) -> None:
    monkeypatch.setattr(imports, "ROWS", 7)  # documents at a time
    part_bytes(1)
    options = RecipeOptions(model=str(tiny_model("bert")), pool="mean", unit="chunk", gran="16")
    run_encode(plan(str(beir), options, SETTINGS, WHOLE), tmp_path / "chunks")
    made = Vectors(tmp_path / "chunks")
    export(made, "numpy", tmp_path / "numpy")
    seen: list[int] = []
    if stops:
        report = {
            "stopping": lambda: len(seen) == 2,
            "progress": lambda done, *_: seen.append(done),
        }
        with pytest.raises(Stopped):
            import_from(tmp_path / "numpy", tmp_path / "again", recipe=made.recipe, **report)
        assert seen == [7, 14]
    import_from(tmp_path / "numpy", tmp_path / "again", recipe=made.recipe)
    again = Vectors(tmp_path / "again")
    assert again.rows == 60 < again.counts().vectors
    for number, (ours, theirs) in enumerate(zip(flat(made), flat(again), strict=True)):
        assert ours[0] == theirs[0], number
        np.testing.assert_array_equal(ours[1], theirs[1])
    queries = [Query("q", "alpha beta"), Query("r", "river")]
    runs = [
        open_index(tmp_path / name, OpenSettings(device="cpu")).search(queries, 20).rankings
        for name in ("chunks", "again")
    ]
    assert all(runs[0][name].doc_ids == runs[1][name].doc_ids for name in ("q", "r"))


def flat(vectors: Vectors) -> list[tuple[str, Any]]:
    """The id of every document and its vectors."""
    rows = []
    for docs, texts, _ in vectors.batches():
        ends = np.cumsum(docs.count("vectors"))
        ids = [doc.id for doc in docs.docs]
        rows += list(zip(ids, np.split(texts.vectors, ends[:-1]), strict=True))
    return rows


def test_repeated_ids_are_chunks_only_in_successive_rows(tmp_path: Path) -> None:
    source = put_numpy(tmp_path / "in", np.eye(4, 3), ["a", "a", "b", "a"])
    with pytest.raises(DataError, match="twice"):
        import_from(source, tmp_path / "out", recipe=unknown_recipe("chunk"))
    good = put_numpy(tmp_path / "good", np.eye(4, 3), ["a", "a", "b", "c"])
    import_from(good, tmp_path / "made", recipe=unknown_recipe("chunk"))
    assert [len(each) for _, each in flat(Vectors(tmp_path / "made"))] == [2, 1, 1]
