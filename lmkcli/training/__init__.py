"""Data and a model to a better model: examples, losses and the loop of training."""
