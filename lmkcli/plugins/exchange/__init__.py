"""Formats of other tools: imports and exports of vectors, examples and models."""
