"""What `lmk show` tells people first, and what is behind -v and --json."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Lmk = Callable[..., Any]
Models = Callable[[str], Path]
_DIGEST = re.compile(r"\b[0-9a-f]{16,}\b")


def test_people_see_no_digest_and_nothing_twice(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    folder = tmp_path / "v"
    words = ["encode", beir, "-m", tiny_model("bert"), "--pool", "lmk", "--gran", 8]
    lmk(*words, "--query-max-length", 16, "-o", folder)
    said = lmk("show", folder).out
    assert not _DIGEST.search(said)
    lines = said.splitlines()
    assert lines[:3] == [f"artifact: vectors {folder}", "contents:", "  docs: 60"]
    assert lines[-1].startswith("command: ")
    assert lines[lines.index("queries:") + 1] == "  max_length: 16"
    facts = lmk("show", folder, "--json").json
    assert facts["documents"]["weights"] in lmk("-v", "show", folder).out
    assert list(facts)[:3] == ["artifact", "fingerprint", "made"]


def test_queries_like_documents_are_said_so(
    lmk: Lmk, beir: Path, tmp_path: Path, tiny_model: Models
) -> None:
    lmk("encode", beir, "-m", tiny_model("bert"), "--pool", "mean", "-o", tmp_path / "v")
    assert "queries: as documents\n" in lmk("show", tmp_path / "v").out
