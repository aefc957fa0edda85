"""BM25 with Lucene, as Anserini and pyserini configure it."""
