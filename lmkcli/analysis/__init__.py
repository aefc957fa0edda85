"""What models, vectors and collections are like: attention, locality, lengths, maps."""
