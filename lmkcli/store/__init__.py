"""Artifacts on disk: immutable parts, and what is read from them."""
