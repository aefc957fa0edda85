"""The grids for the tables of papers can be planned offline, without models and collections."""

from pathlib import Path

import pytest

from lmkcli.cli import main
from lmkcli.data import known_collections

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "examples" / "papers").glob("*.toml"))


@pytest.mark.slow  # a thousand cells each
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_table_is_planned_offline_with_all_its_cells(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["lmk", "grid", str(file), "-o", "nowhere", "--dry-run", "--offline"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert not left.value.code
    planned = capsys.readouterr()
    assert "left out" not in planned.err
    counts = {row.split()[0]: row.split()[1:] for row in planned.out.splitlines()[-6:] if row}
    assert counts["eval"][0] == counts["search"][0]


def test_each_table_has_a_grid() -> None:
    assert [file.stem for file in FILES] == [
        *("conteb", "lmk-table1", "lmk-table13", "lmk-table14", "lmk-table2", "lmk-table7"),
        *("lmk-table8", "loco-m2bert", "tite-table1", "tite-table4"),
    ]
    assert known_collections.members("conteb")
    assert known_collections.members("loco")
