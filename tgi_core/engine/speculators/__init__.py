"""Speculators: checkpoints that guess the next tokens of another model. One file per layout."""
