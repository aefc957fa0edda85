"""An index as a retriever of LangChain (extra `langchain`).

LangChainRetriever(index="vectors", k=4).invoke("…") returns passages as documents of LangChain.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmkcli.errors import MissingExtra
from lmkcli.integrations.retrieved import opened, retrieve
from lmkcli.operations.search import OpenIndex

try:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
    )
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ModuleNotFoundError as error:
    raise MissingExtra("langchain-core", "langchain", "the retriever of LangChain") from error


class LangChainRetriever(BaseRetriever, extra="forbid"):
    """Retrieve the k best passages of an index, or documents if chunks have no vectors of their own.

    `index` is a path, or the result of `lmkcli.open_index` or `lmkcli.index`. The metadata of a document have
    `source` (the id of the document), `title`, `score` and `rank`. The metadata of a passage also have
    `start_index` and `end_index` (its characters in the text of the document), `chunk`, `chunks` and
    `heading`, and the page and the lines in a file if they are known.

    `where` has conditions that all returned documents fulfil, such as "year>2000". `invoke` accepts other
    values of `k` and `where` for a single question.
    """

    index: OpenIndex | str | Path
    k: int = 4
    where: str | Sequence[str] = ()

    def model_post_init(self, context: Any) -> None:
        """Open the index."""
        self.index = opened(self.index)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        where: str | Sequence[str] | None = None,
    ) -> list[Document]:
        k, where = self.k if k is None else k, self.where if where is None else where
        return [
            Document(
                id=each.id,
                page_content=each.text,
                metadata={
                    "source": each.document,
                    **{_NAMES.get(name, name): value for name, value in each.metadata.items()},
                },
            )
            for each in retrieve(opened(self.index), query, k, where)
        ]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        where: str | Sequence[str] | None = None,
    ) -> list[Document]:
        return await asyncio.to_thread(  # LangChain's own method has no other arguments
            self._get_relevant_documents,
            query,
            run_manager=run_manager.get_sync(),
            k=k,
            where=where,
        )


# The names that LangChain's text splitters use.
_NAMES = {"begin": "start_index", "end": "end_index"}
