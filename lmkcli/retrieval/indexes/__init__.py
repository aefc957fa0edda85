"""One file for each kind of index."""
