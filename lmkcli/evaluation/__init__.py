"""Runs to numbers."""
