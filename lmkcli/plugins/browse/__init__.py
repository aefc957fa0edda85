"""Pages to explore and compare runs."""
