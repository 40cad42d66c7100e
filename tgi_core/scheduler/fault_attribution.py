"""Attribution of a step's failure to a request if the error names none.

A row that has had a token since it was admitted is proven; the others are new and suspected first. When a step with several new
rows fails, fewer of them are allowed at once, in the end one. Only a fault that no other row can have caused counts against a
request. Each first token allows one more new row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tgi_core.backend import Scope
from tgi_core.scheduler.sequence import Sequence
from tgi_core.wire.types import Fault

MAX_RETRIES = 3
"""A request fails after more than this many faults in a row that only it can have caused, without a token in between."""

_NEVER = 1 << 30


@dataclass(slots=True)
class Verdict:
    """What happens to the suspected rows. Rows in neither list keep running or waiting."""

    requeued: list[Sequence] = field(default_factory=list)
    """Running rows that return to the queue."""
    failed: list[Sequence] = field(default_factory=list)
    """Rows with too many faults."""


class FaultAttribution:
    """Limits the number of new rows on the device: lowered as steps fail, raised as they succeed."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._limit = max_rows
        self._held = False
        """Whether the next step admits no row, to test whether the running rows are at fault."""

    def room(self, running: Collection[Sequence]) -> int:
        """Number of further rows that may be admitted; at least one if nothing runs."""
        if self._held and running:
            return 0
        if self._limit >= self._max_rows:
            return self._max_rows
        return self._limit - sum(not item.proven for item in running)

    def accepted(self) -> None:
        """Record a launched step."""
        self._held = False

    def prove(self, sequence: Sequence) -> None:
        """Record the first token of a new row."""
        sequence.proven = True
        self._limit = min(self._max_rows, self._limit + 1)

    def refused(
        self, fault: Fault, tokens: int, named: list[Sequence], admitted: list[Sequence], running: list[Sequence]
    ) -> Verdict:
        """Handle a refused step of `tokens` tokens. `admitted` would have begun in it and wait again; `running` are on the
        device."""
        if fault.scope is Scope.REQUEST and fault.request_ids:
            return Verdict(failed=named)  # empty if they have been dropped in the meantime
        suspects = named or admitted or running
        if len(suspects) > 1 and not named:
            self._limit = max(1, len(suspects) // 2)
            return Verdict([] if admitted else self._to_requeue(running, fault))
        self._held = True
        others = any(item not in suspects for item in running)
        on_device = [item for item in suspects if item.wire_id]
        return Verdict(on_device if others else [], self._out_of_retries(suspects, _allowed_retries(fault, tokens, others)))

    def died(self, suspected: list[Sequence], known: bool = False) -> Verdict:
        """Handle the failure of a launched step or of the whole shard, with these rows on the device: all of them are requeued.
        With `known`, the row at fault is known and is none of these."""
        if known:
            return Verdict(suspected)
        suspects = [item for item in suspected if not item.proven] or suspected
        if len(suspects) > 1:
            self._limit = max(1, len(suspects) // 2)
            return Verdict(suspected)
        return Verdict(suspected, self._out_of_retries(suspects, MAX_RETRIES))

    def _to_requeue(self, running: list[Sequence], fault: Fault) -> list[Sequence]:
        """Return the rows to requeue after a refused step without new rows: the last one to free memory, or half of them if one is
        at fault."""
        self._held = True
        last = sorted(running, key=lambda item: item.rank)
        return last[(len(last) + 1) // 2 :] if fault.scope is Scope.REQUEST else last[-1:]

    @staticmethod
    def _out_of_retries(suspects: list[Sequence], retries: int) -> list[Sequence]:
        for sequence in suspects:
            sequence.retries += 1
        return [item for item in suspects if item.retries > retries]


def _allowed_retries(fault: Fault, tokens: int, others: bool) -> int:
    """Return the number of consecutive faults allowed for a request. If other rows run, no request is to blame for running out of
    memory."""
    if fault.scope is Scope.REQUEST:
        return 1 if others else 0
    if others and not fault.request_ids:
        return _NEVER
    return MAX_RETRIES if tokens > 1 else 1
