"""Many commands, one table: grids of settings, the steps that their cells share, what came out."""
