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


class _Line:
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
        self._lines: dict[str, _Line] = {}
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
        heap: list[tuple[float, int, int, float, _Line]] = []
        ahead = iter(self._order)
        following = next(ahead, None)
        while heap or following is not None:
            while following is not None and (not heap or following[0] < heap[0][:2]):
                line = self._lines[following[1]]
                heappush(heap, (*following[0], 0, line.next_at, line))
                following = next(ahead, None)
            _, _, place, at, line = heappop(heap)
            sequence = line.waiting[place][1]
            yield sequence
            if place + 1 < len(line.waiting):
                at, behind = at + line.cost(sequence), line.waiting[place + 1][1]
                heappush(heap, (at + behind.urgency, behind.key, place + 1, at, line))

    @property
    def clients(self) -> int:
        """Number of clients with waiting or running requests."""
        return len(self._lines)

    def first(self, count: int) -> list[Sequence]:
        """Return the first `count` sequences, or all if there are fewer."""
        return list(islice(self, count))

    def enter(self, sequence: Sequence) -> None:
        """Add a new request."""
        client = sequence.request.scheduling.client
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = _Line(self._now)
        elif not line.waiting:
            line.next_at = max(line.next_at, self._now)
        line.requests += 1
        self.push(sequence)

    def push(self, sequence: Sequence) -> None:
        """Insert a new or preempted sequence at its place."""
        line = self._leave_order(sequence.request.scheduling.client)
        insort(line.waiting, (sequence.rank, sequence))
        self._join_order(sequence.request.scheduling.client)
        self._waiting[sequence.key] = sequence
        self.tokens += len(sequence.tokens)

    def pop(self, key: int) -> Sequence | None:
        """Remove and return a sequence by its key; None if it is not waiting."""
        sequence = self._waiting.pop(key, None)
        if sequence is not None:
            line = self._leave_order(sequence.request.scheduling.client)
            del line.waiting[bisect_left(line.waiting, sequence.rank, key=_rank)]
            self._join_order(sequence.request.scheduling.client)
            self.tokens -= len(sequence.tokens)
        return sequence

    def admit(self, sequence: Sequence) -> None:
        """Remove a sequence that is about to run, and charge its client."""
        line = self._lines[sequence.request.scheduling.client]
        cost, rivals = line.cost(sequence), len(self._order)
        sequence.counted = True
        self._leave_order(sequence.request.scheduling.client)
        self._now = max(self._now, line.next_at) + cost / rivals
        line.next_at += cost
        self._join_order(sequence.request.scheduling.client)
        self.pop(sequence.key)

    def leave(self, sequence: Sequence) -> None:
        """Record the end of a request, which must not be waiting."""
        client, made = sequence.request.scheduling.client, len(sequence.tokens) - len(sequence.request.input_ids)
        line = self._lines[client]
        line.requests -= 1
        if not line.requests:
            del self._lines[client]
        elif made:
            line.answer += _ANSWER_WEIGHT * (made - line.answer)

    def last_of_longest(self, client: str) -> Sequence | None:
        """Return the last request that has not begun of the client with the longest queue; None if `client` would have as many
        with one more."""
        longest = max((line.waiting for line in self._lines.values()), key=len, default=[])
        own = self._lines[client].waiting if client in self._lines else ()
        if len(longest) <= len(own) + 1:
            return None
        return next((item for _, item in reversed(longest) if not item.counted), None)

    def _leave_order(self, client: str) -> _Line:
        line = self._lines[client]
        if line.waiting:
            del self._order[bisect_left(self._order, (line.place(), client))]
        return line

    def _join_order(self, client: str) -> None:
        line = self._lines[client]
        if line.waiting:
            insort(self._order, (line.place(), client))


def _rank(item: tuple[tuple[float, int], Sequence]) -> tuple[float, int]:
    return item[0]
