"""Each command survives a kill at every moment and a full disk: the same command completes it.

Cases and points are drawn; `python -m tests.sweeps` tries all of them. See CONTRIBUTING.md.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lmkcli.catalog import VERBS
from lmkcli.cli.main import app
from lmkcli.spec.option import options
from tests import levels, sweeps
from tests.conftest import Once
from tests.forkserver import ForkServer

CASES = sweeps.cases()
FAST = [name for name in CASES if name not in sweeps.SLOW]
ON_A_DISK = [name for name in CASES if not name.endswith(".overwrite")]  # that makes room first
BLOCKS = 16  # points that all tests of a case together try: 16, 32, … of 20 to 500
Sweep = Callable[..., None]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes and mounts of Linux")

mounting = pytest.mark.skipif(
    not sweeps.Disk.allowed(), reason="no file system may be mounted here"
)


@pytest.fixture
def sweep(
    forkserver: ForkServer, once: Once, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> Sweep:
    """Sweep a case in a forked child; fails with all that was wrong."""

    def make_base(folder: Path) -> None:
        run("make_base", str(folder), str(tiny_model("bert")))

    def run(function: str, *words: Any) -> None:
        log = tmp_path / "log"
        with open(log, "wb") as file:
            child = forkserver.call(f"tests.sweeps:{function}", *words, streams=(file, file))
            assert child.wait() == 0, log.read_text()

    def sweep(how: str, name: str, *choice: Any) -> None:
        base, report = once("sweeps/base", make_base), tmp_path / "report"
        run("drive", how, name, str(tmp_path / "world"), str(base), choice, str(report))
        wrong = sweeps.read_report(report).wrong
        assert not wrong, "\n".join(f"{point}: {text}" for point, text in wrong.items())

    return sweep


def test_every_operation_with_an_output_has_a_case() -> None:
    for verb in VERBS:
        outputs = [option for option in options(VERBS.load(verb)) if option.flag.role == "output"]
        words = [word for case in CASES.values() if case.verb == verb for word in case.words]
        for option in outputs:
            assert (option.name if option.flag.argument else option.spelling) in words, option


@pytest.mark.parametrize("name", CASES)
def test_the_command_line_of_a_case_parses(name: str) -> None:
    group: Any = get_command(app)
    verb, *words = CASES[name].words
    group.commands[verb].make_context(verb, words)


@pytest.mark.parametrize("total", [1, 10, 200, 1000])
def test_random_kills_are_spread_over_all_cases(total: int) -> None:
    counts = {name: choice[1] for name, choice in sweeps._spread(total, [*CASES], 7).items()}
    assert sum(counts.values()) == total
    assert len(counts) == min(total, len(set(CASES) - set(sweeps.READ_ONLY)))
    others = {count for name, count in counts.items() if name not in sweeps.SLOW}
    assert max(others) - min(others) <= 1
    assert all(counts.get(name, 0) <= sweeps.FEW for name in sweeps.SLOW)


@pytest.mark.parametrize("name", levels.sample("killed", FAST, 3))
def test_the_same_command_completes_a_killed_one(sweep: Sweep, name: str) -> None:
    sweep("kills", name, "some", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "block"),
    levels.sample("moments", [(name, n) for name in CASES for n in range(BLOCKS)], 6),
)
def test_a_command_survives_a_kill_at_every_moment(sweep: Sweep, name: str, block: int) -> None:
    sweep("kills", name, "block", block, BLOCKS)


@pytest.mark.parametrize("name", levels.sample("stopped", FAST, 2))
def test_a_signal_stops_with_75_and_the_same_command_continues(sweep: Sweep, name: str) -> None:
    sweep("stops", name, "some", 3)


@mounting
@pytest.mark.parametrize("name", levels.sample("full", sorted({*FAST} & {*ON_A_DISK}), 2))
def test_after_a_full_disk_the_same_command_completes(sweep: Sweep, name: str) -> None:
    sweep("disks", name, "some", 2)


@mounting
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "block"),
    levels.sample("pages", [(name, n) for name in ON_A_DISK for n in range(BLOCKS)], 4),
)
def test_a_command_ends_well_with_any_room_on_the_disk(sweep: Sweep, name: str, block: int) -> None:
    sweep("disks", name, "block", block, BLOCKS)
