"""What a scheduler tells those around it."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_core.scheduler.types import SchedulerError
from tgi_core.wire.types import Generation


@dataclass(slots=True)
class Event:
    """What a request gets: text, or an error that ends it. Not frozen, since one is made for every token."""

    key: int
    generation: Generation | None = None
    error: SchedulerError | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A request that a turn brings to the shard, with how many of its tokens were found in the cache."""

    key: int
    cached: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Numbers for gauges. Blocks of idle prefixes count as free."""

    queued: int
    running: int
    blocks_free: int
    blocks_total: int
    query_tokens: int = 0
    """Tokens of all requests so far when they were admitted."""
    hit_tokens: int = 0
    """Those of them that were found in the cache."""
    paused: int = 0
    """Requests that nobody reads, whether they run or have given up their place."""
