"""Output coalescing: fewer and larger deliveries while the server itself is the bottleneck.

Delivering one token to a client costs about as much as delivering a few. While the server waits for the device, as it usually
does, each step's tokens go out at once. While the device waits for the server, the tokens of several steps go out together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from tgi_core.scheduler.events import Event
from tgi_core.wire.types import Generation

LONGEST_S = 0.04
"""Maximum time for which a token is held back, in seconds: one frame of film."""

_USUAL_S = 0.03
"""Maximum time for which results are collected, in seconds; delivering them takes time as well."""
_MOST_STEPS = 16
_TURNS = 16
"""Turns between changes of the number of steps: enough for a whole delivery."""
_SURELY = 4.0
"""The server is the bottleneck if delivering takes longer than waiting for the shard, and certainly not if waiting takes this
many times as long. The factor is large because coalescing itself makes delivering faster."""


@dataclass(slots=True)
class CoalescedGeneration(Generation):
    """Results of several steps for one request."""

    steps: int = 1


class OutputCoalescer:
    """Decides which events are delivered now. A request's first tokens, last tokens and error always are; the order within a
    request is preserved."""

    def __init__(self, steps: int = 1) -> None:
        self.steps = steps
        """Number of steps that are delivered together."""
        self._held: dict[int, list[Generation]] = {}
        self._taken = 0
        self._lively: set[int] = set()
        """Requests with tokens in the last delivery: only their tokens are held back."""
        self._fresh: set[int] = set()
        """Requests with tokens in the next delivery."""
        self._turns = 0
        self._waited_s = self._delivered_s = 0.0

    @property
    def holds(self) -> bool:
        """Whether any event is held back."""
        return bool(self._held)

    def step(self, events: list[Event]) -> list[Event]:
        """Add the events of a step. Return the events to deliver now."""
        if self.steps == 1 and not self._held:
            return events
        now: list[Event] = []
        for event in events:
            key, made = event.key, event.generation
            if made is not None and made.finished is None and key in self._lively:
                self._held.setdefault(key, []).append(made)
                self._fresh.add(key)
                continue
            held = self._held.pop(key, None)
            if made is None:
                now += [Event(key, _joined(held)), event] if held else [event]
                continue
            now.append(Event(key, _joined([*held, made])) if held else event)
            self._fresh.add(key)
        self._taken += 1
        if self._taken >= self.steps:
            now += self.flush()
        return now

    def flush(self) -> list[Event]:
        """Return all events that are held back."""
        events = [Event(key, _joined(made)) for key, made in self._held.items()]
        self._held.clear()
        self._lively, self._fresh, self._taken = self._fresh, set(), 0
        return events

    def turn(self, waited_s: float, delivered_s: float) -> None:
        """Record the seconds for which a turn waited for the shard, and the seconds that its delivery took."""
        self._turns += 1
        self._waited_s += waited_s
        self._delivered_s += delivered_s
        if self._turns < _TURNS:
            return
        fitting = int(_USUAL_S * self._turns / max(self._waited_s + self._delivered_s, 1e-6))
        if self._waited_s > _SURELY * self._delivered_s:
            self.steps = max(1, self.steps // 2)
        elif self._delivered_s > self._waited_s:
            self.steps = min(_MOST_STEPS, 2 * self.steps)
        self.steps = max(1, min(self.steps, fitting))
        self._turns, self._waited_s, self._delivered_s = 0, 0.0, 0.0


def _joined(made: Iterable[Generation]) -> Generation:
    """Merge the results of several steps for one request, in order."""
    parts = list(made)
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    return CoalescedGeneration(
        last.request_id,
        tuple(chain.from_iterable(part.tokens for part in parts)),
        tuple(chain.from_iterable(part.prompt for part in parts)),
        last.finished,
        last.fault,
        sum(part.steps for part in parts),
    )
