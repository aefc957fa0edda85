"""Evaluation of runs: measures, tests between runs, breakdowns, plots."""
