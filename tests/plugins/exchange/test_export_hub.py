"""Uploads to a hub on this machine that speaks the protocol of huggingface_hub, and model cards."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml

from lmkcli.encoding.resolution import resolve
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.system import network
from tests.conftest import Lmk

Models = Callable[[str], Path]
REPO, TOKEN, COMMIT = "somebody/tiny", "hf_of_the_test", "a" * 40


class Hub(ThreadingHTTPServer):
    """Accept repositories and commits; large files arrive in a store of their own before the commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.created: list[dict[str, Any]] = []
        self.stored: dict[str, bytes] = {}  # large files by digest
        self.files: dict[str, bytes] = {}  # of the repository

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_PUT(self) -> None:
        data = self._body()
        self.server.stored[hashlib.sha256(data).hexdigest()] = data
        self._answer({})

    def do_POST(self) -> None:
        body, path = self._body(), self.path.partition("?")[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid credentials"}, 401)
        if path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            return self._answer({"url": f"{self.server.url}/{REPO}"})
        if path == "/api/validate-yaml":
            yaml.safe_load(json.loads(body)["content"].split("---")[1])
            return self._answer({"errors": [], "warnings": []})
        if path == f"/api/models/{REPO}/preupload/main":
            return self._answer({"files": [_mode(f["path"]) for f in json.loads(body)["files"]]})
        if path == f"/{REPO}.git/info/lfs/objects/batch":
            objects = [self._action(one) for one in json.loads(body)["objects"]]
            return self._answer({"transfer": "basic", "objects": objects})
        if path == f"/api/models/{REPO}/commit/main":
            self._commit([json.loads(line) for line in body.splitlines()])
            url = f"{self.server.url}/{REPO}/commit/{COMMIT}"
            return self._answer({"commitUrl": url, "commitOid": COMMIT})
        return self._answer({"error": path}, 404)

    def _action(self, one: dict[str, Any]) -> dict[str, Any]:
        upload = {"href": f"{self.server.url}/store/{one['oid']}", "header": {}}
        return {**one, "authenticated": True, "actions": {"upload": upload}}

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.stored[value["oid"]]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, value: Any, code: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        for name, text in (
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
        ):
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)


def _mode(path: str) -> dict[str, Any]:
    mode = "lfs" if path.endswith(".safetensors") else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": None}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub as the endpoint of this process, with a token for it."""
    made = Hub()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", made.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.delenv(network.VARIABLE, raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_the_folder_is_uploaded_without_its_manifest(
    lmk: Lmk,
    hub: Hub,
    tiny_model: Models,
    tmp_path: Path,
) -> None:
    folder, back = tmp_path / "tiny", tmp_path / "back"
    words = ("export", "-m", tiny_model("bert"), "--pool", "lmk", "--gran", 8, "--to", "hub")
    done = lmk(*words, "-o", folder, "--repo", REPO, "--private", "--json").json
    assert (done["repo"], done["commit"]) == (REPO, COMMIT)
    (created,) = hub.created
    assert created["name"] == "tiny"
    assert created.get("private") or created.get("visibility") == "private"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {*hub.files} == files - {"manifest.json"}
    for name, data in hub.files.items():
        assert data == (folder / name).read_bytes()
        (back / name).parent.mkdir(parents=True, exist_ok=True)
        (back / name).write_bytes(data)
    given = RecipeOptions(model=str(tiny_model("bert")), pool="lmk", gran="8")
    assert resolve(RecipeOptions(model=str(back))).recipe == resolve(given).recipe


@pytest.mark.parametrize(
    ("token", "repo", "code", "why"),
    [
        ("hf_of_another", REPO, 3, f"/out .*not uploaded to {REPO}: .*401"),
        ("", REPO, 3, "/out .*no token; .*HF_TOKEN"),
        (TOKEN, "a/b/c", 2, "--repo a/b/c"),
    ],
)
def test_a_refused_upload_leaves_the_folder(
    lmk: Lmk,
    hub: Hub,
    tiny_model: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    repo: str,
    code: int,
    why: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    words = ("export", "-m", tiny_model("bert"), "--pool", "cls", "--to", "hub")
    assert re.search(why, lmk(*words, "-o", tmp_path / "out", "--repo", repo, code=code).err)
    assert not hub.files
    assert (tmp_path / "out" / "README.md").is_file()


def test_the_card_has_the_training_and_the_scores(
    lmk: Lmk,
    tiny_model: Models,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all entries of the log, those with the weights of this model; no folder of this machine."""
    monkeypatch.chdir(tmp_path)
    pairs = "".join(f"copper {n}\tcopper and iron {n}\n" for n in range(6))
    Path("pairs.tsv").write_text(pairs)
    train = ("train", tmp_path / "pairs.tsv", "-m", tiny_model("bert"), "--pool", "lmk")
    lmk(*train, "--gran", "8,16", "--steps", 2, "--batch-size", 2, "--lr", 0.05, "-o", "model")
    for name, model in (("trained", "model"), ("other", tiny_model("bert"))):
        lmk("encode", beir, "-m", model, "--pool", "lmk", "--gran", 8, "-o", name)
        lmk("search", name, beir, "-o", f"{name}.trec")
        lmk("eval", f"{name}.trec", "-m", "nDCG@10", "--log", "scores.jsonl")
    scores = [json.loads(line)["scores"] for line in Path("scores.jsonl").read_text().splitlines()]
    made = lmk("export", "-m", "model", "--to", "hub", "--log", "scores.jsonl", "-o", "pushed")
    assert "1 entries" in made.err
    card = Path("pushed/README.md").read_text()
    _, metadata, text = card.split("---\n", 2)
    about = yaml.safe_load(metadata)
    assert about["library_name"] == "sentence-transformers"
    assert "landmark-pooling" in about["tags"]
    (entry,) = about["model-index"]
    (result,) = entry["results"]
    assert entry["name"] == "pushed"
    assert result["metrics"][0]["value"] == pytest.approx(scores[0]["nDCG@10"], abs=1e-6)
    assert scores[0] != scores[1]
    for fact in (
        *(
            "base model | `bert`",
            "pooler | `lmk`",
            "training drew from 8, 16",
            "Loss infonce, 2 steps",
        ),
        *("`pairs.tsv`: 6 examples", f"{scores[0]['nDCG@10']:.4f}", '"REPOSITORY"'),
    ):
        assert fact in text, fact
    assert str(tmp_path) not in card
    assert "training.json" not in {path.name for path in Path("pushed").iterdir()}


def test_flags_of_the_hub(lmk: Lmk, tiny_model: Models, tmp_path: Path) -> None:
    words = ("export", "-m", tiny_model("bert"), "--pool", "cls", "-o", tmp_path / "out")
    hub = (*words, "--to", "hub")
    assert "--offline forbids" in lmk(*hub, "--repo", REPO, "--offline", code=2).err
    assert "name it with --repo" in lmk(*hub, "--private", code=2).err
    st = (*words, "--to", "sentence-transformers", "--repo", REPO)
    assert "--repo has no effect" in lmk(*st, code=2).err
    assert not (tmp_path / "out").exists()
