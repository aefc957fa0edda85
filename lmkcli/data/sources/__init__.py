"""One file for each place that a collection can come from."""
