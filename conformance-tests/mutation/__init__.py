"""Mutation testing of the reference backend's source: which mistakes the suite would not notice."""
