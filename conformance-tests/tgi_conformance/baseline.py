"""The output of a request that runs alone, with which every row of a batch is compared. Each request runs in one piece and in lock step,
without a prefix, chunks or batch mates, in a session that nothing else uses.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cached_property

from tgi_conformance.golden import Golden, adapted_golden, image_names
from tgi_conformance.masks import ALTERNATING, PHASES, phase
from tgi_conformance.oracle import left_behind
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
    InvalidModel,
    OutputOptions,
    Request,
    Row,
    Sampling,
    Unsupported,
)
from tgi_core.backend.session import Session

Key = tuple[tuple[int, ...], int, Sampling, OutputOptions, bool, int | None, str | None, tuple[bytes, ...]]
"""Tokens, prompt length, sampling, wants, masked, the phase of its masks, adapter, media."""

_ROUNDS = itertools.count(2_000_000 // PHASES)
"""Ids of requests that run alone: PHASES ids per round, above those that scenarios use, since both may run in one session."""


class Alone:
    """Rows by request, generated as far as needed, and kept."""

    def __init__(self, target: Target, sessions: Sessions | None = None, wanted: SessionSpec | None = None) -> None:
        """`wanted` describes the sessions in which requests run. With the suite's usual plan, requests that are not masked run in
        sessions without a mask source, unless the model has adapters."""
        self.sessions = sessions or Sessions()
        self._target = target
        self._wanted = wanted or SessionSpec(target.model, target.dtype, "alone", masks=ALTERNATING)
        self._made: dict[Key, list[Row]] = {}
        self.formula_checked: set[object] = set()
        """What has been compared with the published formula: keys of requests, with their results."""
        self.passed: set[str] = set()
        """Checks that open their own session, and need to be made only once per run."""
        self._others = {self._wanted: self}

    @property
    def where(self) -> str:
        """The name of this yardstick in messages."""
        return "alone"

    def of(self, wanted: SessionSpec) -> Alone:
        """The outputs of requests that run alone in other sessions."""
        wanted = replace(wanted, purpose="alone")
        if wanted not in self._others:
            other = Alone(self._target.on(wanted.model, wanted.dtype), self.sessions, wanted)
            for known, alone in self._others.items():
                if replace(known, masks=wanted.masks) == wanted:  # the sessions are the same, and keys distinguish masks
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
        """What a session opened with the golden adapters declares; None if they are refused. Raises Occupied."""
        golden = Golden.load(adapted_golden(self._target.device_kind))
        try:
            with self.sessions.lending(
                self._target, SessionSpec(golden.model, self._target.dtype, adapters=golden.adapters)
            ) as lent:
                return lent.capabilities
        except Unsupported:
            return None

    @cached_property
    def seeing(self) -> tuple[str, ...]:
        """The golden checkpoints whose sessions declare that they take images. Raises Occupied."""
        found = []
        for name in image_names(self._target.device_kind):
            try:
                with self.sessions.lending(self._target, SessionSpec(Golden.load(name).model, self._target.dtype)) as lent:
                    found += [name] if Feature.MEDIA in lent.capabilities.features else []
            except (InvalidModel, Unsupported):
                continue
        return tuple(found)

    @cached_property
    def breakable(self) -> bool:
        """Whether the suite can make a step fail: by a mask source that raises, or by the session's own way. Raises Occupied."""
        target = self._target
        with self.sessions.lending(target, SessionSpec(target.model, target.dtype, masks=ALTERNATING)) as lent:
            return Feature.MASKS in lent.capabilities.features or lent.breaker is not None

    def key(self, request: Request) -> Key:
        """Everything that a request's results depend on."""
        shift = phase(self._wanted.masks, request.id) if request.masked else None
        return (
            *(request.tokens, request.prompt_len, request.sampling, request.want, request.masked),
            *(shift, request.adapter, request.media),
        )

    def rows(self, request: Request, count: int) -> list[Row]:
        """`count` results or more, fewer only at the end of the longest row. Raises Violation if the request fails alone, and Occupied
        while the device has no room for the session to run it."""
        key = self.key(request)
        if len(self._made.get(key, ())) < count:
            # one more than needed: equal step counts in both sessions would hide a defect that depends on the count
            self._made[key] = self._run(request, count + (count > 1))
        return self._made[key]

    def close(self) -> None:
        """End the sessions; results are kept."""
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
    """Blocks that cover positions below `end`, without those that cover positions below `before`, numbered from the first; those that
    have left a window are used again."""
    tables = []
    for group in capacity.groups:
        first, last = -(-before // group.block_size), -(-end // group.block_size)
        needed = last - left_behind(group, before)
        if needed > group.num_blocks:
            raise Violation("promise", f"{group.num_blocks} blocks of {group.block_size} do not hold one row of {end} tokens")
        tables.append(tuple(1 + place % group.num_blocks for place in range(first, last)))
    return tuple(tables)


def _only(rows: tuple[Row, ...], name: str, position: int) -> Row:
    """The only row of a step. `name` is the scenario's name for it."""
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
    """Everything that a session with these features can return for a row."""
    return OutputOptions(Feature.LOGPROBS in features, 4 if Feature.TOP_N in features else 0, Feature.PROMPT_LOGPROBS in features)
