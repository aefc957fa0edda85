"""Exact search: every vector is compared with the query, in bounded memory."""
