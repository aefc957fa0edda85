"""The pooler `head@k`: the mean over the first k positions, special tokens included."""

from lmkcli.pooling.table import Pooler


def head(k: int) -> Pooler:
    """Return the row of head@k: the tokenizer's layout, and marks at its first k positions."""
    return Pooler(f"head@{k}", "first", k)
