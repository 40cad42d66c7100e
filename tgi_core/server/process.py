"""A shard's process: it ends with the process that started it, whatever happens to that one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends (Linux). Exits at once if the parent is gone already.

    The kernel watches the thread that started this process, so that must be one that lives as long as its process.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(1)


def watch_parent(ended: Callable[[], None]) -> None:
    """Call `ended`, in a thread, when standard input ends: the parent holds the other end, and closes it to say goodbye."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        ended()

    threading.Thread(target=wait, name="parent", daemon=True).start()
