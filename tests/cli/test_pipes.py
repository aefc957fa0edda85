"""Named pipes as inputs: a message names them, and no command waits for a writer."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.store.parts import PARTS
from tests.conftest import Lmk

Models = Callable[[str], Path]


@pytest.fixture
def pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beir: Path, tiny_model: Models) -> Path:
    """The current folder: pipes, a collection and a model."""
    for name in ("p", "p.jsonl", "p.json", "p.toml", "p.trec", "p.npy"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "beir").symlink_to(beir)
    (tmp_path / "bert").symlink_to(tiny_model("bert"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "show ./p",
        "index p.jsonl --kind bm25 -o out",
        "index ./beir,qrels=p --kind bm25 -o out",
        "index ./beir --kind bm25 --stopwords p -o out",
        "index ./beir --kind bm25 --config p.toml -o out",
        "encode ./beir -m ./p -o out",
        "eval p.trec",
        "search ./p -q rivers",
        "repro p.trec",
        "verify ./p",
        "plot p.jsonl --x k -o out.svg",
        "grid p.toml -o out",
        "import p.npy --from numpy --ids p -o out",
        "train p.jsonl -m ./bert -o out --steps 1",
        "pretrain ./beir --architecture p.json --tokenizer ./bert -o out --steps 1",
        "pretrain ./beir --architecture p.toml --tokenizer ./bert -o out --steps 1",
    ],
)
def test_a_named_pipe_is_called_a_pipe(lmk: Lmk, pipes: Path, line: str) -> None:
    err = lmk(*line.split(), code=3).err
    assert "a pipe" in err
    assert "name a file" in err or "write -" in err or "name its folder" in err


def test_a_collection_on_standard_input_is_advised(lmk: Lmk, pipes: Path) -> None:
    err = lmk("index", "./p", "--kind", "bm25", "-o", "out", code=3).err
    assert "lmk … - < p" in err


@pytest.mark.parametrize("name", ["docs.parquet", "vectors.npy", "part.json"])
def test_a_pipe_in_an_artifact_is_not_waited_for(lmk: Lmk, pipes: Path, name: str) -> None:
    lmk("encode", "./beir", "-m", "./bert", "-o", "vectors")
    file = next((pipes / "vectors" / PARTS).glob(f"*/{name}"))
    file.unlink()
    os.mkfifo(file)
    for line in (
        "search vectors -q rivers",
        "verify vectors",
        "export vectors --to parquet -o out",
    ):
        assert "a pipe" in lmk(*line.split(), code=3).err
