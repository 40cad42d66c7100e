"""The protocol by which a scheduler's loop reports to the placement of requests on several shards."""

from __future__ import annotations

from typing import Protocol

from tgi_core.scheduler.overload import QueueLimits
from tgi_core.scheduler.prefix import PrefixIndex
from tgi_core.scheduler.sequence import Sequence


class Replication(Protocol):
    """One replica's part in the placement of requests. Called on the event loop; keys are those of the replica's scheduler."""

    @property
    def prefixes(self) -> PrefixIndex | None:
        """Prefix index for the replica's scheduler; None: its own one."""

    @property
    def queue_limits(self) -> QueueLimits | None:
        """Limits that the queues of all replicas share; None: those of the scheduler's options, for itself."""

    def queued(self, sequence: Sequence) -> None:
        """A request has entered the queue."""

    def started(self, key: int) -> None:
        """The first step of a request, or of its continuation, is being sent."""

    def ended(self, key: int) -> None:
        """A request has ended or has been given up."""

    def lost(self) -> None:
        """The shard is lost and is being replaced. No request has a row on it any more."""
