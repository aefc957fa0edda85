"""Collections and runs: their sources, their file formats, and the readers of documents."""
