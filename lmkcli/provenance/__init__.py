"""Origins of artifacts and scores: lineage, the score log, reproduction."""
