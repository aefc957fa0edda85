"""How an artifact or a number came to be."""
