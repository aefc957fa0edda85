"""What is in one file, as a title and a text: a module for each kind of file."""
