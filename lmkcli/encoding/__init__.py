"""Text to stored vectors."""
