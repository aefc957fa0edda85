"""Objectives of pre-training, one per file: an encoder's heads and their loss."""
