"""Downloads from a local hub, in separate processes: once, complete, cached and resumed."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmkcli.data import hub_layouts
from lmkcli.system import network
from tests import mirrors
from tests.hub_server import Hub

ROOT = Path(__file__).resolve().parents[2]
PINNED = "d67138e705d963e346253a80e59676ddb418810a"
SCRIPT = """
import json, sys
from lmkcli.data.collection import open_collection
from lmkcli.errors import LmkError
try:
    found = open_collection(sys.argv[1])
    found.fetch()
    print(json.dumps([len(list(found.docs())), len(list(found.judged_queries())), found.file_stats()]))
except LmkError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path / "remote")
    mirrors.mldr(made.root, "en")
    mirrors.text(made.root / "Shitao/MLDR/README.md", "---\nlicense: mit\n---\n")
    mirrors.loco(made.root, ["qmsum"])
    for name in ("Documents", "Queries"):
        mirrors.card(
            made.root / f"hazyresearch/LoCoV1-{name}", {"default": {"test": "data/test-*"}}
        )
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(hub: Hub, tmp_path: Path) -> Start:
    """Start a process that fetches and reads a collection, with a separate cache."""

    def run(name: str, **more: str) -> "subprocess.Popen[str]":
        env = {
            k: v for k, v in os.environ.items() if k not in (network.VARIABLE, hub_layouts.MIRROR)
        }
        env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        words = [sys.executable, "-c", SCRIPT, name]
        return subprocess.Popen(words, cwd=ROOT, env=env | more, stdout=subprocess.PIPE, text=True)

    return run


def outcome(process: "subprocess.Popen[str]") -> Any:
    return json.loads(process.communicate()[0])


FILES = {
    "README.md", "mldr-v1.0-en/corpus.jsonl.gz", "mldr-v1.0-en/test.jsonl.gz",
    "qrels/qrels.mldr-v1.0-en-test.tsv",
}  # fmt: skip


def test_two_processes_download_each_file_once_and_later_processes_send_no_request(
    hub: Hub, start: Start
) -> None:
    both = [start("mldr/en/test") for _ in range(2)]
    results = [outcome(process) for process in both]
    assert results[0] == results[1]
    docs, queries, stamp = results[0]
    assert (docs, queries) == (6, 3)
    assert list(stamp) == [f"Shitao/MLDR@{PINNED}/mldr-v1.0-en/corpus.jsonl.gz"]
    assert {name for name, _ in hub.served} == FILES  # without other languages and scripts
    assert len(hub.served) == len(FILES)
    hub.requests.clear()
    assert outcome(start("mldr/en/test")) == results[0]
    assert outcome(start("mldr/en/test", HF_HUB_OFFLINE="1")) == results[0]
    assert hub.requests == []


def test_without_a_pinned_commit_the_first_commit_is_recorded_and_kept(
    hub: Hub, start: Start
) -> None:
    first = outcome(start("loco/qmsum"))
    assert [key.split("/data/")[0] for key in first[2]] == [
        f"hazyresearch/LoCoV1-Documents@{hub.commit}"
    ]
    hub.commit = "0" * 39 + "2"
    assert outcome(start("loco/qmsum")) == first


def test_an_interrupted_download_continues(hub: Hub, start: Start) -> None:
    corpus = hub.root / "Shitao/MLDR/mldr-v1.0-en/corpus.jsonl.gz"
    mirrors.jsonl(corpus, [{"docid": f"d{i}", "text": os.urandom(99).hex()} for i in range(9000)])
    hub.cut = 700_000
    assert outcome(start("mldr/en/test"))[0] == 9000
    assert sum(name.endswith("corpus.jsonl.gz") for name, _ in hub.served) > 1
    assert hub.cut == 0


def test_an_incomplete_cache_is_not_a_smaller_collection(
    hub: Hub, start: Start, tmp_path: Path
) -> None:
    mirrors.miracl(hub.root, "sw")
    assert outcome(start("hf:miracl/sw/dev"))[0] == 6
    pointer = next((tmp_path / "hf").rglob("docs-1.jsonl.gz"))
    pointer.unlink()
    message = outcome(start("hf:miracl/sw/dev", HF_HUB_OFFLINE="1"))
    assert "Run lmk fetch hf:miracl/sw/dev once" in message
    assert outcome(start("hf:miracl/sw/dev"))[0] == 6


def test_a_repository_that_the_hub_does_not_have(hub: Hub, start: Start) -> None:
    message = outcome(start("coir/cosqa"))
    assert "CoIR-Retrieval/cosqa: it cannot be downloaded" in message
    assert "LMK_DATA=folder with folder/CoIR-Retrieval/cosqa/" in message
    (hub.root / "CoIR-Retrieval/cosqa").mkdir(parents=True)
    mirrors.text(hub.root / "CoIR-Retrieval/cosqa/cosqa.py", "print('never run')")
    assert "no file of configuration 'corpus'" in outcome(start("coir/cosqa"))
