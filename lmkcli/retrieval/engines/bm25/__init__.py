"""BM25 with bm25s, without Java."""
