"""Records the backend calls of a turn for the router's metrics."""

from __future__ import annotations

from tgi_core.wire.types import VerbCall


class VerbLog:
    """Records hook calls until the turn's result carries them to the router; a `tgi_core.backend.wrappers.Observe`.

    Called only from the shard's thread.
    """

    def __init__(self) -> None:
        self._calls: list[VerbCall] = []

    def __call__(self, verb: str, seconds: float, error: str) -> None:
        """Record a completed call."""
        self._calls.append(VerbCall(verb, round(seconds * 1e9), error))

    def take(self) -> tuple[VerbCall, ...]:
        """Return and clear the recorded calls."""
        calls, self._calls = tuple(self._calls), []
        return calls
