"""Opening: a folder that can be searched becomes an Index, dense or lexical.

What only dense indexes need (torch, an encoder) is imported when one is opened.
"""

from pathlib import Path
from typing import Any

from lmkcli import catalog, manifest
from lmkcli.errors import DataError
from lmkcli.manifest import Manifest
from lmkcli.retrieval.index import LEXICAL, SEARCH, Index
from lmkcli.retrieval.index_folder import check_built, read_built
from lmkcli.retrieval.lexical import open_foreign, open_lexical
from lmkcli.settings import OpenSettings


def open_index(folder: Path, settings: OpenSettings) -> Index:
    """Whatever can be searched: an index folder, vectors (exact search), or what Anserini or pyserini
    indexed. DataError otherwise.
    """
    if any(folder.glob("segments_*")):
        return open_foreign(folder, settings)
    described = manifest.read(folder)
    if described.kind == "vectors":
        settings.refuse("vectors", *SEARCH, *LEXICAL)
        from lmkcli.retrieval.dense import open_vectors

        return open_vectors(folder, settings)
    if described.kind != "index":
        raise DataError(
            f"{folder} holds {described.kind}, which cannot be searched; give vectors or an index"
        )
    manifest.check_whole(folder, described)
    built = read_built(folder)
    if not built:
        raise DataError(f"{folder} is not complete; run its index command again")
    try:
        return _open_built(folder, described, built, settings)
    except DataError:
        if read_built(folder) == built:
            raise
        return open_index(folder, settings)  # it was updated just now


def _open_built(
    folder: Path, described: Manifest, built: dict[str, Any], settings: OpenSettings
) -> Index:
    check_built(folder, built)
    if described.identity["family"] in catalog.LEXICAL:
        return open_lexical(folder, described, built, settings)
    settings.refuse("an index of vectors", *LEXICAL)
    from lmkcli.retrieval.dense import open_ann

    return open_ann(folder, described, built, settings)
