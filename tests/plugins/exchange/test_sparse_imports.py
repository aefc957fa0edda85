"""The JSON vectors of Anserini as sparse vectors."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lmkcli import Encode, Export, Import, Search
from lmkcli.data.collection import Query
from lmkcli.errors import DataError, LmkError, UsageError
from lmkcli.plugins.exchange import imports
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_index
from lmkcli.vectors.stored import Vectors

Models = Callable[[str], Path]


@pytest.fixture
def model(masked_model: Models) -> str:
    return str(masked_model("bert"))


def imported(source: Path, output: Path, model: str, **options: Any) -> Vectors:
    settings = {"model": model, "pool": "splade", **options}
    Import(source, origin="anserini-json", output=output, **settings).run()
    return Vectors(output)


def put(path: Path, *records: dict[str, Any] | str) -> Path:
    lines = (each if isinstance(each, str) else json.dumps(each) for each in records)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


@pytest.mark.parametrize("options", [{}, {"unit": "chunk", "gran": 8}])
def test_an_export_is_imported_again(
    model: str,
    beir: Path,
    tmp_path: Path,
    part_bytes: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
) -> None:
    part_bytes(4000)
    monkeypatch.setattr(imports, "ROWS", 7)
    settings = {"pool": "splade", "dtype": "fp32", "device": "cpu", "top_terms": 40, **options}
    Encode(str(beir), model=model, output=tmp_path / "v", **settings).run()
    Export(str(tmp_path / "v"), to="anserini-json", output=tmp_path / "e").run()
    made = imported(tmp_path / "e", tmp_path / "again", model, **options)
    first = Vectors(tmp_path / "v")
    rows = np.arange(first.rows)
    assert made.ids(rows) == first.ids(rows)
    np.testing.assert_array_equal(made.starts, first.starts)
    np.testing.assert_allclose(made.at(rows).matrix(), first.at(rows).matrix(), atol=0.00501)
    assert len(made.slices) > 2
    Export(str(tmp_path / "again"), to="anserini-json", output=tmp_path / "e2").run()
    assert (tmp_path / "e2" / "docs.jsonl").read_bytes() == (
        tmp_path / "e" / "docs.jsonl"
    ).read_bytes()
    assert made.recipe.query == first.recipe.query
    run = Search(str(tmp_path / "again"), str(beir), output=tmp_path / "r.trec", k=5).run()
    assert run.lines == 60


def test_compressed_files_of_a_folder(model: str, tmp_path: Path) -> None:
    lines = [json.dumps({"id": name, "vector": {"water": 5, "##s": 120}}) + "\n" for name in "abc"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl.gz").write_bytes(gzip.compress(lines[0].encode()))
    (tmp_path / "in" / "2.jsonl").write_text(lines[1])
    with pa.CompressedOutputStream(str(tmp_path / "in" / "3.jsonl.zst"), "zstd") as file:
        file.write(lines[2].encode())
    (tmp_path / "in" / "manifest.json").write_text("{}")
    made = imported(tmp_path / "in", tmp_path / "v", model)
    assert made.ids(np.arange(3)) == ["a", "b", "c"]
    alone = imported(tmp_path / "in" / "1.jsonl.gz", tmp_path / "w", model)
    for vectors in (made.at(np.arange(3)), alone.at(np.array([0]))):
        np.testing.assert_array_equal(np.unique(vectors.weights), np.float32([0.05, 1.2]))


def test_dense_vectors_are_refused_with_a_sparse_model(model: str, tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.ones((1, 8), np.float32))
    (tmp_path / "ids.txt").write_text("a\n")
    how = {"ids": tmp_path / "ids.txt", "model": model, "pool": "splade"}
    with pytest.raises(UsageError, match=r"--from numpy reads dense vectors, .* makes sparse ones"):
        Import(tmp_path / "m.npy", origin="numpy", output=tmp_path / "v", **how).run()
    assert not (tmp_path / "v").exists()


def test_scale_texts_and_vectors_without_terms(model: str, tmp_path: Path) -> None:
    source = put(
        tmp_path / "in.jsonl",
        {"id": "none", "contents": "nothing", "vector": {}},
        {"id": 7, "contents": "sea water", "vector": {"water": 0.25, "sea": 0, "rivers": 3}},
    )
    made = imported(source, tmp_path / "v", model, scale=1)
    stored = made.at(np.arange(2))
    assert stored.lengths.tolist() == [0, 2]
    assert sorted(stored.weights.tolist()) == [0.25, 3]
    assert [doc.text for doc in made.docs(np.arange(2))] == ["nothing", "sea water"]
    assert made.codec.notes(made) == ["1 document without any term: no query finds them"]
    index = open_index(tmp_path / "v", OpenSettings(device="cpu"))
    assert "none" not in index.search([Query("q", "water")], 5).rankings["q"].doc_ids
    halved = imported(source, tmp_path / "w", model, scale=2).at(np.arange(2))
    np.testing.assert_array_equal(halved.weights * 2, stored.weights)


GOOD = {"id": "a", "vector": {"water": 5}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"id": "b", "vector": {"Xyzzy": 3}}, "line 2: .*'Xyzzy' .*vocabulary.*-m"),
        ({"id": "b", "vector": {"water": -3}}, "line 2: .*'water' is -3; .*at least 0"),
        ('{"id": "b", "vector": {"water": NaN}}', "line 2: .*'water' is nan; .*finite"),
        ('{"id": "b", "vector": {"water": 1e39}}', r"line 2: .*'water' is 1e\+39; .*finite"),
        ({"id": "b", "vector": {"water": "3"}}, "line 2: .*'water' is 3; .*finite"),
        ({"id": "b", "vector": {"water": True}}, "line 2: .*'water' is True; .*finite"),
        ({"id": "b", "vector": {"water": 1.5}}, r"line 2: .*'water' is 1\.5, .*--scale 1\b"),
        ('{"id": "b", "vector": {"water": 1, "water": 2}}', "line 2: .*'water' .*twice"),
        ({"id": "b", "vector": [1, 2]}, "line 2: .*'id' .*'vector', .*object"),
        ({"vector": {"water": 1}}, "line 2: .*'id' .*'vector', .*object"),
        ({"id": "b c", "vector": {"water": 1}}, "line 2: .*'b c' .*--map-ids"),
        (GOOD, "'a' .*twice"),
        ("[1]", "line 2: .*JSON object.* list"),
        ("{", "line 2: not valid JSON"),
    ],
)
def test_bad_lines_are_named_and_leave_nothing(
    model: str, tmp_path: Path, line: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        imported(put(tmp_path / "in.jsonl", GOOD, line), tmp_path / "v", model)
    assert not (tmp_path / "v").exists()


def test_chunks_are_numbered_lines(model: str, tmp_path: Path) -> None:
    def lines(*names: str) -> Path:
        return put(tmp_path / "in.jsonl", *({**GOOD, "id": name} for name in names))

    options = {"unit": "chunk", "gran": 8}
    source = lines("a#0", "a#1", "b#b#0", "c#0")
    made = imported(source, tmp_path / "v", model, **options)
    assert made.ids(np.arange(3)) == ["a", "b#b", "c"]
    assert np.diff(made.starts).tolist() == [2, 1, 1]
    for names, expected in (
        (("a#0", "a#2"), "line 2: expected the id 'a#1'"),
        (("a#1",), "line 1: expected the id 'a#0'"),
        (("a#" + "9" * 5000,), "line 1: expected the id"),
        (("a#0", "b"), "line 2: expected the id 'b#0'"),
        (("a#0", "b#1"), "line 2: expected the id 'b#0'"),
        (("a#0", "b#0", "a#0"), "twice"),
    ):
        with pytest.raises(DataError, match=expected):
            imported(lines(*names), tmp_path / "w", model, **options)


def test_inputs_without_vectors(model: str, tiny_model: Models, tmp_path: Path) -> None:
    source = put(tmp_path / "in.jsonl", GOOD)
    (tmp_path / "empty").mkdir()
    none = put(
        tmp_path / "none.jsonl", {"id": "a", "vector": {}}, {"id": "b", "vector": {"sea": 0}}
    )
    cases: list[tuple[Path, dict[str, Any], type[LmkError], str]] = [
        (source, {"model": ""}, UsageError, "needs the vocabulary of the terms; give the model"),
        (source, {"pool": "mean"}, UsageError, "makes dense ones"),
        (source, {"ids": source}, UsageError, "--ids has no effect"),
        (source, {"unit": "token"}, UsageError, "--unit token"),
        (source, {"scale": 0.5}, UsageError, "--scale"),
        (
            source,
            {"model": str(tiny_model("bert"))},
            UsageError,
            "has no masked-language-model head",
        ),
        (tmp_path / "missing", {}, DataError, "does not exist"),
        (tmp_path / "empty", {}, DataError, "no sparse vector with a term"),
        (none, {}, DataError, "no sparse vector with a term"),
    ]
    for path, options, kind, message in cases:
        with pytest.raises(kind, match=message):
            imported(path, tmp_path / "v", **{"model": model, **options})
        assert not (tmp_path / "v").exists()
    with pytest.raises(UsageError, match="--scale has no effect"):
        Import(source, origin="pyserini", output=tmp_path / "v", scale=2).run()
