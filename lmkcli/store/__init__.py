"""Artifacts in parts: their names, documents and arrays, and tokens."""
