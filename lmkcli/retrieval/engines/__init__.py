"""The engines behind `lmk index` and `lmk search`, one folder each."""
