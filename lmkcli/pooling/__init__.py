"""Which positions become which vector: placement, poolers and the segment mean."""
