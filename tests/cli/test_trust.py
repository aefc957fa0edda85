"""Artifacts of other people: code does not run and files are not downloaded without consent of the user."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transformers
from msgspec.structs import replace

from lmkcli.artifact import manifest
from lmkcli.models.lookup import read_model
from lmkcli.retrieval.index_folder import read_record, state_of_vectors, write_record
from lmkcli.vectors.stored import Vectors
from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
Downloads = list[tuple[str, bool]]

CODE = """
from pathlib import Path
from transformers import BertConfig, {base}

Path({marker!r}).touch()

class Config(BertConfig):
    model_type = "strange-{name}"

class Model({base}):
    config_class = Config
"""


class Stranger(NamedTuple):
    """Vectors, an index and a run of a model with code of its own. A file shows whether the code ran."""

    vectors: Path
    index: Path
    model: Path
    ran: Path

    def has_model(self, name: str, revision: str) -> None:
        """Make the record of the vectors name another model."""
        recorded = json.loads((self.vectors / manifest.NAME).read_text())
        for side in recorded["facts"]["models"].values():
            side |= {"model": name, "revision": revision}
        (self.vectors / manifest.NAME).write_text(json.dumps(recorded))


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> Downloads:
    """The requests to the hub, and whether they concern only the local cache. The hub has no models."""
    requests: Downloads = []

    def download(name: str, local_files_only: bool = False, **_: Any) -> str:
        requests.append((name, local_files_only))
        raise OSError("not in the cache")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return requests


@pytest.fixture
def stranger(lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path) -> Stranger:
    made = Stranger(*(tmp_path / name for name in ("vectors", "index", "model", "ran")))
    shutil.copytree(tiny_model("bert"), made.model)
    code = CODE.format(marker=str(made.ran), name=tmp_path.name, base="BertModel")
    (made.model / "strange.py").write_text(code)
    # the digest of the weights covers the configuration, so it is known before encoding
    own = {"AutoConfig": "strange.Config", "AutoModel": "strange.Model"}
    edit(made.model / "config.json", auto_map=own)
    lmk("encode", beir, "-m", made.model, "--pool", "mean", "-o", made.vectors)
    lmk("index", made.vectors, "-o", made.index)
    assert not made.ran.exists()  # the class of BERT itself reads it without the flag
    edit(made.model / "config.json", model_type=f"strange-{tmp_path.name}", auto_map=own)
    recorded = json.loads((made.vectors / manifest.NAME).read_text())
    for side in recorded["identity"]["recipe"].values():
        side |= {"trust_remote_code": True, "weights": read_model(str(made.model)).weights_digest}
    (made.vectors / manifest.NAME).write_text(json.dumps(recorded))
    return made


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_code_of_a_model_runs_only_with_consent_on_the_command_line(
    lmk: Lmk, stranger: Stranger, beir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r.trec"
    lines = (["search", stranger.vectors, "-q", "x"], ["search", stranger.vectors, beir, "-o", run])
    for line in (*lines, ["verify", stranger.vectors]):
        err = lmk(*line, code=3).err
        for named in (stranger.vectors, stranger.model, "--trust-remote-code"):
            assert str(named) in err
    assert not stranger.ran.exists()
    lmk("search", stranger.vectors, "-q", "rivers", "--trust-remote-code")
    assert stranger.ran.exists()  # with consent, the code of the model runs


def test_an_index_and_a_reranking_ask_too(
    lmk: Lmk, stranger: Stranger, beir: Path, tmp_path: Path
) -> None:
    record = read_record(stranger.index)
    assert record
    of = replace(state_of_vectors(record.of), digest=Vectors(stranger.vectors).digest())
    write_record(stranger.index, record.facts, of, record.at)
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    for line in (
        ["search", stranger.index, "-q", "rivers"],
        ["search", tmp_path / "bm25", "-q", "rivers", "--rerank", stranger.vectors],
    ):
        assert "--trust-remote-code" in lmk(*line, code=3).err
    assert not stranger.ran.exists()


def test_a_cross_encoder_runs_its_code_only_with_the_flag(
    lmk: Lmk, beir: Path, tmp_path: Path
) -> None:
    bm25, model, ran = (tmp_path / name for name in ("bm25", "cross", "ran"))
    lmk("index", beir, "--kind", "bm25", "-o", bm25)
    config = tiny.KINDS["bert"].config()
    config.num_labels = 1
    transformers.BertForSequenceClassification(config).save_pretrained(model)
    tiny.wordpiece().save_pretrained(model)
    name = tmp_path.name
    code = CODE.format(marker=str(ran), name=name, base="BertForSequenceClassification")
    (model / "strange.py").write_text(code)
    own = {
        "AutoConfig": "strange.Config",
        "AutoModelForSequenceClassification": "strange.Model",
    }
    edit(model / "config.json", model_type=f"strange-{name}", auto_map=own)
    line = ["search", bm25, "-q", "rivers", "--rerank-model", model]
    assert "--trust-remote-code" in lmk(*line, code=3).err
    assert not ran.exists()
    assert "1" in lmk(*line, "--trust-remote-code").out
    assert ran.exists()


def test_a_record_that_asks_for_code_is_made_again_only_with_the_flag(
    lmk: Lmk, stranger: Stranger
) -> None:
    err = lmk("repro", stranger.vectors, code=3).err
    assert str(stranger.model) in err
    assert "--trust-remote-code" in err
    assert not stranger.ran.exists()
    lmk("repro", stranger.vectors, "--trust-remote-code")
    assert stranger.ran.exists()


def test_a_record_brings_no_flags_from_a_config_file(
    lmk: Lmk, stranger: Stranger, tmp_path: Path
) -> None:
    flags = tmp_path / "flags.toml"
    flags.write_text("[encode]\ntrust-remote-code = true\n")
    recorded = json.loads((stranger.vectors / manifest.NAME).read_text())
    recorded["facts"]["operation"]["config"] = str(flags)
    (stranger.vectors / manifest.NAME).write_text(json.dumps(recorded))
    line = ["repro", stranger.vectors, "--trust-remote-code"]
    assert "no setting config" in lmk(*line, code=3).err
    assert not stranger.ran.exists()


def test_a_record_may_not_contain_a_consent(lmk: Lmk, stranger: Stranger) -> None:
    recorded = json.loads((stranger.vectors / manifest.NAME).read_text())
    recorded["facts"]["operation"]["trust_remote_code"] = True
    (stranger.vectors / manifest.NAME).write_text(json.dumps(recorded))
    line = ["repro", stranger.vectors, "--trust-remote-code"]
    assert "may not contain trust_remote_code" in lmk(*line, code=3).err
    assert not stranger.ran.exists()


@pytest.mark.parametrize("verb", ["compact", "export", "repro", "demo"])
def test_a_record_asks_for_no_verb_that_makes_no_artifact(
    lmk: Lmk, stranger: Stranger, verb: str
) -> None:
    recorded = json.loads((stranger.vectors / manifest.NAME).read_text())
    recorded["facts"]["operation"] = {"operation": verb, "folder": str(stranger.vectors)}
    (stranger.vectors / manifest.NAME).write_text(json.dumps(recorded))
    assert "makes no artifact" in lmk("repro", stranger.vectors, code=3).err


def test_an_update_runs_no_recorded_code_and_downloads_nothing(
    lmk: Lmk, stranger: Stranger, beir: Path, downloads: Downloads
) -> None:
    err = lmk("update", beir, stranger.vectors, stranger.index, code=3).err
    assert "--trust-remote-code" in err
    assert str(stranger.vectors) in err
    assert not stranger.ran.exists()
    recorded = json.loads((stranger.vectors / manifest.NAME).read_text())
    for side in recorded["identity"]["recipe"].values():
        side["trust_remote_code"] = False
    (stranger.vectors / manifest.NAME).write_text(json.dumps(recorded))
    stranger.has_model("stranger/model", "")
    lmk("update", beir, stranger.vectors, code=3)
    assert set(downloads) == {("stranger/model", True)}


def test_a_hub_name_in_a_manifest_is_not_downloaded(
    lmk: Lmk, stranger: Stranger, beir: Path, downloads: Downloads, tmp_path: Path
) -> None:
    stranger.has_model("stranger/model", "abc")
    trust = "--trust-remote-code"
    for line in (
        ["search", stranger.vectors, "-q", "x", trust],
        ["verify", stranger.vectors, trust],
    ):
        err = lmk(*line, code=3).err
        assert "lmk fetch -m stranger/model --revision abc" in err
    assert set(downloads) == {("stranger/model", True)}  # only the cache was read
    downloads.clear()
    lmk("search", stranger.vectors, "-q", "x", trust, "--model", "stranger/model", code=3)
    assert downloads == [("stranger/model", False)]  # a model named by the user may be downloaded


def test_the_base_of_an_adapter_is_not_downloaded(
    lmk: Lmk, stranger: Stranger, beir: Path, downloads: Downloads, tmp_path: Path
) -> None:
    """Also if the user names the adapter, because the base model is named by the folder."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "stranger/base", "r": 2}
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 4}))
    stranger.has_model(str(adapter), "")
    for line in (
        ["search", stranger.vectors, "-q", "x", "--trust-remote-code"],
        ["verify", stranger.vectors, "--trust-remote-code"],
        ["encode", beir, "-m", adapter, "-o", tmp_path / "v"],
    ):
        assert "lmk fetch -m stranger/base" in lmk(*line, code=3).err
    assert set(downloads) == {("stranger/base", True)}


# --- folders and files of other people ------------------------------------------------------------


def test_a_folder_with_somebody_elses_manifest_is_left_alone(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    for text in ("{}", "", '{"manifest_version": 3, "name": "An extension", "version": "1"}'):
        (tmp_path / manifest.NAME).write_text(text)
        (tmp_path / "thesis.tex").write_text("mine")
        line = ["encode", beir, "-m", tiny_model("bert"), "-o", tmp_path, "--pool", "mean"]
        err = lmk(*line, "--if-exists", "overwrite", code=3).err
        assert "was not made by lmk" in err
        assert (tmp_path / "thesis.tex").read_text() == "mine"
        assert (tmp_path / manifest.NAME).read_text() == text


def test_other_files_in_an_artifact_are_kept_and_named(
    lmk: Lmk, beir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bm25"
    line = ["index", beir, "--kind", "bm25", "-o", folder]
    lmk(*line)
    (folder / "photos").mkdir()
    for name in ("thesis.tex", "photos/1.jpg", "1/notes.txt"):
        (folder / name).write_text("mine")
    err = lmk(*line, "--if-exists", "overwrite").err
    assert "1, photos, thesis.tex" in err
    for name in ("thesis.tex", "photos/1.jpg", "1/notes.txt"):
        assert (folder / name).read_text() == "mine"
    assert "1" in lmk("search", folder, "-q", "rivers").out


def test_an_update_of_an_index_keeps_other_files(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    mine, folder = tmp_path / "beir", tmp_path / "bm25"
    shutil.copytree(beir, mine)
    lmk("index", mine, "--kind", "bm25", "-o", folder)
    away = tmp_path / "away"
    away.mkdir()
    for name in ("photos", "2"):
        (folder / name).mkdir()
        (folder / name / "1.jpg").write_text("mine")
    (folder / "link").symlink_to(away)
    (folder / "thesis.tex").write_text("mine")
    with open(mine / "corpus.jsonl", "a") as file:
        file.write('{"_id": "new", "text": "a heron by the river"}\n')
    lmk("index", mine, "--kind", "bm25", "-o", folder, "--if-exists", "update")
    for name in ("thesis.tex", "photos/1.jpg", "2/1.jpg"):
        assert (folder / name).read_text() == "mine"
    assert (folder / "link").is_symlink()
    assert not (folder / "bm25").exists()
    assert "new" in lmk("search", folder, "-q", "heron").out


def test_a_run_replaces_no_file_that_has_the_name_of_its_manifest(
    lmk: Lmk, beir: Path, tmp_path: Path
) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    (tmp_path / "results.json").write_text('{"mine": 1}')
    for how in ("resume", "overwrite", "fail"):
        line = ["search", tmp_path / "bm25", beir, "-o", tmp_path / "results", "--if-exists", how]
        assert "results.json exists" in lmk(*line, code=3).err
    assert (tmp_path / "results.json").read_text() == '{"mine": 1}'
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("verb", ["index", "encode", "export"])
def test_an_output_behind_a_link_is_rewritten_at_its_target(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, verb: str
) -> None:
    bert, folder = tiny_model("bert"), tmp_path / "real"
    line = {
        "index": ["index", beir, "--kind", "bm25"],
        "encode": ["encode", beir, "-m", bert, "--pool", "mean"],
        "export": ["export", "--to", "sentence-transformers", "-m", bert, "--pool", "mean"],
    }[verb]
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    line = [*line, "-o", tmp_path / "link"]
    for more in ([], ["--if-exists", "overwrite"], ["--if-exists", "resume"]):
        lmk(*line, *more)
        assert (tmp_path / "link").is_symlink()
        assert (folder / manifest.NAME).is_file()


def test_a_log_is_a_file(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    lmk("search", tmp_path / "bm25", beir, "-o", tmp_path / "r.trec")
    for place in ("/dev/full", "/dev/zero", tmp_path):
        code = 2 if place == tmp_path else 3
        err = lmk("eval", tmp_path / "r.trec", "-m", "nDCG@10", "--log", place, code=code).err
        assert "--log" in err


def test_overwriting_never_removes_inputs(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    model, pairs = tmp_path / "model", tmp_path / "pairs.tsv"
    pairs.write_text("rivers\trivers carry water\nbirds\tbirds migrate south\n")
    words = ["--to", "sentence-transformers", "--pool", "mean"]
    lmk("export", *words, "-m", tiny_model("bert"), "-o", model)
    lmk("index", beir, "--kind", "bm25", "-o", tmp_path / "bm25")
    run = tmp_path / "run"
    lmk("search", tmp_path / "bm25", beir, "-o", run)
    mined = f"{beir},negatives={run}"
    for line in (
        ["export", *words, "-m", model, "-o", model],
        ["train", pairs, "-m", model, "--steps", 1, "--batch-size", 2, "-o", model],
        ["train", mined, "-m", model, "--steps", 1, "--batch-size", 2, "-o", run],
    ):
        assert "would remove the input" in lmk(*line, "--if-exists", "overwrite", code=2).err
    assert (model / "model.safetensors").is_file()
    assert run.is_file()


def test_an_output_is_kept_if_its_replacement_is_refused(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    vectors, model, broken = tmp_path / "v", tmp_path / "model", tmp_path / "broken"
    shutil.copytree(tiny_model("bert"), broken)
    (broken / "model.safetensors").write_bytes(b"")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("rivers\trivers carry water\nbirds\tbirds migrate south\n")
    train = ["train", pairs, "--pool", "mean", "--steps", 1, "--batch-size", 2, "-o", model, "-m"]
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", vectors)
    lmk(*train, tiny_model("bert"))
    over = ["--if-exists", "overwrite"]
    lmk("encode", beir, "-m", broken, "--pool", "mean", "-o", vectors, *over, code=3)
    lmk(*train, broken, *over, code=3)
    lmk(*train, tiny_model("bert"), "--train", "nothing", *over, code=2)
    assert lmk("search", vectors, "-q", "rivers", "--json").json
    lmk("encode", beir, "-m", model, "-o", vectors, *over)


def test_an_index_that_is_to_be_replaced_stays_when_its_successor_is_refused(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    vectors, lists, words = tmp_path / "v", tmp_path / "lists", tmp_path / "words"
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", vectors)
    ivf = ["--kind", "IVF1,Flat", "-o", lists]
    lmk("index", vectors, *ivf)
    lmk("index", beir, "--kind", "bm25", "-o", words)
    over = ["--if-exists", "overwrite"]
    lmk("index", tmp_path, *ivf, *over, code=2)
    lmk("index", tmp_path / "none.jsonl", "--kind", "bm25", "-o", words, *over, code=3)
    (tmp_path / "moved").mkdir()
    lists.rename(tmp_path / "moved" / "lists")
    lmk("index", vectors, *ivf, "--shard", "0/2")
    (tmp_path / "moved" / "lists").rename(lists)
    assert "1" in lmk("index", vectors, *ivf, *over, code=3).err
    for index in (lists, words):
        assert lmk("search", index, "-q", "rivers", "--json").json


def test_a_setting_that_is_called_like_the_output_is_none_of_its_inputs(
    lmk: Lmk, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        lmk("index", beir, "--kind", "bm25", "-o", "bm25", "--if-exists", "overwrite")
