"""Whose fault a failed step is, when nobody says.

A row that has had a token since it came to the device is proven; the others are newcomers, and suspected first. When a step with
several of them fails, fewer may be on the device at once, in the end one, which is then the one: only what can be nobody else's fault
counts against a request. Each first token lets one more in.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tgi_core.backend import Scope
from tgi_core.scheduler.sequence import Sequence
from tgi_core.wire.types import Fault

MAX_RETRIES = 3
"""Faults in a row that can only be its own, without a token in between, after which a request fails."""

_NEVER = 1 << 30


@dataclass(slots=True)
class Verdict:
    """What becomes of the rows that a fault may have come from. Those in neither list go on, or wait as before."""

    yielding: list[Sequence] = field(default_factory=list)
    """Running rows that go back to the queue."""
    failed: list[Sequence] = field(default_factory=list)
    """Rows that have had enough faults."""


class FaultAttribution:
    """How many newcomers may be on the device at once, lowered and raised as steps fail and succeed."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._limit = max_rows
        self._held = False
        """The next step takes no newcomer, so that it shows whether the rows that run are at fault."""

    def room(self, running: Collection[Sequence]) -> int:
        """How many more rows may come. One may where nothing runs."""
        if self._held and running:
            return 0
        if self._limit >= self._max_rows:
            return self._max_rows
        return self._limit - sum(not item.proven for item in running)

    def accepted(self) -> None:
        """A step was launched."""
        self._held = False

    def prove(self, sequence: Sequence) -> None:
        """A newcomer has got a token."""
        sequence.proven = True
        self._limit = min(self._max_rows, self._limit + 1)

    def refused(
        self, fault: Fault, tokens: int, named: list[Sequence], admitted: list[Sequence], running: list[Sequence]
    ) -> Verdict:
        """A step of so many tokens was refused; `admitted` would have come with it and wait again, `running` are on the device."""
        if fault.scope is Scope.REQUEST and fault.request_ids:
            return Verdict(failed=named)  # nobody, if they have left meanwhile
        suspects = named or admitted or running
        if len(suspects) > 1 and not named:
            self._limit = max(1, len(suspects) // 2)
            return Verdict([] if admitted else self._yielding(running, fault))
        self._held = True
        others = any(item not in suspects for item in running)
        on_device = [item for item in suspects if item.wire_id]
        return Verdict(on_device if others else [], self._tired(suspects, _patience(fault, tokens, others)))

    def died(self, suspected: list[Sequence], known: bool = False) -> Verdict:
        """A launched step failed, or all of the shard, with these rows on the device: they go back, all of them. If it is `known` who
        is at fault then it is none of these."""
        if known:
            return Verdict(suspected)
        suspects = [item for item in suspected if not item.proven] or suspected
        if len(suspects) > 1:
            self._limit = max(1, len(suspects) // 2)
            return Verdict(suspected)
        return Verdict(suspected, self._tired(suspects, MAX_RETRIES))

    def _yielding(self, running: list[Sequence], fault: Fault) -> list[Sequence]:
        """Of rows that are refused without newcomers, one makes room in memory; but half go where one of them is at fault."""
        self._held = True
        last = sorted(running, key=lambda item: item.rank)
        return last[(len(last) + 1) // 2 :] if fault.scope is Scope.REQUEST else last[-1:]

    @staticmethod
    def _tired(suspects: list[Sequence], patience: int) -> list[Sequence]:
        for sequence in suspects:
            sequence.retries += 1
        return [item for item in suspects if item.retries > patience]


def _patience(fault: Fault, tokens: int, others: bool) -> int:
    """How many faults in a row a row may have had that nobody else can be blamed for. Beside others, want of memory is nobody's fault."""
    if fault.scope is Scope.REQUEST:
        return 1 if others else 0
    if others and not fault.request_ids:
        return _NEVER
    return MAX_RETRIES if tokens > 1 else 1
