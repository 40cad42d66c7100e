"""Plugins as they were written against each released minor of the contract. They are never changed: they stand for what vendors ship."""
