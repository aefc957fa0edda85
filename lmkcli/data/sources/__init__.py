"""Sources of collections: one module for each."""
