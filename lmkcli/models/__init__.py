"""Token ids to hidden states: model folders, tokenizers, architectures, token heads."""
