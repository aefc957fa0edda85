"""lmk: dense retrieval over documents of any length, with landmark pooling at its heart."""

__version__ = "0.1.0"
