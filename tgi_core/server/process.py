"""Ties the lifetime of a shard's process to that of its parent, however the parent exits."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux). Exits at once if the parent is gone already.

    The kernel tracks the parent's thread that started this process, so that thread must live as long as the parent.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(1)


def watch_parent(ended: Callable[[], None]) -> None:
    """Call `ended` from a thread at the end of standard input: the parent holds the other end and closes it to shut this process
    down."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        ended()

    threading.Thread(target=wait, name="parent", daemon=True).start()
