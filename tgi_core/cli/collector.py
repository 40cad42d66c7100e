"""The garbage collector of a server that has started."""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""New objects after which it looks for cycles among them; Python's own 700 are a few steps' rows."""


def settle() -> None:
    """Whatever is here now stays: from now on the collector passes it by, so that no step waits while it looks at a whole model's or
    library's objects; and it comes less often, since what steps make ends without it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
