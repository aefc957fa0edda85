"""Readers of files: one module for each kind of file, from its bytes to a title and a text."""
