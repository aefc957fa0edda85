"""Other tools' formats: vectors and models, in and out."""
