"""Metrics of each replica, in addition to their sums."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from tgi_core.lifecycle import Phase
from tgi_core.scheduler.events import ReplicaState, Snapshot
from tgi_core.telemetry.catalog import Instruments

_VALUES: dict[str, Callable[[ReplicaState], float]] = {
    "tgi_replica_up": lambda state: state.phase == Phase.SERVING.value,
    "tgi_replica_queue_size": lambda state: state.load.queued,
    "tgi_replica_batch_current_size": lambda state: state.load.running,
    "tgi_replica_kv_blocks_used": lambda state: state.load.blocks_total - state.load.blocks_free,
    "tgi_replica_kv_blocks_capacity": lambda state: state.load.blocks_total,
    "tgi_replica_prefix_cache_query_tokens": lambda state: state.load.query_tokens,
    "tgi_replica_prefix_cache_hit_tokens": lambda state: state.load.hit_tokens,
    "tgi_replica_placed_requests": lambda state: state.placed,
    "tgi_replica_moved_requests": lambda state: state.moved,
    "tgi_replica_losses": lambda state: state.losses,
}


def export_replicas(registry: CollectorRegistry, snapshot: Callable[[], Snapshot]) -> None:
    """Export the state of each replica; `snapshot` is called at each scrape."""
    make = Instruments(registry)
    for name, value in _VALUES.items():
        make.by_replica(name, lambda value=value: [value(state) for state in snapshot().replicas])  # type: ignore[misc]
