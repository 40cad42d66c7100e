"""Products with weights, one file per kernel."""
