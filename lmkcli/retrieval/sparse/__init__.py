"""Search over sparse vectors: exact products, ranked documents and chunks."""
