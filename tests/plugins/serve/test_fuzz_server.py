"""Requests drawn from the OpenAPI description: every answer is documented, and none is of the class 5xx."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import levels
from tests.plugins.serve.conftest import Start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed"),
]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


def test_drawn_requests_get_documented_answers(start: Start, indexes: Path, tmp_path: Path) -> None:
    server = start(indexes / "chunks", indexes / "bm25")
    words = ["run", f"{server.url}/openapi.json", "--checks", ",".join(CHECKS)]
    words += ["--max-examples", "60", "--seed", str(levels.SEED), "--generation-database", "none"]
    # a request beyond a limit of the description may be too large as a whole
    config = '[checks]\nnegative_data_rejection.expected-statuses = ["4xx"]\n'
    (tmp_path / "schemathesis.toml").write_text(config, encoding="utf-8")
    line = [sys.executable, "-m", "schemathesis.cli", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    found = done.stdout.partition("FAILURES")[2]
    assert done.returncode == 0, "\n".join(line[:300] for line in found.splitlines()) + done.stderr
    assert server.stop() == 75
