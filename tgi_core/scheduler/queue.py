"""The queue of requests that wait for their first step or to be continued: by rank within a client, and fairly between clients.

Fairness is weighted fair queueing. A client's place in the queue is the virtual time at which its next request begins. Admitting a
request moves its client back by the request's cost in tokens, and advances the virtual clock, from which new clients start, by each
waiting client's share of that cost. So all waiting clients get the same number of tokens, a client that sends more requests only
waits longer, and a new client waits for at most one request of each other client. A client without requests leaves no state.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from tgi_core.scheduler.sequence import Sequence

_USUAL_ANSWER = 128
"""Assumed number of generated tokens per request, before a client has completed one."""
_ANSWER_WEIGHT = 0.2
"""Weight of the latest generation in the moving average of a client's generation lengths."""


class _ClientQueue:
    """One client's requests, and its place in the order of clients."""

    __slots__ = ("answer", "next_at", "requests", "waiting")

    def __init__(self, now: float) -> None:
        self.next_at = now
        """Virtual time at which the client's next request begins, in tokens."""
        self.answer: float = _USUAL_ANSWER
        self.requests = 0
        """Number of waiting and running requests."""
        self.waiting: list[tuple[tuple[float, int], Sequence]] = []
        """Ordered by rank."""

    def place(self) -> tuple[float, int]:
        """Place of the client's first waiting request among those of all clients."""
        first = self.waiting[0][1]
        return self.next_at + first.urgency, first.key

    def cost(self, sequence: Sequence) -> float:
        """Return the estimated cost in tokens; 0 for a continued request, which was charged when it began."""
        return 0.0 if sequence.counted else len(sequence.tokens) + min(sequence.total - len(sequence.tokens), self.answer)


class WaitingQueue:
    """Waiting sequences in the order in which they will be admitted; a preempted one returns to its old place."""

    def __init__(self) -> None:
        self._client_queues: dict[str, _ClientQueue] = {}
        self._order: list[tuple[tuple[float, int], str]] = []
        """Places of the clients that have waiting requests, sorted."""
        self._waiting: dict[int, Sequence] = {}
        self._now = 0.0
        """Virtual clock, in tokens."""
        self.tokens = 0
        """Number of tokens of all waiting sequences."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        heap: list[tuple[float, int, int, float, _ClientQueue]] = []
        ahead = iter(self._order)
        following = next(ahead, None)
        while heap or following is not None:
            while following is not None and (not heap or following[0] < heap[0][:2]):
                client_queue = self._client_queues[following[1]]
                heappush(heap, (*following[0], 0, client_queue.next_at, client_queue))
                following = next(ahead, None)
            _, _, place, at, client_queue = heappop(heap)
            sequence = client_queue.waiting[place][1]
            yield sequence
            if place + 1 < len(client_queue.waiting):
                at, behind = at + client_queue.cost(sequence), client_queue.waiting[place + 1][1]
                heappush(heap, (at + behind.urgency, behind.key, place + 1, at, client_queue))

    @property
    def clients(self) -> int:
        """Number of clients with waiting or running requests."""
        return len(self._client_queues)

    def first(self, count: int) -> list[Sequence]:
        """Return the first `count` sequences, or all if there are fewer."""
        return list(islice(self, count))

    def enter(self, sequence: Sequence) -> None:
        """Add a new request."""
        client = sequence.request.scheduling.client
        client_queue = self._client_queues.get(client)
        if client_queue is None:
            client_queue = self._client_queues[client] = _ClientQueue(self._now)
        elif not client_queue.waiting:
            client_queue.next_at = max(client_queue.next_at, self._now)
        client_queue.requests += 1
        self.push(sequence)

    def push(self, sequence: Sequence) -> None:
        """Insert a new or preempted sequence at its place."""
        client_queue = self._leave_order(sequence.request.scheduling.client)
        insort(client_queue.waiting, (sequence.rank, sequence))
        self._join_order(sequence.request.scheduling.client)
        self._waiting[sequence.key] = sequence
        self.tokens += len(sequence.tokens)

    def pop(self, key: int) -> Sequence | None:
        """Remove and return a sequence by its key; None if it is not waiting."""
        sequence = self._waiting.pop(key, None)
        if sequence is not None:
            client_queue = self._leave_order(sequence.request.scheduling.client)
            del client_queue.waiting[bisect_left(client_queue.waiting, sequence.rank, key=_rank)]
            self._join_order(sequence.request.scheduling.client)
            self.tokens -= len(sequence.tokens)
        return sequence

    def admit(self, sequence: Sequence) -> None:
        """Remove a sequence that is about to run, and charge its client."""
        client_queue = self._client_queues[sequence.request.scheduling.client]
        cost, rivals = client_queue.cost(sequence), len(self._order)
        sequence.counted = True
        self._leave_order(sequence.request.scheduling.client)
        self._now = max(self._now, client_queue.next_at) + cost / rivals
        client_queue.next_at += cost
        self._join_order(sequence.request.scheduling.client)
        self.pop(sequence.key)

    def leave(self, sequence: Sequence) -> None:
        """Record the end of a request, which must not be waiting."""
        client, made = sequence.request.scheduling.client, len(sequence.tokens) - len(sequence.request.input_ids)
        client_queue = self._client_queues[client]
        client_queue.requests -= 1
        if not client_queue.requests:
            del self._client_queues[client]
        elif made:
            client_queue.answer += _ANSWER_WEIGHT * (made - client_queue.answer)

    def waiting_by_client(self) -> dict[str, int]:
        """Return the number of waiting requests of each client."""
        return {client: len(client_queue.waiting) for client, client_queue in self._client_queues.items()}

    def last_not_begun(self, client: str) -> Sequence | None:
        """Return a client's last waiting request that has not begun."""
        client_queue = self._client_queues.get(client)
        waiting = () if client_queue is None else client_queue.waiting
        return next((item for _, item in reversed(waiting) if not item.counted), None)

    def _leave_order(self, client: str) -> _ClientQueue:
        client_queue = self._client_queues[client]
        if client_queue.waiting:
            del self._order[bisect_left(self._order, (client_queue.place(), client))]
        return client_queue

    def _join_order(self, client: str) -> None:
        client_queue = self._client_queues[client]
        if client_queue.waiting:
            insort(self._order, (client_queue.place(), client))


def _rank(item: tuple[tuple[float, int], Sequence]) -> tuple[float, int]:
    return item[0]
