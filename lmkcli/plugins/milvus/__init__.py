"""Milvus: vectors in a collection of a server, or of a file (Milvus Lite)."""
