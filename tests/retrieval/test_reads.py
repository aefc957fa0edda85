"""Opening: a query reads each manifest once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.artifact import manifest

Lmk = Callable[..., Any]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each manifest was read, by the name of its folder."""
    counts: Counter[str] = Counter()
    read = manifest.read_json

    def counted(path: Path, *rest: Any) -> Any:
        if path.name == manifest.NAME and path.is_file():
            counts[path.parent.name] += 1
        return read(path, *rest)

    monkeypatch.setattr(manifest, "read_json", counted)
    return counts


@pytest.fixture
def folders(lmk: Lmk, tiny_model: Callable[[str], Path], beir: Path, tmp_path: Path) -> Path:
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "vectors")
    lmk("index", tmp_path / "vectors", "--kind", "hnsw", "-o", tmp_path / "hnsw")
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    ["vectors", "bm25", "hnsw", "bm25 --with vectors --fuse rrf", "bm25 --rerank vectors"],
)
def test_a_query_reads_each_manifest_once(
    lmk: Lmk, folders: Path, reads: Counter[str], words: str
) -> None:
    named = [folders / word if (folders / word).exists() else word for word in words.split()]
    lmk("search", *named, "-q", "words")
    assert reads
    assert all(count == 1 for count in reads.values()), reads


def test_verify_reads_each_manifest_once(lmk: Lmk, folders: Path, reads: Counter[str]) -> None:
    lmk("verify", folders / "vectors")
    assert reads == {"vectors": 1}
