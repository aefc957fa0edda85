"""Queries to runs: indexes, searching, fusion, reranking."""
