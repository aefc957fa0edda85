"""How an artifact or a number came to be: lineage, the score log, doing it again."""
