"""File names as a shell reads them: home folders, folders with the name '~x', names that are not UTF-8."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Lmk = Callable[..., Any]
NOBODY = "~nobody-of-this-name"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def test_a_tilde_after_an_equals_sign_is_expanded(
    lmk: Lmk, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shells do not expand '~' in --output=~/x, in the value of a variable, or in a config file."""
    lmk("index", beir, "--kind=bm25", "--output=~/one")
    monkeypatch.setenv("LMK_INDEX_OUTPUT", "~/two")
    lmk("index", beir, "--kind=bm25")
    monkeypatch.delenv("LMK_INDEX_OUTPUT")
    Path("lmk.toml").write_text('[index]\noutput = "~/three"\nkind = "bm25"\n')
    lmk("index", beir, "--config", "lmk.toml")
    assert sorted(os.listdir(tmp_path / "home")) == ["one", "three", "two"]
    assert os.listdir() == ["lmk.toml"]
    assert "1" in lmk("search", "~/one", "-q", "rivers").out


def test_a_tilde_without_such_a_user_is_a_name(lmk: Lmk, beir: Path) -> None:
    Path(NOBODY).mkdir()
    Path(NOBODY, "docs.jsonl").write_text('{"_id": "a", "text": "rivers"}\n')
    lmk("index", f"{NOBODY}/docs.jsonl", "--kind", "bm25", "-o", f"{NOBODY}/bm25")
    assert "a" in lmk("search", f"{NOBODY}/bm25", "-q", "rivers").out
    for line in (
        ["encode", beir, "-m", f"{NOBODY}/model", "-o", "v"],
        ["train", f"{NOBODY}/pairs.jsonl", "-m", f"{NOBODY}/model", "-o", "m"],
        ["index", "~nobody-else/docs.jsonl", "--kind", "bm25", "-o", "i"],
        ["show", "~nobody-else"],
        ["eval", "~nobody-else/run.trec"],
    ):
        assert "~nobody" in lmk(*line, code=3).err
    assert os.listdir() == [NOBODY]


def test_a_file_without_permission_is_the_error_of_its_reading(
    lmk: Lmk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command asks first whether it may read: on some network disks, that answer is wrong."""
    Path("run.trec").write_text("q1 Q0 d1 1 2.0 x\n")
    Path("judged.qrels").write_text("q1 0 d1 1\n")
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda *_, **__: False)
        assert "1.0000" in lmk("eval", "run.trec", "--qrels", "judged.qrels").out
        assert "collection" in lmk("search", "run.trec", "-q", "a", code=2).err
    os.chmod("run.trec", 0)
    if os.geteuid():  # the root user may read all files
        assert "run.trec" in lmk("eval", "run.trec", "--qrels", "judged.qrels", code=3).err


def test_without_a_home_folder(
    lmk: Lmk, beir: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as on a machine without users
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", "v")
    assert os.listdir() == ["v"]


def test_names_that_are_not_utf_8(lmk: Lmk, beir: Path, tiny_model: Callable[[str], Path]) -> None:
    name = os.fsdecode(b"d\xff")
    Path(f"{name}.jsonl").write_text('{"_id": "a", "text": "rivers"}\n')
    os.symlink(beir, name)
    os.symlink(tiny_model("bert"), f"{name}-model")
    lmk("index", f"{name}.jsonl", "--kind", "bm25", "-o", "bm25")
    assert "a" in lmk("search", "bm25", "-q", "rivers").out
    assert "\\udcff" in lmk("show", "bm25").out
    lmk("search", "bm25", f"./{name}", "-o", "run.trec")
    assert "\\udcff" in lmk("show", "run.trec").out
    for line in (
        ["encode", f"./{name}", "-m", f"{name}-model", "--pool", "mean", "-o", "v"],
        ["index", beir, "--kind", "bm25", "-o", f"{name}-bm25"],
        ["encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", f"{name}-v"],
        ["eval", f"{name}.trec"],
    ):
        err = lmk(*line, code=3).err
        assert "\\udcff" in err
        assert "Traceback" not in err
    assert not {f"{name}-bm25", f"{name}-v", "v"} & set(os.listdir())
