"""The phases of a server's life, and what probes and balancers are told in each."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from tgi_core.wire.health import Work


class Phase(Enum):
    """Where a server stands in its life."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    """The shard is away, and will be back."""
    DRAINING = "draining"
    """Told to stop: what runs is finished. From here only FAILED can follow."""
    FAILED = "failed"
    """It will not serve again; the process is about to end, or should be ended."""


class Lifecycle:
    """The phase of one server. Its methods may be called from any thread, those that `when_ending` adds run on the caller's."""

    def __init__(self, phase: Phase = Phase.STARTING) -> None:
        self.phase = phase
        self.reason = ""
        """Why it is restarting, draining or failed, in words that anyone may read."""
        self.work: Work | None = None
        self.over = False
        """The time for draining is over."""
        self._queueing = False
        self._when_ending: list[Callable[[], None]] = []

    # what happens

    def progress(self, what: str, done: int, total: int, unit: str) -> None:
        """Slow work goes on; a `tgi_core.backend.Progress`."""
        self.work = Work(what, done, total, unit)

    def serving(self) -> None:
        """Requests can be served, for the first time or again."""
        self._enter(Phase.SERVING)

    def restarting(self, reason: str, *, queueing: bool = False) -> None:
        """The shard is lost and will be restored. `queueing`: requests are taken meanwhile, and wait for it."""
        self._enter(Phase.RESTARTING, reason)
        self._queueing = queueing

    def draining(self, reason: str = "the server is shutting down") -> None:
        """What runs is finished, what comes is still answered, and whoever can send requests elsewhere should."""
        self._enter(Phase.DRAINING, reason)

    def failed(self, reason: str) -> None:
        """There is no way back."""
        self._enter(Phase.FAILED, reason)

    def end(self) -> None:
        """The time for draining is over: whatever still runs is told so and ends."""
        self.over = True
        for callback in self._when_ending:
            callback()

    def when_ending(self, callback: Callable[[], None]) -> None:
        """Have `callback` called at the end."""
        self._when_ending.append(callback)

    def _enter(self, phase: Phase, reason: str = "") -> None:
        if self.phase is Phase.FAILED or (self.phase is Phase.DRAINING and phase is not Phase.FAILED):
            return
        self.phase, self.reason, self.work = phase, reason, None

    # what it means

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
        """Whether a request that comes all the same is taken."""
        if self.phase is Phase.RESTARTING:
            return self._queueing
        return self.phase in (Phase.SERVING, Phase.DRAINING) and not self.over

    def describe(self) -> dict[str, object]:
        """Phase, reason and progress, for JSON."""
        told: dict[str, object] = {"phase": self.phase.value}
        work = self.work
        if self.reason:
            told["reason"] = self.reason
        if work is not None:
            told["progress"] = {"what": work.what, "done": work.done, "total": work.total, "unit": work.unit}
        return told
