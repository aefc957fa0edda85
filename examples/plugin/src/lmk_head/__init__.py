"""A pooler and a loss for lmk; pyproject.toml declares them as entry points."""
