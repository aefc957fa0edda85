"""Sparse vectors as the JSON vectors of Anserini."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from lmkcli import Encode, Export
from lmkcli.errors import UsageError
from lmkcli.vectors.stored import Vectors

Models = Callable[[str], Path]


@pytest.mark.parametrize("options", [{}, {"unit": "chunk", "gran": 8}])
def test_every_vector_is_a_line_of_impacts(
    masked_model: Models, beir: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    settings = {"pool": "splade", "dtype": "fp32", "device": "cpu", "top_terms": 5, **options}
    Encode(str(beir), model=str(masked_model("bert")), output=tmp_path / "v", **settings).run()
    vectors = Vectors(tmp_path / "v")
    made = Export(str(tmp_path / "v"), to="anserini-json", output=tmp_path / "e").run()
    assert made.as_json()["vectors"] == vectors.total
    records = map(json.loads, (tmp_path / "e" / "docs.jsonl").read_text().splitlines())
    lines = {record["id"]: record["vector"] for record in records}
    vocabulary = AutoTokenizer.from_pretrained(masked_model("bert")).get_vocab()
    rows = np.arange(vectors.rows)
    stored, names = vectors.at(rows).matrix(), vectors.ids(rows)
    owners = np.repeat(rows, vectors.at(rows).counts)
    numbers = np.arange(len(owners)) - vectors.starts[owners]
    assert len(lines) == len(owners) == vectors.total
    for weights, owner, number in zip(stored, owners, numbers, strict=True):
        name = f"{names[owner]}#{number}" if options else names[owner]
        known = {vocabulary.get(token, token): impact for token, impact in lines[name].items()}
        wanted = {term: round(weights[term] * 100) for term in np.flatnonzero(weights)}
        assert {
            key if isinstance(key, int) else int(key[1:-1]): x for key, x in known.items()
        } == wanted


def test_dense_vectors_have_no_impacts(tiny_model: Models, beir: Path, tmp_path: Path) -> None:
    settings = {"dtype": "fp32", "device": "cpu"}
    Encode(str(beir), model=str(tiny_model("bert")), output=tmp_path / "v", **settings).run()
    with pytest.raises(UsageError, match="contains dense vectors"):
        Export(str(tmp_path / "v"), to="anserini-json", output=tmp_path / "e").run()
    assert not (tmp_path / "e").exists()
