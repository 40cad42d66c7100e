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
class Work:
    """Slow work in progress: `done` of `total` in `unit`, as in `tgi_core.backend.Progress`."""

    what: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """What a shard says of itself at any time. A shard that hangs answers too: its `turn_age_ns` grows.

    `turns` were carried out, the last of them ended `last_step_age_ns` ago (None: there was none); the one under way began
    `turn_age_ns` ago (None: there is none).
    """

    state: ShardState
    work: Work | None = None
    turns: int = 0
    last_step_age_ns: int | None = None
    turn_age_ns: int | None = None
