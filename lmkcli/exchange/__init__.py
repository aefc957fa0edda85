"""Vectors and models from other tools and for them."""
