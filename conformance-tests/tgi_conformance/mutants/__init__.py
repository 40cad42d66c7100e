"""Backends that each break one law, and twins that look unusual and break none: the proof that the suite bites, and bites nothing else.

A mutant's docstring says where its defect was seen. `killed_by` names the clauses that are there to catch it.
"""

from tgi_conformance.mutants import (
    adapters,
    batches,
    blocks,
    combined,
    faults,
    handles,
    invariance,
    limits,
    long,
    mask_sources,
    masks,
    narrow,
    packages,
    pairs,
    prompts,
    ranks,
    sampling,
    steps,
    ties,
    twins,
    unmasked,
    values,
    wide,
)
from tgi_conformance.mutants.base import Mutant, mutants, twins_of

MUTANTS: dict[str, Mutant] = mutants()
TWINS: dict[str, Mutant] = twins_of()
EVERY: dict[str, Mutant] = MUTANTS | TWINS
"""By name: `tgi-conformance run --backend mutant:NAME`."""

__all__ = [
    "EVERY",
    "MUTANTS",
    "TWINS",
    "Mutant",
    "adapters",
    "batches",
    "blocks",
    "combined",
    "faults",
    "handles",
    "invariance",
    "limits",
    "long",
    "mask_sources",
    "masks",
    "narrow",
    "packages",
    "pairs",
    "prompts",
    "ranks",
    "sampling",
    "steps",
    "ties",
    "twins",
    "unmasked",
    "values",
    "wide",
]
