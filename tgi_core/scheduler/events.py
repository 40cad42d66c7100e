"""Events that the scheduler reports to its loop."""

from __future__ import annotations

from dataclasses import dataclass

from tgi_core.scheduler.types import SchedulerError
from tgi_core.wire.types import Generation


@dataclass(slots=True)
class Event:
    """A result for one request: text, or an error that ends it. Not frozen, since one is made per token and freezing costs time."""

    key: int
    generation: Generation | None = None
    error: SchedulerError | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A request whose first step is in the turn, with the number of its tokens that were found in the cache."""

    key: int
    cached: int


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica's phase (a value of `Phase`) and load. `placed`: requests that it was given, including those from other replicas;
    `moved`: requests that others took over from it; `losses`: how often its shard was lost or replaced."""

    phase: str
    load: Snapshot
    placed: int
    moved: int
    losses: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Numbers for gauges. Blocks of idle prefixes count as free."""

    queued: int
    running: int
    blocks_free: int
    blocks_total: int
    query_tokens: int = 0
    """Tokens of all requests so far, counted when they were admitted."""
    hit_tokens: int = 0
    """Number of those tokens that were found in the cache."""
    paused: int = 0
    """Requests whose clients do not read, whether or not they still have a row."""
    replicas: tuple[ReplicaState, ...] = ()
    """The state of each replica, if there are several; the other fields are then sums."""
    window_usage: float = 0.0
    """Used fraction of the fullest cache group whose blocks are taken back behind a window; of the fullest replica."""
