"""The fork server: its children are processes of their own, and end with the process that started them."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import waited
from tests.forkserver import ForkServer


def test_a_child_has_its_own_words_streams_folder_and_environment(
    light_forkserver: ForkServer, tmp_path: Path
) -> None:
    code = "import os, sys; print(sys.argv, os.getcwd(), os.environ['ONE'], file=sys.stderr)"
    with open(tmp_path / "err", "w+") as err:
        child = light_forkserver.call(
            "builtins:exec", code, {}, words=["x", "a b"], cwd=tmp_path,
            env={"ONE": "1"}, streams=(err, err),
        )  # fmt: skip
        assert child.wait() == 0
    assert (tmp_path / "err").read_text() == f"['x', 'a b'] {tmp_path} 1\n"


@pytest.mark.parametrize(
    ("code", "status", "printed"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_exit_codes_are_those_of_python(
    light_forkserver: ForkServer, tmp_path: Path, code: str, status: int, printed: str
) -> None:
    with open(tmp_path / "err", "w+") as err:
        child = light_forkserver.call("builtins:exec", code, {}, streams=(err, err))
        assert child.wait() == child.code == status
    assert printed in (tmp_path / "err").read_text()


def test_a_wait_may_end_before_the_child(light_forkserver: ForkServer) -> None:
    child = light_forkserver.call("time:sleep", 900)
    assert child.wait(0.01) is None
    child.signal(signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


SLEEP = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print(os.getpid(), flush=True)
while True:
    time.sleep(1)  # a signal just before one long sleep would wait for its end
"""


def test_a_program_passes_streams_signals_and_the_exit_code_on(
    light_forkserver: ForkServer, tmp_path: Path
) -> None:
    line = "import sys; print(sys.stdin.read(), end=''); sys.exit(len(sys.argv))"
    program = light_forkserver.program(tmp_path / "one", "builtins:exec", line, {})
    done = subprocess.run([program, "a"], input="text", capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "text", "")
    sleep = light_forkserver.program(tmp_path / "two", "builtins:exec", SLEEP, {})
    with subprocess.Popen([sleep], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.terminate()
        assert running.wait() == 75


def test_a_child_ends_with_the_program_that_started_it(
    light_forkserver: ForkServer, tmp_path: Path
) -> None:
    sleep = light_forkserver.program(tmp_path / "two", "builtins:exec", SLEEP, {})
    with subprocess.Popen([sleep], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        running.kill()
    waited("the end of the child", lambda: not is_alive(pid), lambda: "")


@pytest.mark.parametrize("sent", ["nothing", "a part", "everything"])
def test_a_server_outlives_a_client_that_is_killed(tmp_path: Path, sent: str) -> None:
    """The client of a killed program is gone before the server tells it the pid of its child."""
    server = ForkServer(tmp_path / "s")
    server.start(os.getpid(), "json")
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as client, open(os.devnull, "r+b") as nothing:
            client.connect(str(server.path))
            request = ["time:sleep", [900], ["lmk"], str(tmp_path), dict(os.environ)]
            data = json.dumps(request).encode()
            if sent != "nothing":
                socket.send_fds(client, [len(data).to_bytes(8, "big")], [nothing.fileno()] * 3)
                client.sendall(data if sent == "everything" else data[:-1])
        assert server.execute("print(1)") == "1\n"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_ends_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        server = ForkServer(path)
        server.start(owner.pid, "json")
        assert server.execute("print(1)") == "1\n"
        owner.communicate(b"\n")
    waited("the end of the server", lambda: not path.exists(), lambda: "")
