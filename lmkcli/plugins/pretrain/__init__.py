"""Pre-training: the corpus, masking, and jobs that train an encoder on plain texts."""
