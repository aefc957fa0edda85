"""Grids of experiments: cells, their shared steps, execution, scores and tables."""
