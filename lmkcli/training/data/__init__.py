"""Training data: examples, hard negatives, sampling, model inputs and batches."""
