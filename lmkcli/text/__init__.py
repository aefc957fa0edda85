"""Text without models: sentences, headings, terms for lexical search, and output for people."""
