"""Processes that work for this one: order, errors, and their end."""

import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lmkcli.cli.library_output import escape_control_characters
from lmkcli.errors import DataError, LmkError, MissingExtra, Stopped, UnknownName, UsageError
from lmkcli.store.part_writer import DuplicateId
from lmkcli.system.workers import in_order


def squares(numbers: list[int]) -> np.ndarray:
    """Work of different length for each item, so that results are ready in another order."""
    time.sleep(0.01 * (numbers[0] % 3))
    print("noise")  # not among the results
    return np.array(numbers) ** 2


def refused(number: int) -> int:
    if number == 3:
        raise UsageError("three")
    return number


def unusual(number: int) -> int:
    if number == 1:
        raise MissingExtra("fancy", "extra", "this file")
    if number == 2:
        raise UnknownName("kind", "nam", ["name"])
    if number == 3:
        raise DuplicateId("d7 occurs twice", "d7")
    return number


def logging_process(number: int) -> int:
    """The level below which this process logs nothing."""
    logging.getLogger("a.library").error("evil\x1b[2Jname\x07")
    return logging.root.manager.disable


def killed(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def left(number: int) -> int:
    os._exit(7)


def with_processes(number: int) -> tuple[int, int]:
    return number, os.getpid()


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@pytest.mark.parametrize("count", [1, 3])
def test_results_have_the_order_of_the_items(count: int) -> None:
    items = [[n, n + 1] for n in range(20)]
    results = list(in_order(squares, items, count))
    assert [result.tolist() for result in results] == [[n * n, (n + 1) ** 2] for n in range(20)]


def test_the_work_is_divided_and_the_processes_end() -> None:
    made = in_order(with_processes, endless(), 3)
    first = [next(made) for _ in range(9)]
    assert [number for number, _ in first] == list(range(9))
    processes = {process for _, process in first}
    assert len(processes) == 3
    assert os.getpid() not in processes
    made.close()
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


def test_few_items_are_read_ahead() -> None:
    read = []

    def items() -> Iterator[int]:
        for number in endless():
            read.append(number)
            yield number

    made = in_order(refused, items(), 2)
    next(made)
    time.sleep(0.3)
    assert len(read) <= 2 * 2 + 2
    made.close()


def test_an_error_comes_after_the_results_before_it() -> None:
    made = in_order(refused, endless(), 2)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UsageError, match="three"):
        next(made)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_error_of_lmk_keeps_its_class_and_message(number: int) -> None:
    with pytest.raises(LmkError) as here:
        unusual(number)
    with pytest.raises(LmkError) as there:
        list(in_order(unusual, [number], 1))
    assert type(there.value) is type(here.value)
    assert str(there.value) == str(here.value)
    assert vars(there.value) == vars(here.value)


def test_libraries_log_as_in_this_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = logging.getLogRecordFactory()
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    escape_control_characters()
    try:
        _check_logs(capfd)
    finally:
        logging.setLogRecordFactory(factory)


def _check_logs(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(in_order(logging_process, [1], 1)) == [logging.root.manager.disable]
    assert "evil\\u001b[2Jname\\u0007" in capfd.readouterr().err
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        assert list(in_order(logging_process, [1], 1)) == [logging.CRITICAL]
    finally:
        logging.disable(before)
    assert not capfd.readouterr().err


def test_an_error_of_the_items_comes_after_the_results_before_it() -> None:
    def items() -> Iterator[int]:
        yield from (0, 1, 2)
        raise DataError("no more")

    made = in_order(refused, items(), 2)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="no more"):
        next(made)


def test_a_killed_process_is_an_error_that_says_how_to_continue() -> None:
    made = in_order(killed, endless(), 2)
    assert [next(made) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(Stopped, match=r"signal 9.*same command"):
        next(made)


def test_a_process_that_ends_is_an_error() -> None:
    with pytest.raises(DataError, match="exit code 7"):
        next(in_order(left, endless(), 1))


MAIN = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from tests.system.test_workers import endless, with_processes
from lmkcli.system.workers import in_order
for number, process in in_order(with_processes, endless(), 2):
    if number < 2:
        print(process, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_processes_end_with_the_main_one(number: int) -> None:
    """Also if a terminal sends the signal to all of them: only the main process reacts to it."""
    root = Path(__file__).parents[2]
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,
    )
    assert started.stdout is not None
    processes = [int(started.stdout.readline()) for _ in range(2)]
    if number == signal.SIGKILL:
        started.kill()
    else:
        os.killpg(started.pid, number)
    try:
        _, err = started.communicate(timeout=300)
    finally:
        started.kill()
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
        assert "EOFError" not in err
    deadline = time.monotonic() + 300  # generous, for a busy machine
    while any(running(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
