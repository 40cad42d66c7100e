"""The backend calls of a turn, on their way to the router's metrics."""

from __future__ import annotations

from tgi_core.wire.types import VerbCall


class VerbLog:
    """Notes each call of a hook until the turn's answer takes them along; a `tgi_core.backend.wrappers.Observe`.

    Calls come from one thread, the shard's.
    """

    def __init__(self) -> None:
        self._calls: list[VerbCall] = []

    def __call__(self, verb: str, seconds: float, error: str) -> None:
        """Note a call that has ended."""
        self._calls.append(VerbCall(verb, round(seconds * 1e9), error))

    def take(self) -> tuple[VerbCall, ...]:
        """Return and forget the calls noted since the last time."""
        calls, self._calls = tuple(self._calls), []
        return calls
