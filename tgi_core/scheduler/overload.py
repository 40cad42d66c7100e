"""Queue limits: when a request is refused and which one is displaced to make room for another. Replicas share the limits."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import Protocol

from tgi_core.scheduler.queue import WaitingQueue
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.step_times import Throughput, seconds_for
from tgi_core.scheduler.types import Overloaded, SchedulerOptions


class QueueOwner(Protocol):
    """A scheduler, as far as its queue is concerned."""

    queue: WaitingQueue
    throughput: Throughput

    def displace(self, sequence: Sequence, error: Overloaded) -> None:
        """End a request that waits in the queue."""


class QueueLimits:
    """Limits on waiting requests and tokens, in the queue of one scheduler or in those of all replicas together."""

    def __init__(self, options: SchedulerOptions | None = None) -> None:
        options = options or SchedulerOptions()
        self._most_requests, self._most_tokens = options.max_queued_requests, options.max_queued_tokens
        self._owners: list[QueueOwner] = []

    def join(self, owner: QueueOwner) -> None:
        """Count another queue's requests as well."""
        self._owners.append(owner)

    def make_room(self, tokens: int, client: str) -> None:
        """Make room for a prompt of `tokens` tokens. If too much waits, the last requests of the client with the most waiting
        requests are displaced. Raises Overloaded if `client` would have as many."""
        while (full := self._excess(tokens)) is not None:
            last = self._last_of_longest(client)
            if last is None:
                raise full
            owner, sequence = last
            owner.displace(sequence, full)

    def _excess(self, tokens: int) -> Overloaded | None:
        """Return why the prompt does not fit, with the time that the queues take at the current throughput; None if it fits."""
        if self._most_requests is None and self._most_tokens is None:
            return None
        requests, waiting = sum(len(owner.queue) for owner in self._owners), sum(owner.queue.tokens for owner in self._owners)
        if self._most_requests is not None and requests >= self._most_requests:
            return Overloaded(f"{requests} requests are waiting, the maximum", self._seconds_for(waiting))
        if self._most_tokens is not None and requests and waiting + tokens > self._most_tokens:
            return Overloaded(
                f"prompts of {waiting} tokens are waiting; the maximum is {self._most_tokens}", self._seconds_for(waiting)
            )
        return None

    def _seconds_for(self, tokens: int) -> float:
        return seconds_for(tokens, sum(owner.throughput.rate for owner in self._owners))

    def _last_of_longest(self, client: str) -> tuple[QueueOwner, Sequence] | None:
        """Return the last request not yet begun of the client with the most waiting requests, and its queue's owner; None if `client`
        would have as many with one more."""
        counts = Counter[str]()
        for owner in self._owners:
            counts.update(owner.queue.waiting_by_client())
        longest, most = max(counts.items(), key=itemgetter(1), default=("", 0))
        if most <= counts[client] + 1:
            return None
        found = [(last, owner) for owner in self._owners if (last := owner.queue.last_not_begun(longest)) is not None]
        if not found:
            return None
        last, owner = max(found, key=lambda each: each[0].rank)
        return owner, last
