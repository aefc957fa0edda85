"""Collections that lmk generates: facts in long texts, and Python code."""
