"""An index of texts in the memory of a program, without folders to name."""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.models.lookup import MEAN_MINILM
from lmkcli.operations.encode import Encode
from lmkcli.operations.index import BuildIndex
from lmkcli.operations.search import OpenIndex, Search
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.option import options
from lmkcli.spec.signature import with_settings

if TYPE_CHECKING:
    from lmkcli.data.collection import Source

_EXACT = "exact"
_OF_FOLDERS = ("output", "if_exists", "shard", "dry_run", "apart")


def index(
    documents: "Source", model: str | Path = "", kind: str = _EXACT, **settings: Any
) -> OpenIndex:
    """Encode and index documents, and open the index: `lmkcli.index(texts, "minilm").search("…")`.

    `documents` is a table (pandas, polars, Arrow, datasets), an iterable of texts or dictionaries, or the
    name of a collection. The default model is mean-minilm. `kind` is a kind of `lmk index`; bm25 needs no
    model. `settings` are the fields of `Encode` and `BuildIndex`, such as unit="chunk" and gran=64. The files
    are in a temporary folder, which is removed with the index. Raises UsageError for unknown settings.
    """
    folder = Path(tempfile.mkdtemp(prefix="lmk-index-"))
    try:
        opened = _built(folder, documents, model, kind, settings)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(opened, shutil.rmtree, folder, ignore_errors=True)
    return opened


index.__signature__ = with_settings(  # type: ignore[attr-defined]
    index, Encode, BuildIndex, without=f"source {' '.join(_OF_FOLDERS)}"
)


def _built(
    folder: Path, documents: Any, model: Any, kind: str, settings: dict[str, Any]
) -> OpenIndex:
    for name in {*_OF_FOLDERS} & {*settings}:
        raise UsageError(f"an index in memory has no setting '{name}'; use Encode and BuildIndex")
    if catalog.is_lexical(kind):
        if model:
            raise UsageError(f"model has no effect with kind='{kind}'; drop it")
        lexical = BuildIndex(documents, kind=kind, output=folder / "index", **settings)
        lexical.run()
        return _opened(folder / "index", lexical.source)
    of_index = {each.name for each in options(BuildIndex)} - {each.name for each in options(Encode)}
    of_engine = {name: value for name, value in settings.items() if name in of_index}
    of_vectors = {name: value for name, value in settings.items() if name not in of_index}
    if kind == _EXACT and of_engine:
        raise UsageError(f"{', '.join(of_engine)} has no effect with kind='exact'; drop it")
    vectors = str(folder / "vectors")
    encoded = Encode(documents, model=model or MEAN_MINILM, output=Path(vectors), **of_vectors)
    if kind != _EXACT:
        BuildIndex(vectors, kind=kind, output=folder / "index", **of_engine)  # checks the settings
    encoded.run()
    if kind != _EXACT:
        BuildIndex(vectors, kind=kind, output=folder / "index", **of_engine).run()
    shared = ("trust_remote_code", "device", "offline")
    assert {*shared} <= {each.name for each in options(OpenSettings)}
    opening = {name: settings[name] for name in shared if name in settings}
    path = Path(vectors) if kind == _EXACT else folder / "index"
    return _opened(path, encoded.source, **opening)


def _opened(path: Path, source: str, **settings: Any) -> OpenIndex:
    return OpenIndex(Search(path, interactive=True, **settings), "of documents in memory", source)
