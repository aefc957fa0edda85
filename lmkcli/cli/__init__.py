"""Flags to calls; the only room that knows typer and rich."""
