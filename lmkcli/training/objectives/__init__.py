"""What is minimised: one file for each objective, a function of vectors alone."""
