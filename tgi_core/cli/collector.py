"""Garbage collection settings of a running server."""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""Threshold of new objects for a collection. Python's default of 700 is reached within a few steps."""


def settle() -> None:
    """Freeze all current objects and collect less often. Collections then never traverse the objects of the model and libraries,
    which would stall a step. Objects that steps create are freed by reference counting."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
