"""Which positions become which vector."""
