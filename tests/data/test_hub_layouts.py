"""Layouts: words of a name, pinned commits, the mirror folder."""

from pathlib import Path

import pytest

from lmkcli.data import hub_layouts, known_collections
from lmkcli.data.hub_layouts import HubLayout, HubTable
from lmkcli.errors import DataError


def layout(name: str) -> HubLayout:
    found = hub_layouts.layout_of(name)
    assert found is not None
    return found


def test_words_of_a_name_fill_the_tables() -> None:
    found = layout("mldr/zh/dev")
    assert found.docs.files == ("mldr-v1.0-zh/corpus.jsonl.gz",)
    assert found.qrels.files == ("qrels/qrels.mldr-v1.0-zh-dev.tsv",)
    assert layout("longembed/needle/1024").qrels.where == {"context_length": "1024"}
    assert layout("beir/quora/dev").qrels.files == ("dev.tsv",)
    assert layout("beir/arguana").qrels.files == ("test.tsv",)
    assert layout("nano-beir/fiqa").docs.repo == "zeta-alpha-ai/NanoFiQA2018"
    assert layout("conteb/squad").docs.split == "validation"
    assert [table.repo for table in layout("miracl/sw/dev").tables] == [
        "miracl/miracl-corpus", "miracl/miracl", "miracl/miracl"
    ]  # fmt: skip


def test_a_pattern_matches_whole_names_only() -> None:
    assert hub_layouts.layout_of("mldr/en") is None
    assert hub_layouts.layout_of("mldr/en/test/more") is None
    assert hub_layouts.layout_of("msmarco-document/dev") is None


def test_pins_are_commits_of_repositories_that_are_read() -> None:
    found = [hub_layouts.layout_of(name) for name in known_collections.names()]
    tables = [table for each in found if each for table in each.tables]
    pinned = {table.repo: table.revision for table in tables if table.revision}
    assert set(hub_layouts._read()["revisions"]) == set(pinned)
    assert all(len(commit) == 40 and int(commit, 16) for commit in pinned.values())
    assert len(pinned) > 30


def test_only_the_qasper_tasks_skip_queries() -> None:
    skipping = [name for name in known_collections.members("loco") if layout(name).skip_empty]
    assert skipping == ["loco/qasper_title", "loco/qasper_abstract"]


def test_expected_columns_in_messages() -> None:
    table = HubTable("a/b", columns={"id": "_id|id", "query": "#"}, where={"dataset": "x"})
    assert table.expected == "_id or id, dataset"
    assert table.names("title") == []


def test_the_mirror_must_have_every_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hub_layouts.MIRROR, str(tmp_path))
    (tmp_path / "BeIR/scifact").mkdir(parents=True)
    assert not layout("beir/scifact/test").mirrored
    (tmp_path / "BeIR/scifact-qrels").mkdir()
    assert layout("beir/scifact/test").mirrored
    monkeypatch.setenv(hub_layouts.MIRROR, "")
    assert hub_layouts.mirror("BeIR/scifact") is None
    monkeypatch.setenv(hub_layouts.MIRROR, str(tmp_path / "absent"))
    with pytest.raises(DataError, match="absent: no such folder"):
        hub_layouts.mirror("BeIR/scifact")


def test_published_facts() -> None:
    facts = hub_layouts.published("mldr/en/test")
    assert facts["on the hub"] == "Shitao/MLDR@d67138e705d963e346253a80e59676ddb418810a"
    assert facts["documents"] == 200_000
    assert hub_layouts.published("beir/arguana")["a query's own document"] == "is no result"
    assert hub_layouts.published("notes.jsonl") == {}
