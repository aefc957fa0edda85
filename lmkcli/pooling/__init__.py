"""Which positions become which vector: placement, poolers, the segment mean."""
