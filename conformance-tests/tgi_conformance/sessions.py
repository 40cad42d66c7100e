"""The sessions that a run keeps open.

Opening a session may take a device minutes, and some devices allow only one at a time. So sessions are reused: a scenario's session
is cleared for the next one, and closed if there is no room for another that is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tgi_conformance.masks import DOOMED, Masks
from tgi_conformance.ranks import SecondRank, open_group
from tgi_conformance.target import Target, close
from tgi_core.backend import Adapter, BackendError, Capabilities, Capacity, DeviceBusy, OutOfMemory, WarmupPlan
from tgi_core.backend.session import Session

_KEPT = 48
"""Most idle sessions to keep open: one per golden checkpoint, and some more."""

_T = TypeVar("_T")


Breaker = Callable[[BackendError], None]
"""The type of `conformance_fail`, which a session may define for the suite in addition to the hooks.

The step launched next fails on the device with the given error, which its rows raise. It allows late failures to be tested where
masks are not supported.
"""


class Occupied(Exception):
    """The device has no room for another session besides those in use."""


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What distinguishes sessions. `purpose` separates the yardstick's from the scenarios' if the device has room for both.

    A session with a mask source serves every kind of masks: the source is the suite's own, and acts as it is told.
    """

    model: Path
    dtype: str
    purpose: str = ""
    plan: WarmupPlan | None = None
    masks: str | None = None
    adapters: tuple[Adapter, ...] = ()
    ranks: int = 1
    speculating: bool = False
    cache_dtype: str = "auto"


@dataclass(slots=True, eq=False)
class LentSession:
    """An open, warmed session. The suite never reuses a request id in it, nor may the session reuse ids of handles and steps."""

    wanted: SessionSpec
    session: Session
    declared: Capabilities
    """What it declared before warmup."""
    capabilities: Capabilities
    capacity: Capacity
    masks: Masks | None
    next_id: int = 1
    next_doomed: int = DOOMED
    uses: int = 0
    handle_ids: set[int] = field(default_factory=set)
    step_ids: set[int] = field(default_factory=set)

    @property
    def breaker(self) -> Breaker | None:
        """The session's own way to make the next step fail, or None."""
        found: Breaker | None = getattr(self.session.implementation, "conformance_fail", None)
        return found


class Sessions:
    """Opens sessions, hands them out and keeps them. `room` is how many the device allows at once, or None until it refuses one."""

    def __init__(self) -> None:
        self.room: int | None = None
        self._idle: list[LentSession] = []
        self._busy: list[LentSession] = []
        self._second = SecondRank()

    @property
    def newest_dtype(self) -> str | None:
        """The dtype of the idle session used last, or None if no session is idle."""
        return self._idle[-1].wanted.dtype if self._idle else None

    def lend(self, target: Target, wanted: SessionSpec, *, fresh: bool = False) -> LentSession:
        """Return an idle session or a new one. Raises Occupied if one in use would have to be closed, or the backend's
        BackendError."""
        lent = (None if fresh else self._kept(wanted)) or self.admit(lambda: _opened(target, wanted, self._second))
        if lent.masks is not None and wanted.masks is not None:
            lent.masks.act_as(wanted.masks)
        lent.uses += 1
        self._busy.append(lent)
        return lent

    def give_back(self, lent: LentSession) -> None:
        """Take back a session without live rows and unread steps."""
        self._busy.remove(lent)
        self._idle.append(lent)
        while len(self._idle) > _KEPT:
            self._close_oldest()

    def drop(self, lent: LentSession) -> None:
        """Close a session that will not be used again."""
        if lent in self._busy:
            self._busy.remove(lent)
        close(lent.session)

    @contextlib.contextmanager
    def lending(self, target: Target, wanted: SessionSpec) -> Iterator[LentSession]:
        """Use a session within the context; drop it if an error occurs."""
        lent = self.lend(target, wanted)
        try:
            yield lent
        except BaseException:
            self.drop(lent)
            raise
        self.give_back(lent)

    def admit(self, open: Callable[[], _T]) -> _T:
        """Open something on the device, closing idle sessions as needed, least recently used first. Raises as `lend`."""
        self._make_way()
        while True:
            others = len(self._idle) + len(self._busy)
            try:
                return open()
            except (DeviceBusy, OutOfMemory) as error:
                if not others:
                    raise
                self.room = others
                if not self._idle:
                    raise Occupied(f"a session is in use, and opening another raised {type(error).__name__}: {error}") from error
                self._close_oldest()

    def close(self) -> None:
        """Close all sessions."""
        for lent in (*self._idle, *self._busy):
            close(lent.session)
        self._idle.clear()
        self._busy.clear()
        self._second.close()

    def _kept(self, wanted: SessionSpec) -> LentSession | None:
        for lent in reversed(self._idle):
            if _serves(lent.wanted, wanted, only=self.room == 1):
                self._idle.remove(lent)
                return lent
        return None

    def _make_way(self) -> None:
        while self.room is not None and self._idle and len(self._idle) + len(self._busy) >= self.room:
            self._close_oldest()
        if self.room is not None and len(self._busy) >= self.room:
            raise Occupied(f"{len(self._busy)} sessions are in use, and the device allows only {self.room}")

    def _close_oldest(self) -> None:
        close(self._idle.pop(0).session)


def _serves(there: SessionSpec, wanted: SessionSpec, *, only: bool) -> bool:
    """Return whether a session can be used as the one that is wanted. The `only` session of a device serves both purposes, and its mask
    source does not affect unmasked requests that run alone. What runs alone may do so in a session for longer rows."""
    masked = there.masks is not None
    if masked != (wanted.masks is not None) and not (only and masked and wanted.purpose):
        return False
    if wanted.purpose and wanted.plan is None and not only:
        there = replace(there, plan=None)
    return replace(there, purpose=wanted.purpose if only else there.purpose, masks=wanted.masks) == wanted


def _opened(target: Target, wanted: SessionSpec, second: SecondRank) -> LentSession:
    target = target.on(wanted.model, wanted.dtype)
    masks = Masks(target.vocab_size, wanted.masks) if wanted.masks else None
    grouped = wanted.ranks > 1
    if grouped:
        session = target.opened(lambda: open_group(target, second))
    else:
        session = target.session(masks, wanted.adapters, speculating=wanted.speculating, cache_dtype=wanted.cache_dtype)
    try:
        declared = session.capabilities()
        capacity = target.warm(session, wanted.plan)
        return LentSession(wanted, session, declared, session.capabilities(), capacity, masks)
    except BaseException:
        close(session)
        raise
