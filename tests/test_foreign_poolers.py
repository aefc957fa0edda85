"""Poolers of other packages with settings: faults of such a package are named, and other poolers work."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_architecture import PACKAGE
from tests.test_plugins import run_lines

ROWS = """
from lmkcli.catalog import PoolerRow
ROWS = (PoolerRow("soft", "soft.pooler:SOFT", "soft", settings="soft.settings:SoftSettings"),)
"""
SETTINGS = """
from dataclasses import dataclass
from typing import Annotated
from lmkcli.spec.settings import Flag, Settings

@dataclass(frozen=True, kw_only=True)
class SoftSettings(Settings):
    {field}: Annotated[int, Flag("soft: sharpness.", min=1)] = 3
    blur: Annotated[float, Flag("soft: blur.")] = 0.5
    shape: Annotated[str, Flag("soft: shape.")] = "round"
"""
POOLER = """
from lmkcli.encoding.dense_vectors import Dense
from lmkcli.pooling.table import Pooler

class Stored(Dense):
    def settings(self, options, query):
        return {{"sharpness": options.sharpness, "blur": options.blur, "shape": options.shape}}

STORED = Stored()
SOFT = Pooler("soft", "every"{representation})
"""
STORES = ', representation="soft.pooler:STORED"'


def install(
    folder: Path, rows: str = "", settings: str = "", field: str = "sharpness", stores: str = STORES
) -> Path:
    """Write a package with one pooler. `rows` and `settings` are lines before the code of its modules."""
    package = folder / "site" / "soft"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(rows + ROWS)
    (package / "settings.py").write_text(settings + SETTINGS.format(field=field))
    (package / "pooler.py").write_text(POOLER.format(representation=stores))
    facts = package.with_name("soft-0.1.dist-info")
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: soft\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text("[lmkcli.plugins]\nsoft = soft\n")
    return package.parent


def run(folder: Path, site: Path, *lines: str) -> list[list[object]]:
    return run_lines(lines, folder, PACKAGE.parent, site)


def test_its_setting_has_a_default_and_is_recorded(
    tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    os.symlink(beir, tmp_path / "corpus")
    os.symlink(tiny_model("bert"), tmp_path / "model")
    soft = "encode ./corpus -m model --pool soft"
    found = run(
        tmp_path,
        install(tmp_path),
        "encode ./corpus -m model --pool mean -o means",
        f"{soft} -o soft",
        f"{soft} --sharpness 7 -o soft",
        "encode ./corpus -m model --pool mean --sharpness 7 -o x",
        f"{soft} --blur .25 --shape flat -o flat",
        "search flat ./corpus -o run.trec",
        f"{soft} --blur .25 -o flat",
    )
    assert [code for code, *_ in found] == [0, 0, 3, 2, 0, 0, 3], found
    assert "recipe.doc.settings.sharpness: 3 | 7" in str(found[2][2])
    stored = tmp_path / "flat/manifest.json"
    stored.write_text(stored.read_text().replace('"shape": "flat"', '"shape": 3'))
    ((code, _, err),) = run(tmp_path, tmp_path / "site", "search flat ./corpus -o again.trec")
    assert (code, "the setting 'shape' with the value '3'" in str(err)) == (3, True), err
    assert "recipe.doc.settings.shape: 'flat' | 'round'" in str(found[6][2])
    assert "--sharpness has no effect with --pool mean, only with --pool soft" in str(found[3][2])


def test_options_that_no_recipe_stores_are_refused(
    tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    os.symlink(beir, tmp_path / "corpus")
    os.symlink(tiny_model("bert"), tmp_path / "model")
    line = "encode ./corpus -m model --pool soft --sharpness 7 -o soft"
    ((code, _, err),) = run(tmp_path, install(tmp_path, stores=""), line)
    assert code == 2
    assert "no recipe stores them; correct the package soft 0.1" in str(err)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"rows": "import nowhere"}, "the plug-in soft 0.1 cannot be used: No module named"),
        ({"settings": "import nowhere"}, "the plug-in soft 0.1 cannot be used: No module named"),
        ({"rows": "from lmkcli import Encode"}, "circular import"),
        ({"field": "window"}, "both declare the setting window; rename one of them"),
        ({"field": "workers"}, "both declare the setting workers; rename one of them"),
        ({"field": "output"}, "both declare the setting output; rename one of them"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_once(
    fault: dict[str, str], said: str, tmp_path: Path
) -> None:
    shown, failed = run(tmp_path, install(tmp_path, **fault), "--version", "encode --help")
    assert shown[0] == 0
    assert failed[0] == 2
    assert said in str(failed[2])
    assert str(failed[2]).count("cannot be used") <= 1


def test_a_pooler_with_weights_must_declare_their_folder(
    tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    """Otherwise neither the digest of a model nor its copies would contain them."""
    os.symlink(beir, tmp_path / "corpus")
    os.symlink(tiny_model("bert"), tmp_path / "model")
    site = install(tmp_path, stores=', module="soft.pooler:Stored"')
    ((code, _, err),) = run(tmp_path, site, "encode ./corpus -m model --pool soft -o soft")
    assert (code, "soft 0.1 does not declare the folder of its weights" in str(err)) == (2, True)
