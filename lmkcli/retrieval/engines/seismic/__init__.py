"""Seismic: approximate search over many sparse vectors."""
