"""Text to stored vectors: recipes, encoders, jobs and updates."""
