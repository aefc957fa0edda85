"""Search over words: documents, chunks and pseudo-relevance feedback."""
