"""Mutation of the reference backend's source: what of it could be wrong without the suite noticing."""
