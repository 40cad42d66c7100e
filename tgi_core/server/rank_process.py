"""The process of a rank that rank 0 has started."""

from __future__ import annotations

import signal
import subprocess


class RankProcess:
    """A rank that this process has started as a child."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def kill(self) -> None:
        """Kill the process."""
        self._child.kill()
        self._child.wait()

    def outcome(self, seconds: float) -> str | None:
        """Return how the process ended; None if it is alive."""
        try:
            status = self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
