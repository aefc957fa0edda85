"""One module per command: a dataclass with its settings, and `run()`, which returns a typed result."""
