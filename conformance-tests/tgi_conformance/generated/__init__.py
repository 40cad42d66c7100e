"""Mutants made at random: an operator (a way of being wrong) under a condition (when), drawn from a seed.

The written mutants came with the clauses that kill them; these did not. `drawn(seed, number)` is always the same one.
"""

from tgi_conformance.generated.draw import Generated, drawn, named

__all__ = ["Generated", "drawn", "named"]
