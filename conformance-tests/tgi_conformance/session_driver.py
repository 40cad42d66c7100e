"""One session, watched by the oracle: every call is predicted, made, judged and recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from tgi_conformance.baseline import Alone
from tgi_conformance.calls import Call, Clear, Decode, Encode, Filter, Prefill, Read, Ref, Trace, references, sentence, verb
from tgi_conformance.golden import Golden
from tgi_conformance.image_rules import ImageRules
from tgi_conformance.judge import RowJudge, Yardstick
from tgi_conformance.masks import AFTER, BREAKING, DOOMED, LOSING, Masks
from tgi_conformance.oracle import Expected, Oracle
from tgi_conformance.origin import raised_at
from tgi_conformance.rules import broken_proposals
from tgi_conformance.session_setup import Setup
from tgi_conformance.sessions import Breaker, LentSession, Occupied, SessionSpec
from tgi_conformance.situations import reached
from tgi_conformance.target import Target
from tgi_conformance.verdict import NotReached, SuiteFault, Violation
from tgi_conformance.vocabulary import with_vocabulary
from tgi_core.backend import (
    EMPTY,
    Adapter,
    BackendBug,
    BackendError,
    Capacity,
    CapacityExceeded,
    Cleared,
    DeviceLost,
    Feature,
    Handle,
    InvalidRequest,
    OutOfMemory,
    Row,
    Rows,
    Step,
)
from tgi_core.backend.session import Session

_STRANGER = 987_654_321


@dataclass(slots=True)
class SessionDriver:
    """A session, its oracle, and the calls so far. `situations` counts the situations reached."""

    setup: Setup
    oracle: Oracle
    judge: RowJudge
    situations: Counter[str]
    alone: Alone
    private: bool
    """Whether its session is closed afterwards rather than reused."""
    _target: Target
    _wanted: SessionSpec
    _lent: LentSession | None
    trace: Trace = field(default_factory=list)
    handles: dict[Ref, Handle] = field(default_factory=dict)
    steps: dict[Ref, Step] = field(default_factory=dict)
    results: dict[int, list[Row]] = field(default_factory=dict)
    failed: Violation | None = None
    unread: set[Ref] = field(default_factory=set)
    """Steps that the core never reads, because a step that they were derived from has failed."""
    used: bool = False
    """Whether its session was used before."""

    @classmethod
    def open(
        cls, target: Target, setup: Setup, alone: Alone, situations: Counter[str] | None = None, *, fresh: bool = True
    ) -> SessionDriver:
        """A warmed session without live rows; a `fresh` one has never been used, and is private. Raises what the backend raises."""
        golden = None if setup.golden is None else Golden.load(setup.golden)
        adapters: tuple[Adapter, ...] = golden.adapters if golden is not None and setup.adapters else ()
        if golden is not None or setup.dtype is not None:
            target = target.on(target.model if golden is None else golden.model, setup.dtype)
        if setup.vocab_size is not None:
            target = target.on(with_vocabulary(target.model, setup.vocab_size))
        asked = setup.ranks, setup.speculating, setup.cache_dtype
        wanted = SessionSpec(target.model, target.dtype, "", setup.plan, setup.masks, adapters, *asked)
        target.journal.restart()
        target.journal.calling_aside("opening a session")
        lent = alone.sessions.lend(target, wanted, fresh=fresh)
        target.journal.returned()
        alone_in = alone.of(setup.yardstick(wanted, lent.capabilities.block_sizes, one_session=alone.sessions.room == 1))
        yardstick: Yardstick = alone_in if golden is None or setup.alone else golden
        judge = RowJudge(yardstick, target.dtype, setup.masks, bits=setup.bits)
        counts = Counter() if situations is None else situations
        images = None if golden is None else ImageRules.of(golden, lent.capabilities)
        oracle = Oracle(lent.capabilities, lent.capacity, images)
        return cls(setup, oracle, judge, counts, alone, fresh, target, wanted, lent, used=lent.uses > 1)

    @property
    def lent(self) -> LentSession:
        """Its session, with the ids issued so far."""
        if self._lent is None:
            raise SuiteFault("a scenario goes on with a session that it has left")
        return self._lent

    @property
    def session(self) -> Session:
        """The session that verbs go to."""
        return self.lent.session

    @property
    def masks(self) -> Masks | None:
        """The mask source that it was opened with."""
        return self.lent.masks

    @property
    def capacity(self) -> Capacity:
        """The limits that it promised."""
        return self.oracle.capacity

    def close(self) -> None:
        """Call close; the session is not used afterwards."""
        self.private = True
        self.session.close()

    def leave(self) -> None:
        """Leave the session. If nothing went wrong in it, it is cleared for the next scenario. Rows that have not been compared are
        compared now. Raises Violation."""
        lent, self._lent = self._lent, None
        if lent is None:
            return
        lost = self.setup.masks == LOSING
        if self.private or self.failed or lost or not self._emptied(lent.session):
            self.alone.sessions.drop(lent)
        else:
            self.alone.sessions.give_back(lent)
        if not self.failed:
            self.settle()

    def settle(self) -> None:
        """Compare the rows that have not been compared. Raises Violation, and Occupied while the device has no room for the yardstick's
        session."""
        try:
            self.judge.settle()
        except Violation as violation:
            self.failed = self._explained(violation)
            raise self.failed from violation

    def drop(self) -> None:
        """End the session, whatever state it is in."""
        if self._lent is not None:
            self.alone.sessions.drop(self._lent)
            self._lent = None

    def step_aside(self) -> None:
        """Lend the session to others for a while; it must have no live rows."""
        if self.oracle.rows or self.oracle.steps:
            raise SuiteFault(
                "a scenario asks what a request makes alone while rows of its own live, and the device has one session"
            )
        self.alone.sessions.give_back(self.lent)
        self._lent = None

    def come_back(self) -> None:
        """Return to the same session, or one like it."""
        self._lent = self.alone.sessions.lend(self._target, self._wanted)

    def _emptied(self, session: Session) -> bool:
        """Whether it could be cleared; steps in flight are read first, since steps are read in order."""
        self._target.journal.calling_aside("rows of a step that the scenario left unread, or clear,")
        try:
            for ref in sorted(self.oracle.steps):
                session.rows(self.steps[ref])
            session.clear(None)
        except BackendError:
            return False
        finally:
            self._target.journal.returned()
        return True

    def call(self, call: Call, number: Ref | None = None, *, allowed: bool = False) -> Ref:
        """Make a call that the contract allows or refuses, judge the result, and return the call's number. Raises Violation, and
        SuiteFault for a call that should be `allowed` but is not."""
        ref = number or (self.trace[-1][0] + 1 if self.trace else 1)
        expected = self.oracle.expect(call)
        if allowed and expected.errors:
            _not_to_be_made(ref, call, expected)
        if not expected.errors and (why := self.oracle.illegal(call)):
            raise SuiteFault(f"{sentence(ref, call)}: {why}")
        self.trace.append((ref, call))
        try:
            self._judged(ref, call, expected)
            self.judge.settle_left()
        except Violation as violation:
            self.failed = self._explained(violation)
            with suppress(Occupied):
                self.settle()  # an earlier failure is the cause
            raise self.failed from violation
        return ref

    def _explained(self, violation: Violation) -> Violation:
        """Add which steps the core will not read after a failed one: a backend might wait for that."""
        if not self.unread:
            return violation
        steps = ", ".join(f"#{ref}" for ref in sorted(self.unread))
        return Violation(
            violation.law, f"{violation} (step {steps} was derived from the step that failed, and will never be read)"
        )

    def tokens(self, id: int) -> list[int]:
        """The tokens that a request has made here so far."""
        return [token for row in self.results.get(id, []) for token in row.tokens]

    def raises_anything(self, verb: Callable[[Session], object]) -> None:
        """Call a verb on a closed session. Raises Violation unless the verb raises an error of the contract other than BackendBug."""
        try:
            result = verb(self.session)
        except BackendError as error:
            if isinstance(error, BackendBug):
                raise Violation("refusal", f"after close: {error}") from error
            return
        raise Violation("refusal", f"after close a verb returned {result}")

    def possible(self, call: Call) -> bool:
        """Whether a call of a shortened trace still makes sense."""
        known = self.handles.keys() | self.steps.keys()
        if not known.issuperset(references(call)):
            return False
        return bool(self.oracle.expect(call).errors) or not self.oracle.illegal(call)

    def _judged(self, ref: Ref, call: Call, expected: Expected) -> None:
        if isinstance(call, Prefill | Decode) and (breaker := self._breaker) is not None and self._breaks(expected):
            breaker(self._late_error("the suite makes this step fail"))
        if isinstance(call, Prefill | Decode) and not expected.errors:
            self._foretell_masks(expected)
        try:
            result = self._noted(ref, call)
        except BackendError as error:
            self._refused(sentence(ref, call), call, error, expected)
            return
        if expected.errors:
            kinds = " or ".join(sorted({kind.__name__ for kind, _ in expected.errors}))
            raise Violation("refusal", f"{sentence(ref, call)} succeeded, and must raise {kinds}: {expected.errors[0][1]}")
        if isinstance(call, Read) and self._breaks(expected):
            raise Violation("late", f"{sentence(ref, call)} succeeded, although the step had failed")
        self._take(ref, call, expected, result)
        self._count(call, expected)
        made = {row.request_id: len(row.tokens) for row in result.rows} if isinstance(result, Rows) else {}
        self.oracle.accept(ref, call, expected, made)

    def _foretell_masks(self, expected: Expected) -> None:
        """Tell the mask source which rows it may be asked for: not those whose prompt remains incomplete in the step launched now."""
        if self.masks is not None:
            for part in expected.parts:
                self.masks.complete(part.row.request.id, part.makes is not None)

    def _noted(self, ref: Ref, call: Call) -> object:
        journal = self._target.journal
        if journal:
            journal.calling(sentence(ref, call))
        try:
            return self._issue(call)
        finally:
            journal.returned()

    def _issue(self, call: Call) -> object:
        match call:
            case Prefill():
                return self.session.prefill(call.batch, self._handle(call.cached), call.grants)
            case Decode():
                return self.session.decode(tuple(map(self._handle, call.batches)), call.grants)
            case Read():
                return self.session.rows(self.steps.get(call.step, Step(_STRANGER, Handle(_STRANGER))))
            case Filter():
                return self.session.filter(self._handle(call.batch), call.keep)
            case Clear():
                return self.session.clear(None if call.batch is None else self._handle(call.batch))
            case Encode():
                return self.session.encode(call.item)

    def _handle(self, ref: Ref) -> Handle:
        return EMPTY if ref == 0 else self.handles.get(ref, Handle(_STRANGER))

    def _refused(self, text: str, call: Call, error: BackendError, expected: Expected) -> None:
        if isinstance(call, Read) and not expected.errors and self._breaks(expected):
            kind = self._late_error
            if type(error) is not kind:
                raise Violation("late", f"{text} raised {type(error).__name__}, the step failed with {kind.__name__}") from error
            before = self.oracle.steps.keys() - {call.step}
            self.oracle.kill(call.step)
            self.unread |= before - self.oracle.steps.keys()
            self.situations["a step failed late"] += 1
            return
        name = type(error).__name__
        if not expected.errors:
            place = raised_at(error, self._target)
            where = f" (raised at {place})" if place else ""
            raise Violation("refusal", f"{text} raised {name}: {error}{where}; this call is valid and must succeed") from error
        if type(error) not in {kind for kind, _ in expected.errors}:
            kinds = " or ".join(sorted({kind.__name__ for kind, _ in expected.errors}))
            raise Violation(
                "refusal", f"{text} raised {name}: {error}; it must raise {kinds}: {expected.errors[0][1]}"
            ) from error
        if expected.blames and isinstance(error, InvalidRequest) and not expected.blames.intersection(error.request_ids):
            named = f"names {list(error.request_ids)}" if error.request_ids else "names none"
            why = f"the requests that it is about are {sorted(expected.blames)}, and it {named}: others would fail with them"
            raise Violation("refusal", f"{text} raised {name}: {error}; {why}") from error
        if "\n" in str(error) or not str(error):
            raise Violation("message", f"{text}: the message of its {name} is not one line: {str(error)!r}") from error
        self.situations[f"{verb(call)} refused"] += 1

    @property
    def _late_error(self) -> type[BackendError]:
        return DeviceLost if self.setup.masks == LOSING else OutOfMemory

    @property
    def _breaker(self) -> Breaker | None:
        """The session's own way to fail a step, if masks cannot."""
        return None if Feature.MASKS in self.oracle.capabilities.features else self.lent.breaker

    def _breaks(self, expected: Expected) -> bool:
        """Whether the suite makes this step fail."""
        if self.setup.masks not in (BREAKING, LOSING) or self.masks is None:
            return False
        for part in expected.parts:
            request = part.row.request
            made = -1 if part.makes is None else part.makes - len(request.tokens)
            if (request.masked or self._breaker) and request.id >= DOOMED and made >= AFTER:
                return True
        return False

    def _take(self, ref: Ref, call: Call, expected: Expected, result: object) -> None:
        """Judge a result."""
        if isinstance(call, Read) and isinstance(result, Rows):
            self._take_rows(call, expected, result)
        elif isinstance(result, Step):
            self._new_handle(result.handle, empty=not expected.rows)
            if result.id in self.lent.step_ids:
                raise Violation("step", f"step id {result.id} was given out before")
            self.lent.step_ids.add(result.id)
            self.handles[ref], self.steps[ref] = result.handle, result
        elif isinstance(result, Handle):
            self._new_handle(result, empty=not expected.rows)
            self.handles[ref] = result
        elif isinstance(result, Cleared) and result.count != expected.count:
            raise Violation("clear", f"clear dropped {expected.count} rows and counted {result.count}")

    def _take_rows(self, call: Read, expected: Expected, result: Rows) -> None:
        wrong: Violation | None = None
        try:
            self.judge.step(self.steps[call.step].id, expected.parts, result)
        except Violation as violation:
            if violation.law != "masks":
                raise
            wrong = violation
        for row in result.rows:
            self.results.setdefault(row.request_id, []).append(row)
            if row.drafted:
                kept = len(row.tokens) == 1 + row.drafted
                self.situations["all drafts of a row are kept" if kept else "a draft is rejected"] += 1
            if row.proposed:
                for why in broken_proposals(row, self.oracle.capabilities, self.capacity):
                    raise Violation("proposals", f"row {row.request_id} proposes {why}")
                self.situations["a row proposes tokens"] += 1
        self._asked_for_masks(expected)  # a source that received wrong tokens allows others: then that is the mistake
        if wrong is not None:
            raise wrong

    def _asked_for_masks(self, expected: Expected) -> None:
        """Check that the mask source received every token but the newest, and no others, from one thread at a time."""
        if self.masks is None:
            return
        if self.masks.trouble:
            raise Violation("masks", self.masks.trouble)
        for part in expected.parts:
            id = part.row.request.id
            if part.row.request.masked and part.row.live and (wrong := self.masks.misled(id, self.tokens(id))):
                raise Violation("masks", wrong)

    def _new_handle(self, handle: Handle, *, empty: bool) -> None:
        if empty != (handle == EMPTY):
            raise Violation("handles", f"a batch of {'no' if empty else 'some'} rows got the handle {handle.id}")
        if not empty and handle.id in self.lent.handle_ids:
            raise Violation("handles", f"handle {handle.id} was given out before; a stale one would be taken for it")
        self.lent.handle_ids.add(handle.id)

    def _count(self, call: Call, expected: Expected) -> None:
        """Record the situations that were reached."""
        for name in reached(self.oracle, call, expected):
            self.situations[name] += 1


def _not_to_be_made(ref: Ref, call: Call, expected: Expected) -> NoReturn:
    """Raise the error for a scenario's call that must be refused: it exceeds the promise, or the scenario is wrong."""
    kinds = {kind for kind, _ in expected.errors}
    why = "; ".join(why for _, why in expected.errors)
    if kinds == {CapacityExceeded}:
        raise NotReached(f"the promised limits are too small for the scenario: {why}")
    raise SuiteFault(f"the scenario makes a call that must be refused: {sentence(ref, call)}: {why}")
