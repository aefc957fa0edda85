"""FAISS: approximate search over vectors, by an HNSW graph, inverted lists or any factory string."""
