"""Text to stored vectors: resolving a recipe, batches, shards, updates."""
