"""The training loop: the Trainer, checkpoints, development scores, resuming and dry runs."""
