"""The settings of engines: which ones a run records."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from lmkcli import catalog
from lmkcli.catalog import EngineRow
from lmkcli.errors import DataError
from lmkcli.retrieval.engines.index_settings import engine_options, search_identity
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.settings import Flag, Settings


@dataclass(frozen=True, kw_only=True)
class CellSettings(Settings):
    """The settings of an engine of another package."""

    cells: Annotated[int, Flag("Number of cells to search.")] = 8
    threads: Annotated[int, Flag("Number of threads.", role="speed")] = 1


def test_a_run_records_the_search_settings_of_its_engine() -> None:
    given = OpenSettings(ef_search=40, nprobe=3)
    assert search_identity("hnsw", given) == {"ef_search": 40, "nprobe": 3}
    assert search_identity("IVF4,Flat", given) == {"ef_search": 40, "nprobe": 3}
    assert search_identity("milvus", given) == {"ef_search": 40}  # not the server
    assert search_identity("inverted", given) == {}


def test_a_run_records_those_of_an_engine_of_another_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = EngineRow("cells", "x:y", "cells", search_settings=f"{__name__}:CellSettings")
    monkeypatch.setattr(catalog, "foreign_rows", lambda: (row,))
    assert search_identity("cells", CellSettings(cells=2, threads=4)) == {"cells": 2}


def test_an_index_of_an_engine_that_is_not_installed_is_named() -> None:
    with pytest.raises(DataError, match="kind 'cells': no installed package has this index kind"):
        engine_options("cells")
