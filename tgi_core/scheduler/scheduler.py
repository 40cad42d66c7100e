"""The scheduler: a state machine without I/O or torch, on whatever clock it is given.

`plan` returns the next turn for the shard, `complete` takes its answer and returns what each request gets. Up to
`Capacity.in_flight` steps are launched and not yet read. A sequence is in exactly one place: the queue, running, paused without a
place, or gone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from tgi_core.backend import BackendError, Capabilities, Capacity, DeviceLost, Feature, Scope
from tgi_core.scheduler.deadlines import Deadlines
from tgi_core.scheduler.events import Event, Snapshot, Started
from tgi_core.scheduler.fault_attribution import Verdict
from tgi_core.scheduler.memory import RowMemory
from tgi_core.scheduler.pace import Pace, StepTimes
from tgi_core.scheduler.policy import Policy, StepPlan
from tgi_core.scheduler.queue import WaitingQueue
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.shard_state import ShardState
from tgi_core.scheduler.types import (
    DeadlineExceeded,
    GenerationRequest,
    Limits,
    Overloaded,
    RequestFailed,
    SchedulerError,
    SchedulerOptions,
)
from tgi_core.wire.types import (
    Decode,
    Fault,
    Generation,
    Prefill,
    StepResult,
    StepVerb,
    Turn,
    TurnResult,
)

Clock = Callable[[], float]
"""Seconds, never going back."""


class Scheduler:
    """Decides what runs next, within what the backend can and has promised."""

    def __init__(
        self,
        capabilities: Capabilities,
        capacity: Capacity,
        options: SchedulerOptions | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._options = options = options or SchedulerOptions()
        self._clock = clock
        self._memory = RowMemory(capacity.groups, reuse=options.prefix_caching and Feature.PREFIX_REUSE in capabilities.features)
        self._times = StepTimes()
        self._policy = Policy(capabilities, capacity, self._memory, self._times, options)
        self._shard = ShardState(capacity.in_flight)
        self._queue = WaitingQueue()
        self._deadlines = Deadlines()
        self._pace = Pace()
        self._by_key: dict[int, Sequence] = {}
        self._paused: dict[int, Sequence] = {}
        """By key, those that nobody reads: they run and make no tokens, or have given up their place."""
        self._displaced: list[Event] = []
        """What is yet to be told to those that were turned away after they had been queued."""
        self._launched: StepPlan | None = None
        """The step of the turn under way."""
        self._keys = itertools.count(1)
        self._query_tokens = self._hit_tokens = 0
        self.lost: BackendError | None = None
        """Why the shard is beyond use, from `lose` to `restart`."""

    @property
    def limits(self) -> Limits:
        """The longest prompt, and the longest prompt plus answer, that one request may have."""
        total = min(self._capacity.max_row_tokens, self._memory.longest)
        prompt = total - 1 if self._policy.chunking else min(total - 1, self._capacity.max_step_tokens)
        return Limits(max_input_tokens=prompt, max_total_tokens=total)

    @property
    def snapshot(self) -> Snapshot:
        """How full it is."""
        memory = self._memory
        counts = memory.free, memory.total, self._query_tokens, self._hit_tokens, len(self._paused)
        return Snapshot(len(self._queue), len(self._shard.rows), *counts)

    @property
    def prefix_caching(self) -> bool:
        """Whether prompts are found in the cache: the backend can, and nobody has switched it off."""
        return self._memory.reusing

    @property
    def idle(self) -> bool:
        """Whether there is nothing to tell the shard and nothing to hear from it."""
        return not self._by_key and self._shard.empty

    def add(self, request: GenerationRequest) -> int:
        """Queue a request; its key. Raises ValueError when it can never fit, Overloaded when too many wait."""
        total = len(request.input_ids) + request.stopping.max_new_tokens
        if not request.input_ids or len(request.input_ids) > self.limits.max_input_tokens:
            raise ValueError(f"a prompt of {len(request.input_ids)} tokens; from 1 to {self.limits.max_input_tokens} fit")
        if request.stopping.max_new_tokens < 1 or total > self.limits.max_total_tokens:
            raise ValueError(f"{total} tokens of prompt and answer; {self.limits.max_total_tokens} fit")
        self._make_room_in_queue(request)
        now, key, ageing_s = self._clock(), next(self._keys), self._options.ageing_s
        wanted = request.scheduling
        sequence = Sequence(key, request, list(request.input_ids), total=total, end=total)
        sequence.rank = (now - wanted.priority * ageing_s, key)
        if wanted.urgent or wanted.priority < 0:
            sequence.urgency = self._pace.tokens_in(-wanted.priority * ageing_s)
        self._memory.clear(sequence)
        self._by_key[key] = sequence
        self._queue.enter(sequence)
        if wanted.timeout_s is not None:
            self._deadlines.add(key, now + wanted.timeout_s)
        return key

    def _make_room_in_queue(self, request: GenerationRequest) -> None:
        """Where the queue is full, those of whom most wait make room for others. Raises Overloaded."""
        while (full := self._queue_full(len(request.input_ids))) is not None:
            last = self._queue.last_of_longest(request.scheduling.client)
            if last is None:
                raise full
            self._displaced += self._fail([last], full)

    def _queue_full(self, tokens: int) -> Overloaded | None:
        most_requests, most_tokens = self._options.max_queued_requests, self._options.max_queued_tokens
        waiting = self._queue.tokens
        if most_requests is not None and len(self._queue) >= most_requests:
            return Overloaded(f"{len(self._queue)} requests wait, as many as may", self._pace.seconds_for(waiting))
        if most_tokens is not None and self._queue and waiting + tokens > most_tokens:
            return Overloaded(f"prompts of {waiting} tokens wait; at most {most_tokens} may", self._pace.seconds_for(waiting))
        return None

    def cancel(self, key: int) -> None:
        """Forget a request: it is in no step launched after this, and its blocks are free at once."""
        sequence = self._by_key.pop(key, None)
        self._deadlines.forget(key)
        if sequence is None:
            return
        self._paused.pop(key, None)
        if self._queue.pop(key) is None and sequence.wire_id:
            self._shard.remove(sequence.wire_id)
            self._policy.evict(sequence)
        self._queue.leave(sequence)

    def pause(self, key: int) -> None:
        """Nobody reads what a request makes: no token of it is in a step launched after this, and others may have its place."""
        sequence = self._by_key.get(key)
        if sequence is not None:
            sequence.pause()
            self._paused[key] = sequence
            self._queue.pop(key)

    def go_on(self, key: int) -> None:
        """It is read again, and goes on from the tokens it has."""
        sequence = self._paused.pop(key, None)
        if sequence is not None:
            sequence.go_on()
            if not sequence.wire_id:
                self._queue.push(sequence)

    def expire(self) -> list[Event]:
        """End the requests whose time is up, and tell those that had to make room. To be called before each turn, and while there is no
        shard to plan for."""
        displaced, self._displaced = self._displaced, []
        late = [self._by_key[key] for key in self._deadlines.due(self._clock())]
        return displaced + self._fail(late, DeadlineExceeded("the request took longer than its client allowed"))

    def plan(self) -> Turn:
        """The next turn; its answer goes to `complete` before the next call."""
        step: StepVerb | None = None
        plan = StepPlan()
        if not self._shard.full:
            if self._paused and self._queue:
                paused = [item for item in self._paused.values() if item.wire_id]
                self._requeue(self._policy.give_way(paused, self._shard.rows, self._queue))
            plan = self._policy.plan(self._shard.rows, self._queue, may_admit=self._policy.mixing or self._shard.batches < 2)
            self._requeue(plan.preempted)
        bookkeeping = self._shard.filters()
        if not plan.empty:
            step = self._launch(plan)
        elif self._shard.oldest is None:
            self._pace.pause()
        return Turn(bookkeeping, step, self._shard.oldest if step is None or self._shard.full else None)

    def complete(self, result: TurnResult) -> list[Event]:
        """Take the answer to the last turn; what each request gets, in order."""
        refused, read = result.refused, result.result
        events: list[Event] = []
        if refused is None:
            if self._launched is not None:
                self._policy.faults.accepted()
        elif _ends_all(refused) or (read is not None and read.fault is not None):
            self._undo()  # what it was made of is gone
        else:
            events += self._refused(refused)
        self._launched = None
        if read is not None:
            self._shard.read()
            self._times.read(self._clock())
            self._read(read, events)
        if refused is not None and _ends_all(refused) and self.lost is None:
            events += self._step_died(refused)
        if self.idle:
            self._pace.pause()
        return events

    def started(self, turn: Turn) -> list[Started]:
        """The requests that a turn just planned brings to the shard."""
        admitted = turn.launch.requests if isinstance(turn.launch, Prefill) else ()
        return [Started(self._shard.rows[item.id].key, item.request.cached) for item in admitted if item.id in self._shard.rows]

    def lose(self, error: BackendError) -> None:
        """The shard is beyond use: `restart` or `fail_all` comes next, and no `plan` before that. The first reason counts."""
        self.lost = self.lost or error

    def restart(self, reason: str) -> list[Event]:
        """The shard has been replaced by one that holds nothing: go on with every request from the tokens it has."""
        self.lost = self._launched = None
        events = self._carry_out(self._policy.faults.died(list(self._shard.rows.values())), reason)
        self._memory.forget()
        self._shard.forget()
        self._times.forget()
        return events

    def fail_all(self, error: SchedulerError) -> list[Event]:
        """End every request, for a shard that is gone."""
        events = self._fail(list(self._by_key.values()), error)
        self._shard.forget()
        self._times.forget()
        return events

    # launching

    def _launch(self, plan: StepPlan) -> StepVerb:
        alone = bool(plan.admitted) and not self._policy.mixing
        if alone:
            self._postpone(plan)
        for item in plan.admitted:
            self._shard.add(item.sequence)
            self._query_tokens += item.sequence.sent
            self._hit_tokens += item.sequence.cached
        step, merged = self._shard.launch((item.sequence.wire_id for item in plan.admitted), not alone)
        self._launched = plan
        now = self._clock()
        self._pace.step(plan.tokens, now)
        self._times.launched(plan.tokens - plan.prompt_tokens, plan.prompt_tokens, now)
        self._advance(plan, 1)
        if not plan.admitted:
            return Decode(step, merged, plan.grants)
        return Prefill(step, tuple(item.as_request() for item in plan.admitted), merged[0] if merged else None, plan.grants)

    def _postpone(self, plan: StepPlan) -> None:
        """A device that cannot mix runs new rows by themselves; the running ones wait a step."""
        for item in plan.grown:
            self._policy.give_back(item)
        plan.decoding, plan.grown, plan.seated = [], [], []

    @staticmethod
    def _advance(plan: StepPlan, sign: int) -> None:
        """Account for a launched step, or with sign -1 for one that was refused."""
        for sequence in plan.decoding:
            sequence.computed += sign
            sequence.unread += sign
        for item in (*plan.grown, *plan.admitted):
            yields = item.sequence.prompt_left <= item.take if sign > 0 else item.sequence.prompt_left == 0
            item.sequence.computed += sign * item.take
            item.sequence.unread += sign * yields

    # results

    def _read(self, result: StepResult, events: list[Event]) -> None:
        if result.fault is not None:
            events += self._step_died(result.fault)
            return
        self._policy.recover()
        rows = self._shard.rows
        for made in result.generations:
            sequence = rows.get(made.request_id)
            if sequence is None:  # the late row of one that has left
                continue
            if made.fault is not None:
                events += self._fail([sequence], RequestFailed(made.fault.message, made.fault.kind))
                continue
            self._note(sequence, made)
            events.append(Event(sequence.key, made))

    def _note(self, sequence: Sequence, made: Generation) -> None:
        sequence.unread -= len(made.tokens)
        for token in made.tokens:
            sequence.tokens.append(token.id)
        sequence.retries = 0
        if made.tokens and not sequence.proven:
            self._policy.faults.prove(sequence)
        if len(sequence.tokens) >= sequence.enter_at:
            self._memory.enter(sequence)
        if made.finished is not None:
            self.cancel(sequence.key)

    # faults

    def _refused(self, fault: Fault) -> list[Event]:
        """The step was not launched, and nothing else is wrong: undo it, then see to its cause."""
        tokens = self._launched.tokens if self._launched is not None else 0
        named = [item for item in self._shard.rows.values() if item.wire_id in fault.request_ids]
        admitted = self._undo()
        if fault.scope is not Scope.REQUEST:
            self._policy.max_step_tokens = max(1, tokens // 2)
        verdict = self._policy.faults.refused(fault, tokens, named, admitted, list(self._shard.rows.values()))
        return self._carry_out(verdict, fault.message)

    def _undo(self) -> list[Sequence]:
        """Take back the step of the turn under way, which was not launched; the rows that it would have brought, which wait again."""
        plan = self._launched
        if plan is None:
            return []
        self._leave_out_the_cancelled(plan)
        self._shard.undo_launch()
        self._times.undo()
        self._advance(plan, -1)
        for item in plan.grown:
            self._policy.give_back(item)
        admitted = [item.sequence for item in plan.admitted]
        self._send_back(admitted)
        return admitted

    def _leave_out_the_cancelled(self, plan: StepPlan) -> None:
        """Rows that left while the turn was under way have nothing to undo."""
        running = self._shard.rows
        plan.decoding = [item for item in plan.decoding if item.wire_id in running]
        plan.grown = [item for item in plan.grown if item.sequence.wire_id in running]
        plan.admitted = [item for item in plan.admitted if item.sequence.wire_id in running]

    def _step_died(self, fault: Fault) -> list[Event]:
        """A launched step failed, and with it all that was derived from it: continue its rows from their tokens."""
        if fault.scope is Scope.SESSION:
            self.lose(DeviceLost(fault.message))
            return []
        named = [item for item in self._shard.rows.values() if item.wire_id in fault.request_ids]
        events = self._fail(named, RequestFailed(fault.message))
        self._policy.max_step_tokens = max(1, self._policy.max_step_tokens // 2)
        events += self._carry_out(
            self._policy.faults.died(list(self._shard.rows.values()), known=bool(fault.request_ids)), fault.message
        )
        self._shard.forget()
        self._times.forget()
        return events

    def _carry_out(self, verdict: Verdict, reason: str) -> list[Event]:
        self._send_back(verdict.yielding)
        return self._fail(verdict.failed, RequestFailed(reason))

    def _send_back(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._policy.evict(sequence)
        self._requeue(sequences)

    def _requeue(self, evicted: list[Sequence]) -> None:
        """Queue rows whose blocks were taken, each at its place; those that nobody reads wait until somebody does."""
        if evicted:
            self._shard.remove_evicted()
        for sequence in evicted:
            if not sequence.paused:
                self._queue.push(sequence)

    def _fail(self, sequences: list[Sequence], error: SchedulerError) -> list[Event]:
        for sequence in sequences:
            self.cancel(sequence.key)
        return [Event(sequence.key, error=error) for sequence in sequences]


def _ends_all(refused: Fault) -> bool:
    """Whether a refusal says that the shard has no batches any more."""
    return refused.lost or refused.scope is Scope.SESSION
