"""Objectives of training and pre-training, one per file."""
