"""The clauses, one module per part of the contract. Importing this package registers them all."""

from tgi_conformance.clause import Clause, registered
from tgi_conformance.clauses import (
    capacity,
    clearing,
    continuing,
    cover,
    drop,
    failure,
    faults,
    formula,
    further,
    growth,
    handles,
    invariant,
    isolation,
    leaks,
    long,
    lora,
    lora_continue,
    machine,
    mask_sources,
    masking,
    mates,
    opening,
    order,
    package,
    pairs,
    parity,
    partial,
    promise,
    ranks,
    refusal,
    speed,
    wide,
)

TOPICS = (
    *("package", "open", "order", "handles", "isolation", "clear", "drop", "cover", "growth", "capacity", "failure", "refusal"),
    *("machine", "parity", "mates", "invariant", "continue", "formula", "chunks", "mixing", "prefix", "masks", "pairs"),
    *("lora", "media", "speculation", "ranks", "faults", "promise", "leaks", "speed"),
)
"""Parts of the contract, in the order in which they are tried."""

CLAUSES: tuple[Clause, ...] = tuple(
    sorted(registered(), key=lambda item: (item.level.value, not item.essential, TOPICS.index(item.topic)))
)
"""By level, the essential ones first."""

__all__ = [
    "CLAUSES",
    "TOPICS",
    "capacity",
    "clearing",
    "continuing",
    "cover",
    "drop",
    "failure",
    "faults",
    "formula",
    "further",
    "growth",
    "handles",
    "invariant",
    "isolation",
    "leaks",
    "long",
    "lora",
    "lora_continue",
    "machine",
    "mask_sources",
    "masking",
    "mates",
    "opening",
    "order",
    "package",
    "pairs",
    "parity",
    "partial",
    "promise",
    "ranks",
    "refusal",
    "speed",
    "wide",
]
