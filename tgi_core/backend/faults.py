"""Fault injection: the innermost wrapper around a session, which fails steps and rows by a schedule. Off by default.

The injector follows the contract for both kinds of errors. An error from a verb is raised before the session sees the call. An
error from `rows` is raised after the session has computed the step; it also clears every batch derived from the step, like a device
that loses them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from tgi_core.backend.errors import (
    CapacityExceeded,
    CompileFailed,
    DeviceBusy,
    DeviceLost,
    InvalidRequest,
    OutOfMemory,
    UnknownBatch,
)
from tgi_core.backend.fault_schedule import ROW_KINDS, SLOW, STEP_KINDS, Rule, When
from tgi_core.backend.session import Session
from tgi_core.backend.spec import hookimpl
from tgi_core.backend.types import EMPTY, Handle, Row, RowFault, Rows, Step

_log = logging.getLogger(__name__)

_Wrapped = Generator[None, Any, Any]
_ERRORS: dict[str, type[Exception]] = {
    "oom": OutOfMemory,
    "capacity": CapacityExceeded,
    "compile": CompileFailed,
    "invalid": InvalidRequest,
    "busy": DeviceBusy,
    "lost": DeviceLost,
    "crash": RuntimeError,
}


def inject(session: Session, rules: tuple[Rule, ...]) -> FaultInjector:
    """Start to inject faults into a session, and log a warning."""
    injector = FaultInjector(session, rules)
    session.wrap(injector)
    _log.warning("FAULTS ARE INJECTED into backend %s, by %d rules: not for production", session.name, len(rules))
    return injector


class FaultInjector:
    """Wraps the verbs of one session. `rules` may change at any time; `injected` counts faults by kind, `steps` step calls."""

    def __init__(self, session: Session, rules: tuple[Rule, ...]) -> None:
        self._session, self.rules = session, list(rules)
        self.injected: dict[str, int] = {}
        self.steps = 0
        self._numbers: dict[int, int] = {}
        """Unread step's id to its step number."""
        self._origins: dict[Handle, set[int]] = {}
        """Live handle to the unread steps it is derived from."""
        self._made_of: dict[int, set[int]] = {}
        """Unread step's id to the unread steps it is derived from, itself included."""
        self._dead: dict[int, Exception] = {}
        """Step id to the error that reading the step raises."""

    @hookimpl(wrapper=True, trylast=True)
    def prefill(self, cached: Handle) -> _Wrapped:
        """May raise, or launch a step that fails on reading."""
        return (yield from self._launch((cached,) if cached != EMPTY else ()))

    @hookimpl(wrapper=True, trylast=True)
    def decode(self, batches: tuple[Handle, ...]) -> _Wrapped:
        """May raise, or launch a step that fails on reading."""
        return (yield from self._launch(batches))

    @hookimpl(wrapper=True, trylast=True)
    def rows(self, step: Step) -> _Wrapped:
        """May raise, be slow, or return failed rows."""
        number = self._numbers.pop(step.id, 0)
        for rule in self._due(number, SLOW):
            self._note(rule, number)
            time.sleep(rule.ms / 1000)
        try:
            rows = yield
            error = self._dead.pop(step.id, None)
            if error is not None:
                self._kill(step.id, error)
                raise error
        finally:
            self._forget(step.id)
        return None if self._fails(number, "none", When.ROWS) else self._spoil(rows, number)

    @hookimpl(wrapper=True, trylast=True)
    def filter(self, batch: Handle) -> _Wrapped:
        """Injects no faults. The remaining batch still derives from the same steps."""
        handle = yield
        origins = self._origins.pop(batch, set())
        if handle != EMPTY:
            self._origins[handle] = origins
        return handle

    @hookimpl(wrapper=True, trylast=True)
    def clear(self, batch: Handle | None) -> _Wrapped:
        """Injects no faults."""
        cleared = yield
        for handle in [batch] if batch is not None else list(self._origins):
            self._origins.pop(handle, None)
        return cleared

    def _launch(self, batches: tuple[Handle, ...]) -> _Wrapped:
        self.steps += 1
        number = self.steps
        error = self._error(number, When.VERB)
        if error is not None:
            raise error
        step: Step = yield
        origins = {step.id}.union(*(self._origins.pop(handle, set()) for handle in batches))
        self._numbers[step.id], self._made_of[step.id] = number, origins
        if step.handle != EMPTY:
            self._origins[step.handle] = set(origins)
        late, at_reading = self._error(number, When.LATE), self._error(number, When.ROWS)
        if error := late or at_reading:
            self._dead[step.id] = error
        if late is not None:
            self._kill(step.id, late)
        return None if self._fails(number, "none", When.VERB) else step

    def _error(self, number: int, when: When) -> Exception | None:
        for kind, error in _ERRORS.items():
            if self._fails(number, kind, when):
                return error(f"injected: {STEP_KINDS[kind]}")
        return None

    def _fails(self, number: int, kind: str, when: When) -> bool:
        rule = next((rule for rule in self._due(number, kind) if rule.when is when), None)
        if rule is not None:
            self._note(rule, number)
        return rule is not None

    def _due(self, number: int, kind: str) -> list[Rule]:
        return [rule for rule in self.rules if rule.kind == kind and rule.hits(number)]

    def _note(self, rule: Rule, number: int) -> None:
        self.injected[rule.kind] = self.injected.get(rule.kind, 0) + 1
        _log.warning("injected fault: %s at step %d", rule.kind, number)

    def _kill(self, step: int, error: Exception) -> None:
        """End the batches and steps derived from a step."""
        for handle in [handle for handle, origins in self._origins.items() if step in origins]:
            try:
                self._session.clear(handle)
            except UnknownBatch:  # the session has already ended it
                self._origins.pop(handle, None)
        for other, origins in self._made_of.items():
            if step in origins and other != step:
                self._dead.setdefault(other, error)

    def _forget(self, step: int) -> None:
        """Forget a step once it is read: it can no longer end anything. Older steps will not be read either."""
        for ids in (self._numbers, self._made_of, self._dead):
            for id in [id for id in ids if id <= step]:
                del ids[id]
        for origins in (*self._origins.values(), *self._made_of.values()):
            origins.discard(step)

    def _spoil(self, rows: Rows, number: int) -> Rows:
        made = list(rows.rows)
        for kind in ROW_KINDS:
            for rule in self._due(number, kind):
                yielding = [place for place, row in enumerate(made) if row.tokens and row.fault is None]
                if yielding:
                    self._note(rule, number)
                    place = yielding[rule.victim(number, len(yielding))]
                    made[place] = _spoiled(made[place], rule, number)
        return replace(rows, rows=tuple(made))


def _spoiled(row: Row, rule: Rule, number: int) -> Row:
    kind = ROW_KINDS[rule.kind]
    if kind is None:
        return replace(row, tokens=(-1 if number % 2 else 1 << 31,))
    return Row(row.request_id, fault=RowFault(kind, f"injected: {kind.value}"))
