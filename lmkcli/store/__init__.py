"""Artifacts on disk: parts, vectors, tokens, and shards of outputs."""
