"""State of a server for routing and health probes (starting, serving, restarting, draining, failed).

A server process has one `Lifecycle`. The scheduler loop updates it when the shard's state changes, and the signal handler when the
server must stop. The loop, the router and the probes read it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from tgi_core.wire.health import TaskProgress


class Phase(Enum):
    """State of a server."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    """The shard is lost and is being replaced."""
    DRAINING = "draining"
    """The server is shutting down and finishes running requests. Only FAILED can follow."""
    FAILED = "failed"
    """The server will not recover; its process is exiting or should be killed."""


class Lifecycle:
    """The phase of one server. Its methods may be called from any thread; `end` calls the callbacks of `when_ending` on its own."""

    def __init__(self, phase: Phase = Phase.STARTING) -> None:
        self.shard = phase
        """Phase of the shard, which draining does not affect; never DRAINING."""
        self.task: TaskProgress | None = None
        """The slow work in progress, if any."""
        self.over = False
        """Whether the time limit for draining has passed."""
        self.loss = ""
        """Why there is no shard, without confidential details."""
        self._stop_reason: str | None = None
        self._queueing = False
        self._when_ending: list[Callable[[], None]] = []

    # events

    def progress(self, what: str, done: int, total: int, unit: str) -> None:
        """Record progress of slow work; a `tgi_core.backend.Progress`."""
        self.task = TaskProgress(what, done, total, unit)

    def serving(self) -> None:
        """The shard is ready, initially or after a restart."""
        self._set_shard(Phase.SERVING)

    def restarting(self, reason: str, *, queueing: bool = False) -> None:
        """The shard is lost and is being replaced. With `queueing`, new requests are accepted and wait for the new shard."""
        self._set_shard(Phase.RESTARTING, reason)
        self._queueing = queueing

    def draining(self, reason: str = "the server is shutting down") -> None:
        """The server is shutting down. It still accepts requests, but clients should prefer another server."""
        if self._stop_reason is None:
            self._stop_reason, self.task = reason, None

    def failed(self, reason: str) -> None:
        """The shard is permanently lost."""
        self._set_shard(Phase.FAILED, reason)

    def end(self) -> None:
        """End all running requests: the time limit for draining has passed."""
        self.over = True
        for callback in self._when_ending:
            callback()

    def when_ending(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the time limit for draining has passed."""
        self._when_ending.append(callback)

    def _set_shard(self, phase: Phase, reason: str = "") -> None:
        if self.shard is not Phase.FAILED:
            self.shard, self.loss, self.task = phase, reason, None

    # state

    @property
    def phase(self) -> Phase:
        """Phase of the server. DRAINING takes precedence over the shard's phase, except FAILED."""
        draining = self._stop_reason is not None and self.shard is not Phase.FAILED
        return Phase.DRAINING if draining else self.shard

    @property
    def reason(self) -> str:
        """Why the server is restarting, draining or failed, without confidential details; otherwise empty."""
        return self._stop_reason or "" if self.phase is Phase.DRAINING else self.loss

    @property
    def live(self) -> bool:
        """Whether the process is healthy and should not be restarted."""
        return self.phase is not Phase.FAILED

    @property
    def ready(self) -> bool:
        """Whether requests should be sent to this server."""
        return self.phase is Phase.SERVING

    @property
    def accepts(self) -> bool:
        """Whether new requests are accepted, even if the server is not ready."""
        if self.phase is Phase.RESTARTING:
            return self._queueing
        return self.phase in (Phase.SERVING, Phase.DRAINING) and not self.over

    def describe(self) -> dict[str, object]:
        """Phase, reason and progress, for JSON."""
        fields: dict[str, object] = {"phase": self.phase.value}
        task = self.task
        if self.reason:
            fields["reason"] = self.reason
        if task is not None:
            fields["progress"] = {"what": task.what, "done": task.done, "total": task.total, "unit": task.unit}
        return fields
