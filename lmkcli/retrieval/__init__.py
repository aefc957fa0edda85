"""Queries to runs."""
