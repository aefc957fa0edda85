"""`lmk search` of a folder or a file of documents: with the index that lmk keeps for it in the cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmkcli.errors import UsageError
from lmkcli.plugins.documents.own_index import (
    EncodeCall,
    OwnIndex,
    OwnIndexOptions,
    OwnIndexSearch,
    collection_at,
)
from lmkcli.progress import Report
from lmkcli.retrieval.open_settings import OpenSettings

if TYPE_CHECKING:
    from lmkcli.operations.search import Search
    from lmkcli.retrieval.index import Index


def own_index_of(search: "Search") -> OwnIndex:
    """Return the index in the cache for the documents of a search."""
    call = EncodeCall(search.trust_remote_code, search.device, search.offline)
    return OwnIndex(collection_at(search.index), search.model, search.part(OwnIndexOptions), call)


class DocumentSearch:
    """The searchable of documents without an index."""

    several = True  # vectors, and BM25

    def claims(self, search: "Search") -> bool:
        """Return whether INDEX is a collection of documents on disk, and one question or -i asks it."""
        return search.queries is None and bool(collection_at(search.index))

    def check(self, search: "Search") -> None:
        """Raise UsageError for settings that need an index of chunks or documents alone."""
        if search.level is not None:
            raise UsageError(
                "--level has no effect on documents without an index, which are ranked by vectors and by "
                "words; drop it"
            )

    def open(self, search: "Search", report: Report) -> "Index":
        """Open the documents, with the index that lmk keeps for them."""
        from lmkcli.retrieval.pipeline import open_pipeline

        own = own_index_of(search)
        if not own.model:
            report.note(
                "no model is installed, so lmk searches by words only (BM25); to search by meaning too, run "
                'pip install "lmkcli[demo]", or name a model with --model'
            )
        fused = not (search.fuse or search.fuse_scale)
        judged = fused and not (search.rerank or search.rerank_model)
        settings = replace(search.part(OpenSettings), model="")  # the vectors record their model

        def open_parts(paths: Sequence[Path]) -> "Index":
            stages = search.stages(paths)
            if fused and not search.others:
                from lmkcli.plugins.documents.documents_index import MATCH, WORDS  # imports NumPy

                stages = replace(stages, fusion=MATCH if own.model else WORDS)
            opened = open_pipeline(stages, settings)
            for note in opened.info.notes:
                report.note(note)
            return opened

        return OwnIndexSearch(own, open_parts, report, judged and not search.others)

    def answers(self, search: "Search", report: Report) -> None:
        """Return None: it opens what it claims."""


DOCUMENTS = DocumentSearch()
