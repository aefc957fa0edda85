"""One training step: vectors of a batch, gradients in packs, processes, the optimizer."""
