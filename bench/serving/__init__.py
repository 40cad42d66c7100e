"""Measurements of the entire server under load."""
