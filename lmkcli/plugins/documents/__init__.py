"""Folders and files of documents: their readers, and an index of them in the cache."""
