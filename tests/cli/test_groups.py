"""Groups of collections on the command line, from a mirror folder to scores and `lmk show`."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.data import hub_layouts, known_collections
from tests import mirrors
from tests.conftest import Lmk

FILES = [f"longembed-passkey-{length}" for length in mirrors.LENGTHS]


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with LongEmbed's passkey and one of ConTEB."""
    folder = tmp_path / "mirror"
    mirrors.longembed(folder, "passkey", mirrors.LENGTHS)
    mirrors.conteb(folder, "football", "train", "chunk_id")
    monkeypatch.setenv(hub_layouts.MIRROR, str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_from_encode_to_eval(lmk: Lmk, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    encode = ["encode", "longembed/passkey", "-m", tiny_model("bert"), "-o", "v"]
    done = lmk(*encode)
    assert sorted(path.name for path in Path("v").iterdir()) == sorted(FILES)
    assert [line for line in done.err.splitlines() if "published" in line] == [
        f"longembed/passkey/{length}: 6 documents found, 100 published; is the copy complete?"
        for length in mirrors.LENGTHS
    ]
    source = json.loads(Path("v", FILES[0], "manifest.json").read_text())["execution"]["source"]
    assert source["name"] == "longembed/passkey/256"
    assert list(source["stamp"]) == ["dwzhu/LongEmbed/passkey/corpus.jsonl"]
    made = Path("v", FILES[0], "manifest.json").stat().st_mtime_ns
    lmk(*encode)  # the same command again finds everything finished
    assert Path("v", FILES[0], "manifest.json").stat().st_mtime_ns == made
    lmk("search", "v", "longembed/passkey", "-o", "runs")
    runs = sorted(Path("runs").glob("*.trec"))
    assert [run.stem for run in runs] == sorted(FILES)
    assert "1.0000" in lmk("eval", *runs, "-m", "nDCG@1").out


def test_lexical_over_a_group(lmk: Lmk, tiny_model: Callable[[str], Path]) -> None:
    done = lmk("index", "longembed/passkey", "--kind", "bm25", "-o", "b")
    assert done.err.count("6 documents found, 100 published") == 8
    lmk("search", "b", "longembed/passkey", "-o", "runs")
    assert len(list(Path("runs").glob("*.trec"))) == 8
    lmk("tokenize", "longembed/passkey", "-m", tiny_model("bert"), "-o", "t")
    assert sorted(path.name for path in Path("t").iterdir()) == sorted(FILES)
    done = lmk("fetch", "longembed/passkey")
    assert done.out == "".join(f"longembed/passkey/{n}: downloaded\n" for n in mirrors.LENGTHS)


def test_members_are_not_put_into_an_artifact_or_a_file(lmk: Lmk) -> None:
    lmk("index", "longembed/passkey/256", "--kind", "bm25", "-o", "one")
    Path("run.trec").write_text("")
    before = sorted(Path("one").rglob("*"))
    for output in ("one", "run.trec"):
        refused = lmk("index", "longembed/passkey", "--kind", "bm25", "-o", output, code=2)
        assert "folder" in refused.err
    assert sorted(Path("one").rglob("*")) == before


def test_the_first_that_fails_ends_it(lmk: Lmk) -> None:
    err = lmk("index", "longembed", "--kind", "bm25", "-o", "b", code=3).err
    assert "longembed/narrativeqa:\n" in err
    assert re.search(r"narrativeqa/corpus-\*\.parquet .* doc_id, text", err)


def test_sources_are_shown_by_group_and_by_name(lmk: Lmk) -> None:
    listed = lmk("show", "sources").out
    assert all(name in listed for name in known_collections.groups())
    for words in (["sources", "beir"], ["source", "beir"], ["beir"]):
        table = lmk("show", *words, "--json").json
        assert [row["beir"] for row in table] == known_collections.members("beir")
        assert {"beir": "beir/arguana", "documents": 8674, "queries": 1406}.items() <= table[
            6
        ].items()
    for words in (["source", "mldr/en/test"], ["sources", "mldr/en/test"]):
        shown = lmk("show", *words).out
        assert "on the hub: Shitao/MLDR@d67138e705d963e346253a80e59676ddb418810a" in shown
        assert "documents: 200,000" in shown
        assert "licence: MIT" in shown
    assert re.search("'bier'.* beir", lmk("show", "sources", "bier", code=2).err)
    assert "known: beir, beir/cqad" in lmk("show", "source", "zzzzzz", code=2).err
    assert "NAME is missing" in lmk("show", "source", code=2).err
    assert "did you mean poolers" in lmk("show", "poolrs", code=2).err
    assert "only 'sources' and 'source' accept" in lmk("show", "beir", "nq", code=2).err


def test_show_prints_published_facts_of_a_collection(lmk: Lmk) -> None:
    facts = lmk("show", "conteb/football", "--json").json
    assert (facts["documents"], facts["published"]["documents"]) == (3, 224)
    assert "3 documents found, 224 published" in facts["differs"]
    assert list(facts["stamp"]) == ["illuin-conteb/football/documents/train-00000-of-00001.parquet"]


def test_judged_chunks_are_encoded_searched_and_scored(
    lmk: Lmk, tiny_model: Callable[[str], Path]
) -> None:
    chunks = ["--unit", "chunk", "--gran", "given", "--window", "chunk", "--pool", "mean"]
    lmk("encode", "conteb/football", "-m", tiny_model("bert"), *chunks, "-o", "v")
    lmk("search", "v", "conteb/football", "--level", "chunk", "-o", "run.trec")
    assert lmk("eval", "run.trec", "--json").json[0]["nDCG@10"] == 1.0
