"""The output of a request that runs alone, with which every row of a batch is compared.

Each request runs in one piece and in lock step, without prefix, chunks or mates, in a session that nothing else uses.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cached_property

from tgi_conformance.golden import Golden, adapted_golden
from tgi_conformance.masks import ALTERNATING, PHASES, phase
from tgi_conformance.sessions import Sessions, SessionSpec
from tgi_conformance.target import Target
from tgi_conformance.verdict import Violation
from tgi_core.backend import (
    EMPTY,
    BackendError,
    Capabilities,
    Capacity,
    Feature,
    Grant,
    OutputOptions,
    Request,
    Row,
    Sampling,
    Unsupported,
)
from tgi_core.backend.session import Session

Key = tuple[tuple[int, ...], int, Sampling, OutputOptions, bool, int | None, str | None]
"""Tokens, prompt length, sampling, wants, masked, the phase of its masks, adapter."""

_ROUNDS = itertools.count(2_000_000 // PHASES)
"""Ids of requests that run alone are a round of PHASES each, above those that scenarios use: both may run in one session."""


class Alone:
    """Rows by request, made as far as they are asked for, and kept."""

    def __init__(self, target: Target, sessions: Sessions | None = None, wanted: SessionSpec | None = None) -> None:
        """`wanted` are the sessions in which requests run; those of the suite's usual plan run in others without a mask source, masked
        requests and those of a model with adapters aside."""
        self.sessions = sessions or Sessions()
        self._target = target
        self._wanted = wanted or SessionSpec(target.model, target.dtype, "alone", masks=ALTERNATING)
        self._made: dict[Key, list[Row]] = {}
        self.formula_checked: set[object] = set()
        """What was compared with the published formula already: keys of requests, with their results."""
        self.passed: set[str] = set()
        """Checks that open a session of their own, and need not be made twice in a run."""
        self._others = {self._wanted: self}

    @property
    def where(self) -> str:
        """How a message names this yardstick."""
        return "alone"

    def of(self, wanted: SessionSpec) -> Alone:
        """What requests make alone in other sessions."""
        wanted = replace(wanted, purpose="alone")
        if wanted not in self._others:
            other = Alone(self._target.on(wanted.model, wanted.dtype), self.sessions, wanted)
            for known, alone in self._others.items():
                if replace(known, masks=wanted.masks) == wanted:  # their sessions are the same, and a key tells masks apart
                    other._made = alone._made
            self._others[wanted] = other
        return self._others[wanted]

    @cached_property
    def declared(self) -> tuple[Capabilities, Capacity]:
        """What a session with a mask source declares and promises. Raises Occupied."""
        target = self._target
        with self.sessions.lending(target, SessionSpec(target.model, target.dtype, masks=ALTERNATING)) as lent:
            return lent.capabilities, lent.capacity

    @cached_property
    def adapted(self) -> Capabilities | None:
        """What a session that is opened with the golden adapters declares; None where they are refused. Raises Occupied."""
        golden = Golden.load(adapted_golden(self._target.device_kind))
        try:
            with self.sessions.lending(
                self._target, SessionSpec(golden.model, self._target.dtype, adapters=golden.adapters)
            ) as lent:
                return lent.capabilities
        except Unsupported:
            return None

    @cached_property
    def breakable(self) -> bool:
        """Whether the suite can make a step fail: by a mask source that raises, or by the session's own way. Raises Occupied."""
        target = self._target
        with self.sessions.lending(target, SessionSpec(target.model, target.dtype, masks=ALTERNATING)) as lent:
            return Feature.MASKS in lent.capabilities.features or lent.breaker is not None

    def key(self, request: Request) -> Key:
        """What its results depend on."""
        shift = phase(self._wanted.masks, request.id) if request.masked else None
        return (
            *(request.tokens, request.prompt_len, request.sampling, request.want, request.masked),
            *(shift, request.adapter),
        )

    def rows(self, request: Request, count: int) -> list[Row]:
        """`count` results or more, fewer only at the end of the longest row. Raises Violation when the request fails alone, and
        Occupied while the device has no room for the session that must say."""
        key = self.key(request)
        if len(self._made.get(key, ())) < count:
            # one more than needed: sessions that count the same steps would hide a defect that depends on their number
            self._made[key] = self._run(request, count + (count > 1))
        return self._made[key]

    def close(self) -> None:
        """End the sessions; what was made stays."""
        self.sessions.close()

    def _run(self, request: Request, count: int) -> list[Row]:
        pure = not request.masked and ((self._wanted.plan is None and not self._wanted.adapters) or self.sessions.room == 1)
        wanted = replace(self._wanted, masks=None) if pure else self._wanted
        id = PHASES * next(_ROUNDS) + request.id % PHASES
        self._target.journal.calling_aside(f"running row {request.id} alone")
        try:
            with self.sessions.lending(self._target, wanted) as lent:
                rows = _generate(lent.session, lent.capacity, replace(request, id=id), count, f"row {request.id}")
                lent.session.clear(None)
        except BackendError as error:
            raise Violation(
                "alone", f"row {request.id}, which the suite ran alone to compare with, failed: {_told(error)}"
            ) from error
        finally:
            self._target.journal.returned()
        return rows


def _told(error: BackendError) -> str:
    return f"{type(error).__name__}: {error}"


def _generate(session: Session, capacity: Capacity, request: Request, count: int, name: str) -> list[Row]:
    length = len(request.tokens)
    made = replace(request, cached=0, take=length, blocks=_blocks(capacity, 0, length))
    step = session.prefill((made,), EMPTY, ())
    rows = [_only(session.rows(step).rows, name, length)]
    for end in range(length + 1, min(length + count, capacity.max_row_tokens + 1)):
        step = session.decode((step.handle,), (Grant(request.id, 1, _blocks(capacity, end - 1, end)),))
        rows.append(_only(session.rows(step).rows, name, end))
    return rows


def _blocks(capacity: Capacity, before: int, end: int) -> tuple[tuple[int, ...], ...]:
    """Blocks that cover positions below `end`, less those that cover positions below `before`, counted up from the first."""
    tables = []
    for group in capacity.groups:
        first, last = -(-before // group.block_size), -(-end // group.block_size)
        if last > group.num_blocks:
            raise Violation("promise", f"{group.num_blocks} blocks of {group.block_size} do not hold one row of {end} tokens")
        tables.append(tuple(range(first + 1, last + 1)))
    return tuple(tables)


def _only(rows: tuple[Row, ...], name: str, position: int) -> Row:
    """The row of a step that has one. `name` is what a scenario calls it."""
    where = f"{name}, which the suite ran alone to compare with, at position {position}:"
    if len(rows) != 1:
        raise Violation("rows", f"{where} its step returned {len(rows)} rows")
    fault = rows[0].fault
    if fault is not None:
        raise Violation("fault", f"{where} {fault.kind.value} fault: {fault.message}")
    if len(rows[0].tokens) != 1:
        raise Violation("tokens", f"{where} its prompt is complete, and it made {len(rows[0].tokens)} tokens in one step")
    return rows[0]


def all_wants(features: frozenset[Feature]) -> OutputOptions:
    """All that a session with these features can return for a row."""
    return OutputOptions(Feature.LOGPROBS in features, 4 if Feature.TOP_N in features else 0, Feature.PROMPT_LOGPROBS in features)
