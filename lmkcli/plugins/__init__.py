"""Plug-ins: one folder per family, with everything that belongs to it."""
