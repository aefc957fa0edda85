"""Learned sparse vectors: their engines and formats."""
