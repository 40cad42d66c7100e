"""The clauses, one module per part of the contract. Importing this package imports and registers them all."""

from importlib import import_module
from pkgutil import iter_modules

from tgi_conformance.clause import Clause, registered

TOPICS = (
    *(
        "package",
        "open",
        "order",
        "handles",
        "isolation",
        "clear",
        "drop",
        "cover",
        "growth",
        "windows",
        "capacity",
        "failure",
        "refusal",
    ),
    *("machine", "parity", "mates", "invariant", "continue", "formula", "chunks", "mixing", "prefix", "masks", "pairs"),
    *("lora", "media", "speculation", "ranks", "faults", "promise", "leaks", "speed"),
)
"""Parts of the contract, in the order in which their clauses run."""

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

CLAUSES: tuple[Clause, ...] = tuple(
    sorted(registered(), key=lambda item: (item.level.value, not item.essential, TOPICS.index(item.topic)))
)
"""All clauses by level, essential ones first."""

__all__ = ["CLAUSES", "TOPICS"]
