"""Vectors: rows in memory, and the codecs and folders that store them."""
