"""Training and pre-training of models."""
