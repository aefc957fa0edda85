"""A demonstration of the main steps, offline."""
