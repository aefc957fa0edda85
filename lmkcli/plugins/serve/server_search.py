"""`lmk search` on a server of lmk serve: one that --server names, or one that runs on this machine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from lmkcli.errors import UsageError
from lmkcli.plugins.documents.document_search import DOCUMENTS, own_index_of
from lmkcli.progress import Report
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.spec.option import options
from lmkcli.spec.settings import Flag, Settings

if TYPE_CHECKING:
    from lmkcli.operations.search import Search
    from lmkcli.retrieval.index import Index


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Settings):
    """The server of a search."""

    panel: ClassVar[str] = "Queries and results"
    server: Annotated[
        str,
        Flag(
            "Search on this server of lmk serve, where INDEX is the name of an index; none: never "
            "use one.",
            metavar="URL",
            shown="for -q, a server of the same indexes on this machine",
            role="address",
            suggest_for="--url --host --remote --endpoint",
        ),
    ] = ""


class ServerSearch:
    """The searchable of --server."""

    several = False

    def claims(self, search: "Search") -> bool:
        """Return whether --server names a server."""
        return search.part(ServerOptions).server not in ("", "none")

    def check(self, search: "Search") -> None:
        """Raise UsageError for settings that a search on a server cannot have."""
        local = {each.name for each in options(OpenSettings)} - {"offline"}
        local |= {"rerank", "rerank_model", "shard"}
        given = [
            each.spelling for each in options(type(search)) if each.name in local & search.changed()
        ]
        if given:
            raise UsageError(
                f"{', '.join(given)}: a server has its own settings, and reranks and divides nothing for "
                "lmk search; drop the flag, or drop --server"
            )

    def open(self, search: "Search", report: Report) -> "Index":
        """Open indexes of the server that --server names."""
        from lmkcli.plugins.serve.client import open_remote

        stages = search.stages()
        server = search.part(ServerOptions).server
        index = open_remote(server, list(map(str, stages.paths)), stages.fusion, stages.where)
        return _noted(index, report)

    def answers(self, search: "Search", report: Report) -> "Index | None":
        """Return the same indexes on a server of this machine, for -q without reranking; None without one."""
        from lmkcli.plugins.serve.runtime import running_servers

        reranked = search.rerank is not None or search.rerank_model is not None
        given = search.part(ServerOptions).server
        if search.question is None or given or reranked or not any(running_servers()):
            return None
        from lmkcli.plugins.serve.client import open_running, open_running_documents

        if DOCUMENTS.claims(search):
            if search.fuse or search.fuse_scale or search.others:
                return None
            own = own_index_of(search)
            where = search.where or ()
            return open_running_documents(own, search.part(OpenSettings), report.note, where)
        index = open_running(search.stages(), search.part(OpenSettings), report.note)
        return index and _noted(index, report)


def _noted(index: "Index", report: Report) -> "Index":
    """Report the notes of an index, and return it."""
    for note in index.info.notes:
        report.note(note)
    return index


SERVER = ServerSearch()
