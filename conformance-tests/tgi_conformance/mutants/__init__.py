"""Backends that each break one law, and correct twins that only look unusual: they prove that the suite catches defects and nothing
else.

A mutant's docstring says where its defect was seen. `killed_by` names the clauses that must catch it.
"""

from importlib import import_module
from pkgutil import iter_modules

from tgi_conformance.mutants.base import Mutant, mutants, twins_of

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

MUTANTS: dict[str, Mutant] = mutants()
TWINS: dict[str, Mutant] = twins_of()
EVERY: dict[str, Mutant] = MUTANTS | TWINS
"""Mutants and twins by name, for `tgi-conformance run --backend mutant:NAME`."""

__all__ = ["EVERY", "MUTANTS", "TWINS", "Mutant"]
