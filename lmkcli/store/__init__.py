"""Artifacts in parts: documents, vectors and tokens."""
