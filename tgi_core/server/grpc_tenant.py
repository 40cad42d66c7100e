"""One router's use of a shard.

Routers number requests from 1, and a shard may outlive its router, but a request id must never be reused on a backend. So the ids
of later tenants are shifted past those used before, and the unread steps of the previous tenant are read and discarded.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tgi_core.backend import DeviceLost, Grant
from tgi_core.server.grpc_host import ShardHost
from tgi_core.wire.types import Bookkeeping, Clear, Fault, Filter, Prefill, StepVerb, Turn, TurnResult


class Superseded(Exception):
    """Another router has taken over the shard."""


class Tenant:
    """Executes a router's turns until another router takes over the shard; the next turn then fails."""

    def __init__(self, tenancy: Tenancy, base: int) -> None:
        self.last_id = base
        """Largest request id that the backend has received."""
        self.unread: list[int] = []
        self._tenancy = tenancy
        self._base = base

    def exchange(self, turn: Turn) -> TurnResult:
        """Execute one turn in the shard's thread. Raises Superseded."""
        return self._tenancy.host.run(lambda: self._exchange(turn))

    def leave(self) -> None:
        """Drop everything of this router, if it still holds the shard."""
        with suppress(DeviceLost):
            self._tenancy.host.run(lambda: self._tenancy.vacate(self))

    def _exchange(self, turn: Turn) -> TurnResult:
        if self._tenancy.tenant is not self:
            raise Superseded("another router has taken this shard over")
        result = self._tenancy.host.exchange(shifted_turn(turn, self._base) if self._base else turn)
        self._note(turn, result)
        return shifted_result(result, -self._base) if self._base else result

    def _note(self, turn: Turn, result: TurnResult) -> None:
        if isinstance(turn.launch, Prefill):
            self.last_id = max([self.last_id, *(self._base + item.id for item in turn.launch.requests)])
        if turn.launch is not None and result.refused is None:
            self.unread.append(turn.launch.step)
        if result.result is not None:
            gone = self.unread[:] if result.result.fault is not None else [result.result.step]
            self.unread = [step for step in self.unread if step not in gone]


class Tenancy:
    """Tracks which router holds the shard."""

    def __init__(self, host: ShardHost) -> None:
        self.host = host
        self.tenant: Tenant | None = None
        self._last_id = 0

    def admit(self) -> Tenant:
        """Hand the shard to a new router."""
        return self.host.run(self._admit)

    def vacate(self, tenant: Tenant) -> None:
        """Read a tenant's unread steps, and clear the shard; no effect if the tenant was superseded. Call from the shard's
        thread."""
        if self.tenant is not tenant:
            return
        for step in tenant.unread:
            self.host.exchange(Turn(read=step))
        self.host.exchange(Turn((Clear(None),)))
        self.tenant, self._last_id = None, tenant.last_id

    def _admit(self) -> Tenant:
        if self.tenant is not None:
            self.vacate(self.tenant)
        self.tenant = Tenant(self, self._last_id)
        return self.tenant


def shifted_turn(turn: Turn, by: int) -> Turn:
    """Return a turn with an offset added to all its request ids."""
    launch = None if turn.launch is None else _shifted_launch(turn.launch, by)
    return Turn(tuple(_shifted_bookkeeping(verb, by) for verb in turn.bookkeeping), launch, turn.read)


def shifted_result(result: TurnResult, by: int) -> TurnResult:
    """Return a result with an offset added to all its request ids."""
    step = result.result
    if step is not None:
        generations = tuple(replace(item, request_id=item.request_id + by) for item in step.generations)
        step = replace(step, generations=generations, fault=_shifted_fault(step.fault, by))
    return replace(result, refused=_shifted_fault(result.refused, by), result=step)


def _shifted_bookkeeping(verb: Bookkeeping, by: int) -> Bookkeeping:
    return replace(verb, keep=tuple(id + by for id in verb.keep)) if isinstance(verb, Filter) else verb


def _shifted_launch(verb: StepVerb, by: int) -> StepVerb:
    grants: tuple[Grant, ...] = tuple(replace(grant, request_id=grant.request_id + by) for grant in verb.grants)
    if isinstance(verb, Prefill):
        requests = tuple(replace(item, request=replace(item.request, id=item.id + by)) for item in verb.requests)
        return replace(verb, requests=requests, grants=grants)
    return replace(verb, grants=grants)


def _shifted_fault(fault: Fault | None, by: int) -> Fault | None:
    return None if fault is None else replace(fault, request_ids=tuple(id + by for id in fault.request_ids))
