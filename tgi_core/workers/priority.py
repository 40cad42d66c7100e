"""Low priority for threads and processes whose work may wait for steps and requests."""

from __future__ import annotations

import os
import threading

LOW = 10
"""Niceness of work that gets a tenth of a core that something else wants."""
LOWEST = 19
"""Niceness of work that gets a seventieth."""


def thread_gives_way(niceness: int = LOW) -> None:
    """Lower the priority of this thread, and of those that it starts from now on."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
