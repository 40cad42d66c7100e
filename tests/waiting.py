"""Waiting for what another process or thread will do."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 120
"""Only what hangs takes as long, on whatever machine."""
_PAUSE_S = 0.005


def wait_until(holds: Callable[[], object]) -> None:
    """Until it holds; AssertionError if it never does. The pause leaves the processor to those who are waited for."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it never holds"
        time.sleep(_PAUSE_S)
