"""Inverted: an inverted file of sparse vectors, for exact search."""
