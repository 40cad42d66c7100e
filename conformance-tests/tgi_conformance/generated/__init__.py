"""Randomly generated mutants: an operator (a way to be wrong) under a condition (when to be wrong), drawn from a seed.

Handwritten mutants came with the clauses that kill them; these did not. `drawn(seed, number)` always returns the same mutant.
"""

from tgi_conformance.generated.draw import Generated, drawn, named

__all__ = ["Generated", "drawn", "named"]
