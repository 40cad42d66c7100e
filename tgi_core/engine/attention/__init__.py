"""Paged attention: how models' own attention modules reach the cache of a step."""
