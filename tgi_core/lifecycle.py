"""The life of a server: whether it has a shard, whether it was told to stop, and what probes and load balancers get.

A server process has one `Lifecycle`. The scheduler's loop reports there what happens to the shard, and the signal handler that the
server was told to stop. The loop, the router and the probes read it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from tgi_core.wire.health import Work


class Phase(Enum):
    """Where a server stands in its life."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    """The shard is lost and is being replaced."""
    DRAINING = "draining"
    """Told to stop: requests that have begun are finished. Only FAILED can follow."""
    FAILED = "failed"
    """It will not serve again; the process is about to end, or should be ended."""


class Lifecycle:
    """The phase of one server. Its methods may be called from any thread; `end` calls the callbacks of `when_ending` on its own."""

    def __init__(self, phase: Phase = Phase.STARTING) -> None:
        self.shard = phase
        """The phase of the shard, which draining does not change: never DRAINING."""
        self.work: Work | None = None
        """The slow work in progress, if any."""
        self.over = False
        """Whether the time for draining has passed."""
        self.loss = ""
        """Why there is no shard, in words that anyone may read."""
        self._stop_reason: str | None = None
        self._queueing = False
        self._when_ending: list[Callable[[], None]] = []

    # what happens

    def progress(self, what: str, done: int, total: int, unit: str) -> None:
        """Report slow work; a `tgi_core.backend.Progress`."""
        self.work = Work(what, done, total, unit)

    def serving(self) -> None:
        """There is a shard, for the first time or again."""
        self._set_shard(Phase.SERVING)

    def restarting(self, reason: str, *, queueing: bool = False) -> None:
        """The shard is lost and is being replaced. With `queueing`, new requests are accepted and wait for the next one."""
        self._set_shard(Phase.RESTARTING, reason)
        self._queueing = queueing

    def draining(self, reason: str = "the server is shutting down") -> None:
        """The server was told to stop. It still answers requests, but clients that can use another server should."""
        if self._stop_reason is None:
            self._stop_reason, self.work = reason, None

    def failed(self, reason: str) -> None:
        """There is no shard, and there will be none."""
        self._set_shard(Phase.FAILED, reason)

    def end(self) -> None:
        """The time for draining has passed: every request that still runs is told so and ends."""
        self.over = True
        for callback in self._when_ending:
            callback()

    def when_ending(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the time for draining has passed."""
        self._when_ending.append(callback)

    def _set_shard(self, phase: Phase, reason: str = "") -> None:
        if self.shard is not Phase.FAILED:
            self.shard, self.loss, self.work = phase, reason, None

    # what it means

    @property
    def phase(self) -> Phase:
        """Where the server stands: a server that drains does so with or without a shard, until there can be none."""
        draining = self._stop_reason is not None and self.shard is not Phase.FAILED
        return Phase.DRAINING if draining else self.shard

    @property
    def reason(self) -> str:
        """Why the server is restarting, draining or failed, in words that anyone may read; else empty."""
        return self._stop_reason or "" if self.phase is Phase.DRAINING else self.loss

    @property
    def live(self) -> bool:
        """Whether the process is sound: ending it would not help."""
        return self.phase is not Phase.FAILED

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here."""
        return self.phase is Phase.SERVING

    @property
    def accepts(self) -> bool:
        """Whether a request that is sent here anyway is accepted."""
        if self.phase is Phase.RESTARTING:
            return self._queueing
        return self.phase in (Phase.SERVING, Phase.DRAINING) and not self.over

    def describe(self) -> dict[str, object]:
        """Phase, reason and progress, for JSON."""
        fields: dict[str, object] = {"phase": self.phase.value}
        work = self.work
        if self.reason:
            fields["reason"] = self.reason
        if work is not None:
            fields["progress"] = {"what": work.what, "done": work.done, "total": work.total, "unit": work.unit}
        return fields
