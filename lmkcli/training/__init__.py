"""Data and a model to a better model."""
