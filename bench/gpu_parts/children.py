"""Running a section in a process group of its own, which ends as a whole. Imports nothing but the standard library."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

GRACE_S = 2.0
"""How long processes have to end by themselves."""


def run_group(command: Sequence[str], log: IO[str], limit: float) -> str:
    """Run a command with its children until it ends or the limit, in seconds, is over; how it ended. None of its processes is left."""
    child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        return f"exit status {child.wait(timeout=limit)}"
    except subprocess.TimeoutExpired:
        return f"not done after {limit:.0f} s"
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the group: a server that the section started holds the device's memory."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, kind)
            _wait_for(child, GRACE_S)
    child.wait()


def _wait_for(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Until no process of the group is left, for so many seconds at most. Raises ProcessLookupError when none is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        child.poll()
        os.killpg(child.pid, 0)
        time.sleep(0.02)
