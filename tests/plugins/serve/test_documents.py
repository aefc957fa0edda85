"""Documents on a server: their index is served whole, and changes of files are served too."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from lmkcli import BuildIndex, Encode
from lmkcli.plugins.documents.own_index import EncodeCall, OwnIndex, OwnIndexOptions
from lmkcli.plugins.serve.app import make_app
from lmkcli.plugins.serve.service import SearchService
from lmkcli.progress import SILENT
from tests import tiny


@pytest.fixture
def own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path]
) -> OwnIndex:
    """The index of two notes, in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "my notes"
    folder.mkdir()
    (folder / "printer.md").write_text("# Printer\n\nIt jams when paper is damp.\n")
    (folder / "two rivers.txt").write_text("Rivers carry water to the sea.\n")
    model = str(tiny_model("bert"))
    own = OwnIndex(f"folder:{folder}", model, OwnIndexOptions(), EncodeCall())
    own.refresh(SILENT)
    return own


def ask(client: TestClient, question: str) -> dict[str, Any]:
    answer = client.get("/v1/search", params={"q": question})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_documents_are_one_index_with_two_parts(own: OwnIndex) -> None:
    service = SearchService([own])
    with TestClient(make_app(service), base_url="http://127.0.0.1") as client:
        listed = client.get("/v1/indexes").json()["indexes"]
        assert [(each["name"], each["part_of"]) for each in listed] == [
            ("my notes", None),
            ("my notes-vectors", "my notes"),
            ("my notes-bm25", "my notes"),
        ]
        assert listed[0]["documents"] == 2
        found = ask(client, "water rivers")
        hit = found["hits"][0]
        assert (hit["id"], hit["passage"]["path"], hit["passage"]["lines"]) == (
            "two rivers.txt",
            "two rivers.txt",
            [1, 1],
        )
        assert found["words"] == ["rivers", "water"]
        assert found["answered"] is None, "not measured for this model"
        document = client.get("/v1/documents/two rivers.txt", params={"query": "water"}).json()
        assert document["words"] == ["water"]
        assert document["passage"]["lines"] == [1, 1]


def test_documents_are_encoded_again_with_a_changed_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, note = tmp_path / "model", tmp_path / "rivers.txt"
    note.write_text("Rivers carry water to the sea.\n")
    for kind in ("bert", "roberta"):
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(tiny_model(kind), model)
        own = OwnIndex(f"folder:{note}", str(model), OwnIndexOptions(), EncodeCall())
        own.refresh(SILENT)
        assert own.is_current()
        with TestClient(make_app(SearchService([own])), base_url="http://127.0.0.1") as client:
            assert ask(client, "water rivers")["hits"]


def test_changed_files_are_served(
    own: OwnIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmkcli.plugins.serve.service.LOOK_SHARE", 0)
    notes: list[str] = []
    service = SearchService([own], note=notes.append)
    with TestClient(make_app(service), base_url="http://127.0.0.1") as client:
        (tmp_path / "my notes" / "zeppelin.md").write_text("The zeppelin lands at noon.\n")
        service.refresh()
        assert ask(client, "zeppelin")["hits"][0]["id"] == "zeppelin.md"
        (tmp_path / "my notes" / "zeppelin.md").unlink()
        service.refresh()
        assert "zeppelin.md" not in [hit["id"] for hit in ask(client, "zeppelin")["hits"]]
        for file in (tmp_path / "my notes").iterdir():
            file.unlink()
        service.refresh()
        service.refresh()
        assert len(ask(client, "zeppelin")["hits"]) == 2, "the last index stays"
        assert "cannot be updated yet" in "".join(notes)


def test_the_interface_describes_itself_without_other_hosts(own: OwnIndex) -> None:
    with TestClient(make_app(SearchService([own])), base_url="http://127.0.0.1") as client:
        page = client.get("/docs")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "//" not in page.text.replace("<!DOCTYPE", "")
        script = client.get("/docs.js")
        assert "https://" not in script.text
        routes = client.get("/openapi.json").json()["paths"]
        assert set(routes["/v1/search"]) == {"get", "post"}
        assert client.get("/v1/search").status_code == 422
        assert client.get("/v1/search", params={"q": "a", "index": "no"}).status_code == 404


def test_conditions_select_documents(own: OwnIndex) -> None:
    with TestClient(make_app(SearchService([own])), base_url="http://127.0.0.1") as client:
        for request in (
            lambda where: client.get("/v1/search", params={"q": "water paper", "where": where}),
            lambda where: client.post("/v1/search", json={"query": "water paper", "where": where}),
        ):
            answer = request(["type=txt"]).json()
            found = answer["results"][0] if "results" in answer else answer
            assert [hit["id"] for hit in found["hits"]] == ["two rivers.txt"]
            assert found["complete"]
            assert request(["type>txt"]).status_code == 400
        body = {"query": "a", "where": "type=md", "index": "my notes-bm25"}
        assert client.post("/v1/search", json=body).status_code == 200


def test_conditions_select_documents_of_own_indexes(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    """Also those of an index that `lmk index` built; the ranking is filtered before it is reranked."""
    rows = [{"id": f"r{n}", "text": f"water {n}", "year": 2000 + n} for n in range(30)]
    tiny.write_jsonl(tmp_path / "rows.jsonl", rows)
    tiny.write_jsonl(tmp_path / "more.jsonl", rows[:3])
    dense, words, other = (tmp_path / name for name in ("dense", "words", "other"))
    model = str(tiny_model("bert"))
    Encode(str(tmp_path / "rows.jsonl"), model=model, output=dense, dtype="fp32").run()
    BuildIndex(str(tmp_path / "rows.jsonl"), kind="bm25", output=words).run()
    BuildIndex(str(tmp_path / "more.jsonl"), kind="bm25", output=other).run()
    service = SearchService([dense, words, other])
    with TestClient(make_app(service), base_url="http://127.0.0.1") as client:

        def found(status: int = 200, **body: Any) -> Any:
            answer = client.post("/v1/search", json={"query": "water", **body})
            assert answer.status_code == status, answer.text
            if status != 200:
                return answer.json()["error"]["message"]
            return {hit["id"] for hit in answer.json()["results"][0]["hits"]}

        whole = client.post("/v1/search", json={"query": "water", "k": 30}).json()
        last = whole["results"][0]["hits"][-1]["id"]
        year = f"year={2000 + int(last[1:])}"
        for body in (
            {"index": "dense"},
            {"index": "words"},
            {"index": ["dense", "words"]},
            {"index": "dense", "rerank": "dense", "rerank_depth": 2, "k": 1},
        ):
            assert found(**body, where=year) == {last}
        rerank = {"index": "dense", "rerank": "dense", "rerank_depth": 2, "k": 1}
        assert found(**rerank, id_prefix=last) == {last}
        assert "different collections" in found(400, index=["words", "other"], where=year)
        assert "'yeer'" in found(400, index="dense", where="yeer=2001")
        tiny.write_jsonl(tmp_path / "rows.jsonl", rows[:5])
        message = found(400, index="dense", where=year)
        assert "have changed" in message
        assert str(tmp_path) not in message
