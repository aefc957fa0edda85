"""The tests of test_milvus.py with a Milvus server instead of Milvus Lite."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_server_does_what_a_file_does(tmp_path: Path) -> None:
    milvus = pytest.importorskip("milvus", reason="the package exists only for Linux on x86-64")
    server = milvus.MilvusServer()
    server.set_base_dir(str(tmp_path / "server"))
    with server:  # on free ports
        address = f"http://127.0.0.1:{server.listen_port}"
        # Nearly all of their time is waiting for the server, so four wait at once.
        words = ["-n", "4", "-m", "", "-p", "no:cacheprovider", "--basetemp", tmp_path / "t"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                *words,
                "tests/plugins/milvus/test_milvus.py",
            ],
            cwd=ROOT,
            env={**os.environ, "LMK_TEST_MILVUS": address},
            capture_output=True,
            text=True,
            timeout=1800,
        )
    assert done.returncode == 0, done.stdout[-5000:]
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", done.stdout[-300:])}
    assert counts.get("passed", 0) >= 35, done.stdout[-300:]
    assert counts["skipped"] == 11  # what concerns only Milvus Lite, or not the server at all
