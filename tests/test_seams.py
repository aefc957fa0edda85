"""Every row of the catalog has the type that its table promises, as mypy sees it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from mypy import api

from lmkcli import catalog
from lmkcli.catalog import Row
from lmkcli.pooling.table import Pooler

IMPORTS = """
from collections.abc import Callable
from typing import Any
from lmkcli.data.collection import SourceOpener
from lmkcli.data.filetext import FileReader
from lmkcli.operations.search import Searchable
from lmkcli.spec.operation import Operation
from lmkcli.models.sentence_classes import SentenceClass
from lmkcli.pooling.table import Pooler
from lmkcli.encoding.representation import Representation
from lmkcli.retrieval.vectors.vector_search import Scoring, VectorSearch
from lmkcli.retrieval.engine import Engine
from lmkcli.retrieval.reranking import CrossEncoderOpener
from lmkcli.models.forward import Model, ModelOpener
from lmkcli.training.objectives.objective import Objective
from lmkcli.plugins.pretrain.pretext import HeadOptions, Pretext
from lmkcli.vectors.codec import Codec
"""
TABLES: dict[str, Mapping[str, Row]] = {
    "SourceOpener": catalog.SOURCES,
    "FileReader": catalog.READERS,
    "Searchable": catalog.SEARCHABLES,
    "type[Operation[Any]]": catalog.VERBS,
    "Pooler | Callable[[int], Pooler]": catalog.POOLERS,
    "ModelOpener": catalog.MODELS,
    "SentenceClass": catalog.SENTENCE_CLASSES,
    "Codec[Any]": catalog.CODECS,
    "CrossEncoderOpener": catalog.CROSS_ENCODERS,
    "Callable[..., Objective]": catalog.LOSSES,
    "Callable[[Model, HeadOptions], Pretext]": catalog.PRETEXTS,
}


def index_type(name: str) -> str:
    return "Callable[..., VectorSearch]" if name == "exact" else "type[Engine[Any]]"


def assignments() -> Iterator[str]:
    """One for each home that a row names, assigned to a variable of the type of its table."""
    homes = [(index_type(name), row.target) for name, row in catalog.ENGINES.items()]
    homes += [(kind, row.target) for kind, table in TABLES.items() for row in table.values()]
    homes += [("Scoring[Any]", row.scoring) for row in catalog.CODECS.values()]
    poolers = (catalog.POOLERS.load(name) for name in catalog.POOLERS)
    homes += [
        ("Representation[Any]", each.representation) for each in poolers if isinstance(each, Pooler)
    ]
    for number, (kind, home) in enumerate(homes):
        module, attribute = home.split(":")
        yield f"from {module} import {attribute} as home{number}"
        yield f"row{number}: {kind} = home{number}"


def check(tmp_path: Path, code: str) -> str:
    """What mypy says of some code; empty when it finds nothing."""
    path = tmp_path / "seams.py"
    path.write_text(code)
    out, err, status = api.run(["--strict", "--no-error-summary", str(path)])
    return f"{out}{err}" if status else ""


@pytest.mark.slow  # a minute without mypy's cache, which .ci/run fills beforehand
def test_every_row_fits_the_protocol_of_its_table(tmp_path: Path) -> None:
    code = "\n".join([IMPORTS, *assignments()])
    assert check(tmp_path, code) == ""
    slip = "from lmkcli.retrieval.engines.exact.exact_search import Exact\nslip: type[Engine[Any]] = Exact\n"
    assert "Incompatible types in assignment" in check(tmp_path, f"{code}\n{slip}")
