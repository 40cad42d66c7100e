"""Where the loop stands, for whoever answers probes."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """SERVING has a shard, RESTARTING waits for one, FAILED will have none."""

    SERVING = "serving"
    RESTARTING = "restarting"
    FAILED = "failed"
