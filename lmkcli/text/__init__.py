"""Strings to sentences and terms, without a model."""
