"""Runs to numbers: measures, tests between runs, breakdowns, plots."""
