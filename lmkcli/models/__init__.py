"""Token ids to hidden states."""
