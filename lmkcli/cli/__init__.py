"""The command line: flags to operations, results to text. Only this package imports typer and rich."""
