"""A server for searches: HTTP, a page, embeddings and MCP; and the client of such a server."""
