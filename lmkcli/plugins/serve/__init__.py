"""A server for searches: HTTP, a page, embeddings and MCP; and the client of such a server."""

from lmkcli.catalog import SearchableRow, ServerRow, VerbRow

REQUIRES = ("documents",)
_PACKAGES = "fastapi mcp prometheus_client pydantic starlette uvicorn"

ROWS = (
    VerbRow(
        "serve",
        "lmkcli.plugins.serve.serve:Serve",
        "Answer searches: a page, HTTP and MCP.",
        group="Search",
        examples=("lmk serve vectors/ bm25/", "lmk serve index/ --mcp"),
        meant=(
            ("server", "lmk serve"),
            ("api", "lmk serve"),
            ("web", "lmk serve"),
            ("mcp", "lmk serve --mcp"),
        ),
    ),
    ServerRow(
        "http",
        "lmkcli.plugins.serve.server:serve_http",
        "a page and a REST interface",
        "serve",
        _PACKAGES,
    ),
    ServerRow(
        "mcp",
        "lmkcli.plugins.serve.tools:serve_stdio",
        "tools for an agent on stdin and stdout",
        "serve",
        _PACKAGES,
    ),
    SearchableRow(
        "server",
        "lmkcli.plugins.serve.server_search:SERVER",
        "a server of lmk serve",
        settings="lmkcli.plugins.serve.server_search:ServerOptions",
        by_flag=True,
    ),
)
