"""Search over vectors: candidates, exact scores, ranked documents and chunks."""
