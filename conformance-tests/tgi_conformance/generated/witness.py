"""A session that wraps another one, records what runs and changes nothing: the base of operators on the contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tgi_conformance.generated.conditions import Condition
from tgi_conformance.generated.moment import Life, Moment, Past, Shape
from tgi_core.backend import (
    EMPTY,
    BackendError,
    Capabilities,
    Capacity,
    Cleared,
    Closed,
    Grant,
    Handle,
    Progress,
    Request,
    Rows,
    Stats,
    Step,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.session import Session


@dataclass(slots=True)
class Trigger:
    """Decides when a mutant's session is wrong, and counts how often it was."""

    condition: Condition
    past: Past
    fired: int = 0

    def fires(self, moment: Moment | None, position: int | None = None) -> bool:
        """Return whether to be wrong now; `position` defaults to the last one of the row's part."""
        if moment is None or not self.condition.holds(moment, moment.last if position is None else position):
            return False
        self.fired += 1
        return True


class Witness:
    """Wraps any backend's session, called through the contract, and records live batches, and moments by step and request."""

    choices: ClassVar[tuple[Any, ...]] = (None,)
    """A mutant of this kind draws one of these."""

    def __init__(self, inner: Session, trigger: Trigger, choice: Any = None) -> None:
        self.inner, self.trigger, self.choice = inner, trigger, choice
        self.lives: dict[Handle, list[Life]] = {}
        self.moments: dict[int, dict[int, Moment]] = {}
        self.capacity: Capacity | None = None
        self.unread: set[int] = set()
        self._steps = 0

    def fires(self, moment: Moment | None) -> bool:
        """Return whether to be wrong for this row of a step."""
        return self.trigger.fires(moment)

    def fires_for(self, lives: Iterable[Life]) -> bool:
        """Return whether to be wrong in a verb that names these rows, judging by their latest step."""
        return any(self.trigger.fires(life.latest) for life in lives)

    def named(self, handles: Iterable[Handle]) -> list[Life]:
        """Return the live rows of batches."""
        return [life for handle in handles for life in self.lives.get(handle, ())]

    @hookimpl
    def capabilities(self) -> Capabilities:
        """Return the inner session's capabilities."""
        return self.inner.capabilities()

    @hookimpl
    def warmup(self, plan: WarmupPlan, progress: Progress) -> Capacity:
        """Warm up the inner session."""
        self.capacity = self.inner.warmup(plan, progress)
        return self.capacity

    @hookimpl
    def prefill(self, batch: tuple[Request, ...], cached: Handle, grants: tuple[Grant, ...]) -> Step:
        """Pass the call on, and record it if it succeeds."""
        try:
            step = self.inner.prefill(batch, cached, grants)
        except BackendError:
            self.trigger.past.note("refusal")
            raise
        taken = () if cached == EMPTY else (cached,)
        fresh = [Life(request, request.cached, list(request.blocks[0] if request.blocks else ())) for request in batch]
        self._launched(step, taken, fresh, grants)
        return step

    @hookimpl
    def decode(self, batches: tuple[Handle, ...], grants: tuple[Grant, ...]) -> Step:
        """Pass the call on, and record it if it succeeds."""
        try:
            step = self.inner.decode(batches, grants)
        except BackendError:
            self.trigger.past.note("refusal")
            raise
        self._launched(step, batches, [], grants)
        return step

    @hookimpl
    def rows(self, step: Step) -> Rows:
        """Pass the call on; a failure ends the batches of the step's rows."""
        self.unread.discard(step.id)
        try:
            found = self.inner.rows(step)
        except BackendError:
            doomed = self.moments.pop(step.id, {})
            if doomed:
                self.trigger.past.note("failed step")
            self.lives = {
                handle: lives for handle, lives in self.lives.items() if not any(life.request.id in doomed for life in lives)
            }
            raise
        self.moments = {id: moments for id, moments in self.moments.items() if id >= step.id}
        return found

    @hookimpl
    def filter(self, batch: Handle, keep: tuple[int, ...]) -> Handle:
        """Pass the call on, and record which rows left."""
        kept = self.inner.filter(batch, keep)
        lives = self.lives.pop(batch, [])
        if kept != EMPTY:
            self.lives[kept] = [life for life in lives if life.request.id in keep]
        self.trigger.past.note("filter")
        if gone := sum(life.request.id not in keep for life in lives):
            self.trigger.past.note("removal", gone)
        return kept

    @hookimpl
    def clear(self, batch: Handle | None) -> Cleared:
        """Pass the call on, and record which rows left."""
        cleared = self.inner.clear(batch)
        for handle in list(self.lives) if batch is None else [batch]:
            self.trigger.past.note("removal", len(self.lives.pop(handle, ())))
        self.trigger.past.note("clear of everything" if batch is None else "clear")
        return cleared

    @hookimpl
    def stats(self) -> Stats:
        """Return the inner session's stats."""
        return self.inner.stats()

    @hookimpl
    def close(self) -> Closed:
        """Close the inner session."""
        self.lives.clear()
        return self.inner.close()

    # records

    def _launched(self, step: Step, taken: Sequence[Handle], fresh: list[Life], grants: Sequence[Grant]) -> None:
        going = [life for handle in taken for life in self.lives.pop(handle, ())]
        takes = self._takes(going, fresh, grants)
        running = [life for life, take in zip(going + fresh, takes, strict=True) if take]
        shape = self._shape(running, sum(takes), merged=len(taken) > 1, joined=bool(taken and fresh))
        moments, place = {}, 0
        for life, take in zip(going + fresh, takes, strict=True):
            if take:
                moments[life.request.id] = self._moment(life, take, place, shape)
                place += 1
            life.idled = not take
        self.moments[step.id] = moments
        self.unread.add(step.id)
        self.lives[step.handle] = going + fresh
        self._note(shape, fresh, going, takes)

    @staticmethod
    def _takes(going: list[Life], fresh: list[Life], grants: Sequence[Grant]) -> list[int]:
        by_id = {grant.request_id: grant for grant in grants}
        takes = []
        for life in going:
            grant = by_id.get(life.request.id)
            takes.append(grant.take if grant else 0 if life.owed else 1)
            if grant and grant.blocks:
                life.blocks += grant.blocks[0]
        return takes + [life.request.take for life in fresh]

    def _shape(self, running: list[Life], tokens: int, *, merged: bool, joined: bool) -> Shape:
        self._steps += 1
        past, capacity = self.trigger.past, self.capacity
        return Shape(
            self._steps,
            tuple(life.request for life in running),
            tokens,
            merged,
            joined,
            bool(self.unread),
            dict(past.counts),
            past.newest,
            capacity.groups[0].block_size if capacity else 1,
            capacity.max_row_tokens if capacity else 0,
        )

    @staticmethod
    def _moment(life: Life, take: int, place: int, shape: Shape) -> Moment:
        table = tuple(life.blocks)
        moment = Moment(life.request, life.done, take, place, life.chunks, life.idled, table, shape)
        life.chunks += life.owed > 0
        life.done += take
        life.latest = moment
        return moment

    def _note(self, shape: Shape, fresh: list[Life], going: list[Life], takes: list[int]) -> None:
        past = self.trigger.past
        events = {
            "merge": shape.merged,
            "join": shape.joined,
            "launch ahead": shape.ahead,
            "preemption": any(life.request.prompt_len < len(life.request.tokens) for life in fresh),
            "pause": any(not take and not life.owed for life, take in zip(going, takes, strict=False)),
        }
        for name, happened in events.items():
            if happened:
                past.note(name)
