"""Artifacts: their typed manifests, the files that belong to them, and shards of outputs."""
