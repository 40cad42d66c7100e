"""How many replicas to run: more while requests wait, fewer once the remaining ones have room for all requests."""

from __future__ import annotations

from dataclasses import dataclass

_ROOM = 0.5
"""Part of the remaining replicas' rows that may be in use when one is closed."""


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """From `least` to `most` replicas. One is opened when a request has waited `wait_s` seconds, and one closed when the others have had
    room for `idle_s` seconds."""

    least: int
    most: int
    wait_s: float = 1.0
    idle_s: float = 300.0


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """What the decision depends on. `open`: replicas that serve or are being opened, of which `opening` do not serve yet;
    `longest_wait`: seconds that a request has waited for its first step, None if none waits; `rows`: waiting and running requests;
    `rows_each`: requests that a replica runs at a time."""

    open: int
    opening: int
    longest_wait: float | None
    rows: int
    rows_each: int


class Autoscaler:
    """Decides each time it is called. Pure: the caller has the clock."""

    def __init__(self, rules: ScalingRules) -> None:
        self._rules = rules
        self._roomy_since: float | None = None

    def decide(self, load: PoolLoad, now: float) -> int:
        """Return 1 to open a replica, -1 to close one, 0 to change nothing."""
        rules = self._rules
        if load.open < rules.least or (load.longest_wait is not None and self._short(load)):
            self._roomy_since = None
            return 1 if load.open < rules.most else 0
        if load.open <= rules.least or load.opening or load.longest_wait is not None or not self._has_room(load):
            self._roomy_since = None
            return 0
        if self._roomy_since is None:
            self._roomy_since = now
        if now - self._roomy_since < rules.idle_s:
            return 0
        self._roomy_since = None
        return -1

    def _short(self, load: PoolLoad) -> bool:
        """Whether a request waits that a replica being opened will not serve in time either."""
        return load.open == 0 or (not load.opening and (load.longest_wait or 0.0) >= self._rules.wait_s)

    @staticmethod
    def _has_room(load: PoolLoad) -> bool:
        """Whether all requests would leave room on one replica less. The last one is only closed when it is idle."""
        return load.rows <= _ROOM * load.rows_each * (load.open - 1)
