"""The grids for the tables of papers can be planned offline, without models and collections."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.cli import main
from lmkcli.data import known_collections
from lmkcli.plugins.grid import gridfile
from tests import tiny

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "examples" / "papers").glob("*.toml"))


@pytest.mark.slow  # a thousand cells each
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_table_is_planned_offline_with_all_its_cells(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    words = ["lmk", "grid", str(file), "-o", "nowhere", "--dry-run", "--offline"]
    monkeypatch.chdir(tmp_path)  # with the folders that earlier commands make
    for name in ("m2-bert-32k", "m2-bert-32k-prototype"):
        (tmp_path / name).symlink_to(tiny_model("bert"))
    for size in (8, 16, 32, 64, 128):
        tiny.collection(tmp_path / "squad" / str(size), docs=20, queries=2)
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert not left.value.code
    planned = capsys.readouterr()
    assert "left out" not in planned.err
    counts = {row.split()[0]: row.split()[1:] for row in planned.out.splitlines()[-6:] if row}
    assert counts["eval"][0] == counts["search"][0]


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.stem.startswith("lmk-table")],
    ids=lambda file: file.stem,
)
def test_landmark_tables_evaluate_queries_at_the_length_of_documents(file: Path) -> None:
    """§5: 8,192 positions of all texts, and 32,768 in LongEmbed; training cuts queries earlier."""
    lengths = {
        (
            each.values["collection"][0].startswith("longembed"),
            *(int(each.values[axis][0]) for axis in ("max-length", "query-max-length")),
            int(each.values["train.query-max-length"][0]),
        )
        for each in gridfile.cells(gridfile.read(file))
    }
    capped = 512 if file.stem in ("lmk-table4", "lmk-table5") else 128
    assert lengths == {(False, 8192, 8192, capped), (True, 32768, 32768, capped)}


def test_the_collections_of_tite_are_the_papers() -> None:
    """Table 1 has 14 collections of BEIR, without MS MARCO; the forums of CQADupStack are one of them."""
    file = next(file for file in FILES if file.stem == "tite-table1")
    named = {each.values["collection"][0] for each in gridfile.cells(gridfile.read(file))}
    beir = {name for name in named if name.startswith("beir/")}
    assert beir == set(known_collections.members("beir")) - {"beir/msmarco/dev"}
    assert len({name.split("/")[1] for name in beir}) == 14


def test_groups_of_the_papers_have_members() -> None:
    assert known_collections.members("conteb")
    assert known_collections.members("loco")


@pytest.mark.parametrize("number", [1, 10, 14, 15, 17])
def test_the_tables_of_m2bert_have_the_papers_lengths(number: int) -> None:
    """Each of these tables has a column of maximum lengths; a model's folder can declare another one."""
    lengths = {
        "BAAI/bge-large-en-v1.5": "512",
        "intfloat/e5-mistral-7b-instruct": "4096",
        "jinaai/jina-embeddings-v2-base-en": "8192",
        "lightonai/colbertv2.0": "512",
        "sentence-transformers/msmarco-bert-base-dot-v5": "512",
        "hazyresearch/M2-BERT-128-Retrieval-Encoder-V1": "128",
        "hazyresearch/M2-BERT-2k-Retrieval-Encoder-V1": "2048",
        "hazyresearch/M2-BERT-8k-Retrieval-Encoder-V1": "8192",
        "hazyresearch/M2-BERT-32K-Retrieval-Encoder-V1": "32768",
        "": "",  # BM25
    }
    file = next(file for file in FILES if file.stem == f"m2bert-table{number}")
    for cell in gridfile.cells(gridfile.read(file)):
        model, length = (
            next(iter(cell.values.get(axis, ())), "") for axis in ("model", "max-length")
        )
        assert length == lengths[model], model
