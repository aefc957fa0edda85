"""Analyses of models, vectors and collections: attention, locality, lengths, maps."""
