"""How long the backend's verbs take and how they end, counted for /metrics."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

DURATION_BUCKETS = tuple(0.00015 * 1.5**power for power in range(35))
"""Upper bounds in seconds: TGI's own buckets for durations."""


@dataclass(slots=True)
class Durations:
    """A histogram: counts per bucket (the last one has no bound), their sum and number."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(DURATION_BUCKETS, seconds)] += 1
        self.total_s += seconds


class VerbTimes:
    """One histogram per verb, and failures by verb and error name. Written by the shard's thread, read by any."""

    def __init__(self) -> None:
        self.durations: dict[str, Durations] = {}
        self.failures: dict[tuple[str, str], int] = {}

    def observe(self, verb: str, seconds: float, error: str) -> None:
        """Count one call of a verb; `error` is "" when it succeeded."""
        self.durations.setdefault(verb, Durations()).add(seconds)
        if error:
            self.failures[verb, error] = self.failures.get((verb, error), 0) + 1
