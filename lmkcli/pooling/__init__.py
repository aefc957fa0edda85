"""Which positions become which vector: placement, poolers and reductions."""
