"""The health of a shard."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ShardState(Enum):
    """OPENING loads the model, OPEN waits for the warm-up, READY serves, LOST is unusable."""

    OPENING = "opening"
    OPEN = "open"
    WARMING = "warming"
    READY = "ready"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Slow work in progress: `done` of `total` in `unit`, as in `tgi_core.backend.Progress`."""

    what: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """Health of a shard, available at any time. A hung shard responds as well, with a growing `turn_age_ns`. `turns`: number of
    completed turns. `last_step_age_ns`: nanoseconds since the end of the last one (None: there was none). `turn_age_ns`:
    nanoseconds since the start of the current one (None: there is none)."""

    state: ShardState
    task: TaskProgress | None = None
    turns: int = 0
    last_step_age_ns: int | None = None
    turn_age_ns: int | None = None
