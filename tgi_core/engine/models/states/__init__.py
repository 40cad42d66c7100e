"""Layers that keep a state per row instead of keys and values per position: state-space models, linear attention, short convolutions."""
