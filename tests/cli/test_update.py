"""`--if-exists update` and `lmk compact`, as in a cron job."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.artifact import manifest
from lmkcli.system.atomic import LOCK_FILE, locked
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
UPDATE = ("--if-exists", "update")


class Cron:
    """A collection, and the commands that update its artifacts."""

    def __init__(self, lmk: Lmk, root: Path, model: Path, beir: Path) -> None:
        self.lmk, self.model = lmk, model
        self.beir = shutil.copytree(beir, root / "beir")
        self.vectors, self.index = root / "vectors", root / "index"

    def encode(self, *words: object, code: int = 0) -> Any:
        command = ("encode", self.beir, "-m", self.model, "-o", self.vectors)
        return self.lmk(*command, *UPDATE, *words, code=code)

    def change(self, **texts: str) -> None:
        """Replace the first five documents by these."""
        path = self.beir / "corpus.jsonl"
        docs = [json.loads(line) for line in path.open(encoding="utf-8")]
        tiny.write_jsonl(path, docs[5:] + [{"_id": n, "text": t} for n, t in texts.items()])


@pytest.fixture
def cron(lmk: Lmk, tmp_path: Path, tiny_model: Models, beir: Path) -> Cron:
    return Cron(lmk, tmp_path, tiny_model("bert"), beir)


@pytest.mark.parametrize("stored", ["fp16", "int8", "int4", "binary"])
def test_the_same_lines_every_night(cron: Cron, stored: str) -> None:
    lmk, index = cron.lmk, ("index", cron.vectors, "-o", cron.index, *UPDATE)
    as_stored = ("--store-dtype", stored, "--json")
    assert cron.encode(*as_stored).json["encoded"] == 60
    lmk(*index)
    cron.change(fresh="copper conducts electricity")
    made = cron.encode(*as_stored).json
    assert (made["generation"], made["kept"], made["encoded"], made["removed"]) == (2, 55, 1, 5)
    question = ("-q", "copper conducts electricity", "-k", 5, "--json")

    def ids(found: Any) -> list[str]:
        return [hit["id"] for hit in found.json]

    found = lmk("search", cron.vectors, *question)
    # With one bit per dimension, another document can have the same code, and then the same score.
    best = [hit["id"] for hit in found.json if hit["score"] == found.json[0]["score"]]
    assert ("fresh" in best, found.err) == (True, "")
    assert stored == "binary" or best == ["fresh"]
    old = lmk("search", cron.index, *question)
    assert "fresh" not in ids(old)
    assert "is behind" in old.err
    assert re.search(r"\b1 rows? appended.*\b5 deleted", lmk(*index).err)
    now = lmk("search", cron.index, *question)
    assert (ids(now)[0] in best, now.err) == (True, "")
    assert "already up to date" in lmk(*index).err
    assert lmk("show", cron.vectors, "--json").json["generation"] == 2
    made = lmk("compact", cron.vectors, "--json").json
    assert (made["written"], made["deleted"], made["kept"]) == (1, 0, 2)
    made = lmk("compact", cron.vectors, "--keep-hours", 0)
    assert re.search(r"\b0 parts written.*\b2 deleted.*\b0 kept", made.out)
    assert lmk("search", cron.vectors, *question).json == found.json
    lmk("verify", cron.vectors)
    exported = cron.vectors.with_name("exported")
    lmk("export", cron.vectors, "--to", "numpy", "-o", exported)
    expected = np.concatenate([block.vectors for block in Vectors(cron.vectors)])
    np.testing.assert_array_equal(np.load(exported / "vectors.npy"), expected)


def test_the_plain_command_leaves_an_updated_folder_alone_until_the_source_changes(
    cron: Cron,
) -> None:
    cron.lmk("encode", cron.beir, "-m", cron.model, "-o", cron.vectors)
    cron.change(fresh="new")
    cron.encode()
    plain = ("encode", cron.beir, "-m", cron.model, "-o", cron.vectors)
    assert cron.lmk(*plain, "--json").json["docs"] == 56
    cron.change(other="newer")
    assert "has changed since" in cron.lmk(*plain, code=3).err
    assert cron.encode("--json").json["encoded"] == 1


def test_a_folder_without_its_generation_is_never_taken_for_the_folder_before_its_updates(
    cron: Cron,
) -> None:
    cron.lmk("encode", cron.beir, "-m", cron.model, "-o", cron.vectors)
    cron.change(fresh="copper conducts electricity")
    cron.encode()
    question = ("search", cron.vectors, "-q", "copper conducts electricity", "--json")
    whole = cron.lmk(*question).json
    (cron.vectors / "generation.json").unlink()
    for words in (question, ("compact", cron.vectors), ("index", cron.vectors, "-o", cron.index)):
        assert "is not complete" in cron.lmk(*words, code=3).err
    parts = sorted(os.listdir(cron.vectors / "parts"))
    assert cron.encode("--json").json["kept"] == 55
    assert sorted(os.listdir(cron.vectors / "parts")) == parts, "documents were encoded again"
    assert cron.lmk(*question).json == whole
    assert cron.lmk("verify", cron.vectors).code == 0


def test_one_command_brings_vectors_and_indexes_up_to_date(
    cron: Cron, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmk, bm25 = cron.lmk, tmp_path / "bm25"
    lmk("encode", cron.beir, "-m", cron.model, "--pool", "lmk", "--gran", 8, "-o", cron.vectors)
    lmk("index", cron.vectors, "-o", cron.index, "--kind", "ivf")
    lmk("index", cron.beir, "-o", bm25, "--kind", "bm25", "--k1", 1.2)
    cron.change(fresh="copper conducts electricity")
    monkeypatch.setenv("LMK_ENCODE_POOL", "cls")  # the settings are those of the folders
    words = ("update", cron.beir, cron.index, bm25, cron.vectors)
    done = lmk(*words)
    assert re.search(r"generation 1\b.*\b1 documents? encoded.*\b5 removed", done.out)
    for folder in (cron.vectors, cron.index, bm25):
        hits = lmk("search", folder, "-q", "copper conducts electricity", "-k", 1, "--json")
        assert (hits.json[0]["id"], hits.err) == ("fresh", "")
    again = lmk(*words, "--json")
    assert "already up to date" in again.err
    first, *indexes = again.json  # vectors come first
    assert (first["output"], first["encoded"], first["removed"]) == (str(cron.vectors), 0, 0)
    assert {each["output"] for each in indexes} == {str(cron.index), str(bm25)}
    assert lmk("show", bm25, "--json").json["settings"]["k1"] == 1.2


def test_an_update_needs_folders_that_commands_made(cron: Cron, tmp_path: Path) -> None:
    cron.encode()
    assert "make it first" in cron.lmk("update", cron.beir, cron.index, code=2).err
    cron.lmk("tokenize", cron.beir, "-m", cron.model, "-o", tmp_path / "t")
    assert "name vectors or an index" in cron.lmk("update", cron.beir, tmp_path / "t", code=3).err
    with locked(cron.vectors):
        cron.change(fresh="new")
        cron.lmk("update", cron.beir, cron.vectors, code=75)
    assert Vectors(cron.vectors).rows == 60
    recorded = json.loads((cron.vectors / manifest.NAME).read_text())
    del recorded["facts"]["models"]
    (cron.vectors / manifest.NAME).write_text(json.dumps(recorded))
    assert "make the artifact again" in cron.lmk("update", cron.beir, cron.vectors, code=3).err


def test_a_second_updater_stops_with_75(cron: Cron) -> None:
    cron.encode()
    cron.change(fresh="new")
    with locked(cron.vectors):
        assert "is being changed by process" in cron.encode(code=75).err
        assert "Run the same command again" in cron.lmk("compact", cron.vectors, code=75).err
    assert Vectors(cron.vectors).rows == 60
    cron.encode()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pool", "cls"), "recipe.doc.pool: 'mean' | 'cls'"),
        (("--store-dtype", "fp32"), "store_dtype: 'fp16' | 'fp32'"),
        (("--no-store-text",), "store_text: True | False"),
        (("--fields", "text"), "text.fields"),
    ],
)
def test_another_recipe_is_no_update(cron: Cron, words: tuple[str, ...], message: str) -> None:
    cron.encode()
    cron.change(fresh="new")
    assert message in cron.encode(*words, code=3).err
    assert Vectors(cron.vectors).rows == 60


def test_artifacts_that_cannot_be_updated(cron: Cron, tmp_path: Path) -> None:
    lmk, tokens = cron.lmk, tmp_path / "t"
    assert "drop --shard" in cron.encode("--shard", "0/2", code=2).err
    lmk("tokenize", cron.beir, "-m", cron.model, "-o", tokens)
    made = lmk("encode", tokens, "-m", cron.model, "-o", cron.vectors, *UPDATE, code=2)
    assert "the collection" in made.err
    lmk("tokenize", cron.beir, "-m", cron.model, "-o", tokens, *UPDATE, code=2)
    assert "not an lmk artifact" in lmk("compact", cron.beir, code=3).err
    assert "contains tokens" in lmk("compact", tokens, code=3).err


def test_bm25_is_built_again(cron: Cron, tmp_path: Path) -> None:
    index = ("index", cron.beir, "--kind", "bm25", "-o", tmp_path / "b")
    cron.lmk(*index)
    cron.change(fresh="quokka")
    assert "--if-exists update" in cron.lmk(*index, code=3).err
    assert "built again" in cron.lmk(*index, *UPDATE).err
    found = cron.lmk("search", tmp_path / "b", "-q", "quokka", "--json").json
    assert [(hit["id"], hit["text"]) for hit in found] == [("fresh", "quokka")]


@pytest.mark.slow
def test_the_crontab_of_the_page_works(tmp_path: Path, minilm: Path, lmk_program: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "update.md").read_text(encoding="utf-8")
    path, *lines = block(page, "crontab").replace("/data/archive ", f"{tmp_path} ").splitlines()
    assert path == "PATH=/data/venv/bin:/usr/bin:/bin"
    (tmp_path / "nightly.sh").write_text(block(page, "sh"))
    notes = tmp_path / "notes"
    notes.mkdir()
    first = re.findall(r"^\$ (lmk -q (?:encode|index) .*)", page, re.MULTILINE)[:2]
    env = {**os.environ, "PATH": f"{lmk_program.parent}:{os.environ['PATH']}"}
    for number, texts in enumerate(({"a": "tea", "b": "bread"}, {"b": "bread", "c": "a puncture"})):
        for note in notes.iterdir():
            note.unlink()
        for name, text in texts.items():
            (notes / f"{name}.txt").write_text(text)
        for line in [] if number else first:
            subprocess.run(line, shell=True, check=True, cwd=tmp_path, env=env)
        for line in lines:
            command = re.sub(r"^(\S+ +){5}", "", line)
            subprocess.run(command, shell=True, check=True, env=env)
        log = (tmp_path / "nightly.log").read_text()
        made = f"vectors: generation {number + 1}, {number} documents encoded"
        assert made in log, log
        found = Vectors(tmp_path / "vectors")
        assert sorted(found.numbers()) == sorted(f"{name}.txt" for name in texts)
        of = json.loads((tmp_path / "index" / "built.json").read_text())["of"]
        assert (of["digest"] == found.digest()) == (number == 0)  # before the compaction


def block(page: str, language: str) -> str:
    """The only fenced block of a page in a language."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_lock_of_a_killed_process_is_removed_from_a_finished_index(
    lmk: Lmk, beir: Path, tmp_path: Path
) -> None:
    line = ["index", beir, "--kind", "bm25", "-o", tmp_path / "bm25"]
    lmk(*line)
    before = sorted(path.name for path in (tmp_path / "bm25").iterdir())
    (tmp_path / "bm25" / LOCK_FILE).touch()
    lmk(*line)
    assert sorted(path.name for path in (tmp_path / "bm25").iterdir()) == before
