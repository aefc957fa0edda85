"""The table of threats in docs/security.md: a row for every source, and the tests that show it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# The first cell of each row, with the tests of what this source can and cannot do.
TESTS = {
    "model": (
        *("models/test_consent.py", "models/test_weight_files.py", "models/test_hostile.py"),
        *("models/test_declared_sizes.py", "models/test_changing_folder.py", "cli/test_trust.py"),
    ),
    "adapter": ("models/test_adapters.py", "models/test_consent.py"),
    "vectors, tokens": (
        *("cli/test_trust.py", "cli/test_damage.py", "data/test_parquet.py"),
        "vectors/test_stored.py",
    ),
    "index": ("cli/test_damage.py", "cli/test_trust.py"),
    "collection": (
        *("data/test_hostile_collections.py", "data/test_other_peoples_files.py"),
        *("data/test_parquet.py", "plugins/documents/test_folder.py"),
    ),
    "run, judgements": ("data/test_run.py", "test_hostile_readers.py"),
    "record of a command": ("provenance", "cli/test_repro.py"),
    "`--config` file": ("cli/test_configfile.py",),
    "grid file": ("plugins/grid/test_slurm_scripts.py",),
    "files in the current folder": ("test_foreign_modules.py",),
    "disk": ("cli/test_full_disk.py", "cli/test_disk_errors.py", "cli/test_power_failure.py"),
    "request to `lmk serve`": (
        *("plugins/serve/test_app.py", "plugins/serve/test_connections.py"),
        "plugins/serve/test_fuzz_server.py",
    ),
    "answer of a server": ("plugins/serve/test_client.py", "plugins/serve/test_bad_answers.py"),
}


def rows() -> list[list[str]]:
    """The cells of the table: source, what it can, what it cannot."""
    section = (ROOT / "docs" / "security.md").read_text("utf-8").split("\n## Threats\n")[1]
    section = section.split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_source_has_a_row_and_tests() -> None:
    assert [row[0] for row in rows()] == list(TESTS)
    assert all(len(row) == 3 and all(row) for row in rows())


@pytest.mark.parametrize("source", TESTS)
def test_the_named_tests_exist(source: str) -> None:
    assert [name for name in TESTS[source] if not (ROOT / "tests" / name).exists()] == []
