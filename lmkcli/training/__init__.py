"""Data and a model to a better model: training and pre-training."""
