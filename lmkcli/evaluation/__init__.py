"""Scores: measures, coverage, comparisons, breakdowns, plots; what made them, and making them again."""
