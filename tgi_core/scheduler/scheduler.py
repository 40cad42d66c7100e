"""The scheduler: a state machine without clock, I/O or torch.

`plan` returns the next turn for the shard, `complete` takes its answer and returns what each request gets. Up to
`Capacity.in_flight` steps are launched and not yet read. A sequence is in exactly one place: the queue, running, or gone.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tgi_core.backend import Capabilities, Capacity, Scope
from tgi_core.blocks import CacheBlocks
from tgi_core.client.types import (
    Decode,
    Fault,
    Filter,
    Generation,
    Prefill,
    ShardRequest,
    StepResult,
    StepVerb,
    Turn,
    TurnResult,
)
from tgi_core.scheduler.policy import Policy, StepPlan, Take
from tgi_core.scheduler.queue import WaitingQueue
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.types import GenerationFailed, GenerationRequest, Limits, SchedulerError

MAX_RETRIES = 3
"""Faults in a row, without a token in between, after which a request fails."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a request gets: text, or an error that ends it."""

    key: int
    generation: Generation | None = None
    error: SchedulerError | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Numbers for gauges."""

    queued: int
    running: int
    blocks_free: int
    blocks_total: int


class Scheduler:
    """Decides what runs next, within what the backend can and has promised."""

    def __init__(self, capabilities: Capabilities, capacity: Capacity) -> None:
        self._capacity = capacity
        self._blocks = CacheBlocks(capacity.groups)
        self._policy = Policy(capabilities, capacity, self._blocks)
        self._queue = WaitingQueue()
        self._by_key: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        """By wire id."""
        self._batches: dict[int, set[int]] = {}
        """Wire ids of the rows in each of the shard's batches; it may hold rows that run no more, until the next turn."""
        self._launched: tuple[int, StepPlan, dict[int, set[int]]] | None = None
        """The step of the turn under way, with what is needed to undo it."""
        self._unread: deque[int] = deque()
        self._keys, self._wire_ids, self._steps = itertools.count(1), itertools.count(1), itertools.count(1)
        self.lost: Fault | None = None
        """Set once the shard's session is beyond use."""

    @property
    def limits(self) -> Limits:
        """The longest prompt, and the longest prompt plus answer, that one request may have."""
        total = min(self._capacity.max_row_tokens, self._blocks.max_row_tokens)
        prompt = total - 1 if self._policy.chunking else min(total - 1, self._capacity.max_step_tokens)
        return Limits(max_input_tokens=prompt, max_total_tokens=total)

    @property
    def snapshot(self) -> Snapshot:
        """How full it is."""
        return Snapshot(len(self._queue), len(self._running), self._blocks.free, self._blocks.total)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to tell the shard and nothing to hear from it."""
        return not (self._by_key or self._unread or self._batches)

    def add(self, request: GenerationRequest) -> int:
        """Queue a request; its key. Raises ValueError when it can never fit."""
        total = len(request.input_ids) + request.stopping.max_new_tokens
        if not request.input_ids or len(request.input_ids) > self.limits.max_input_tokens:
            raise ValueError(f"a prompt of {len(request.input_ids)} tokens; from 1 to {self.limits.max_input_tokens} fit")
        if request.stopping.max_new_tokens < 1 or total > self.limits.max_total_tokens:
            raise ValueError(f"{total} tokens of prompt and answer; {self.limits.max_total_tokens} fit")
        sequence = Sequence(next(self._keys), request, list(request.input_ids))
        sequence.rewind(len(self._capacity.groups))
        self._by_key[sequence.key] = sequence
        self._queue.push(sequence)
        return sequence.key

    def cancel(self, key: int) -> None:
        """Forget a request: it is in no step launched after this, and its blocks are free at once."""
        sequence = self._by_key.pop(key, None)
        if sequence is not None and self._queue.pop(key) is None:
            del self._running[sequence.wire_id]
            self._policy.evict(sequence)

    def plan(self) -> Turn:
        """The next turn; its answer goes to `complete` before the next call."""
        step: StepVerb | None = None
        plan = StepPlan()
        if len(self._unread) < self._capacity.in_flight:
            plan = self._policy.plan(self._running, self._queue, may_admit=self._policy.mixing or len(self._batches) < 2)
            self._requeue(plan.preempted)
        bookkeeping = tuple(self._filters())
        if not plan.empty:
            step = self._launch(plan)
            self._unread.append(step.step)
        full = step is None or len(self._unread) >= self._capacity.in_flight
        return Turn(bookkeeping, step, self._unread[0] if full and self._unread else None)

    def complete(self, result: TurnResult) -> list[Event]:
        """Take the answer to the last turn; what each request gets, in order."""
        events: list[Event] = []
        if result.refused is not None:
            events += self._refused(result.refused)
        self._launched = None
        if result.result is not None:
            self._unread.popleft()
            events += self._read(result.result)
        return events

    def started(self, turn: Turn) -> list[int]:
        """Keys of the requests that a turn just planned brings to the shard."""
        admitted = turn.launch.requests if isinstance(turn.launch, Prefill) else ()
        return [self._running[item.id].key for item in admitted if item.id in self._running]

    def fail_all(self, error: SchedulerError) -> list[Event]:
        """End every request, for a shard that is gone."""
        self._batches.clear()
        self._unread.clear()
        return self._fail(list(self._by_key.values()), error)

    # launching

    def _filters(self) -> Iterable[Filter]:
        """Drop the rows that run no more from the shard's batches."""
        for batch, rows in list(self._batches.items()):
            keep = tuple(id for id in rows if id in self._running)
            if len(keep) < len(rows):
                self._batches[batch] = set(keep)
                if not keep:
                    del self._batches[batch]
                yield Filter(batch, keep)

    def _launch(self, plan: StepPlan) -> StepVerb:
        step, before = next(self._steps), dict(self._batches)
        alone = bool(plan.admitted) and not self._policy.mixing
        if alone:
            self._postpone(plan)
        for item in plan.admitted:
            item.sequence.wire_id = next(self._wire_ids)
            self._running[item.sequence.wire_id] = item.sequence
        merged = () if alone else tuple(self._batches)
        rows = {item.sequence.wire_id for item in plan.admitted}.union(*(self._batches.pop(batch) for batch in merged))
        self._batches[step] = rows
        self._launched = step, plan, before
        self._advance(plan, 1)
        if not plan.admitted:
            return Decode(step, merged, plan.grants)
        return Prefill(step, tuple(map(_shard_request, plan.admitted)), merged[0] if merged else None, plan.grants)

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

    def _read(self, result: StepResult) -> list[Event]:
        if result.fault is not None:
            return self._step_died(result.fault)
        self._policy.recover()
        return [event for made in result.generations for event in self._generation(made)]

    def _generation(self, made: Generation) -> list[Event]:
        sequence = self._running.get(made.request_id)
        if sequence is None:  # the late row of one that has left
            return []
        if made.fault is not None:
            return self._fail([sequence], GenerationFailed(made.fault.message))
        sequence.unread -= len(made.tokens)
        sequence.tokens.extend(token.id for token in made.tokens)
        sequence.retries = 0
        if made.finished is not None:
            self.cancel(sequence.key)
        return [Event(sequence.key, made)]

    # faults

    def _refused(self, fault: Fault) -> list[Event]:
        """The step was not launched: undo it, then see to its cause."""
        if self._launched is None or fault.scope is Scope.SESSION:
            return self._session_died(fault)
        step, plan, before = self._launched
        hopeless = plan.tokens == 1
        self._leave_out_the_cancelled(plan)
        admitted = [item.sequence for item in plan.admitted]
        suspects = admitted or list(self._running.values())
        named = [item for item in suspects if item.wire_id in fault.request_ids] or suspects
        self._unread.remove(step)
        self._batches = before
        self._advance(plan, -1)
        for item in plan.grown:
            self._policy.give_back(item)
        self._send_back(admitted)
        if fault.scope is Scope.REQUEST or hopeless:
            return self._fail(named, GenerationFailed(fault.message))
        self._policy.max_step_tokens = max(1, plan.tokens // 2)
        return self._retry(admitted or [max(suspects, key=lambda item: item.key)], fault)

    def _leave_out_the_cancelled(self, plan: StepPlan) -> None:
        """Rows that left while the turn was under way have nothing to undo."""
        running = self._running
        plan.decoding = [item for item in plan.decoding if item.wire_id in running]
        plan.grown = [item for item in plan.grown if item.sequence.wire_id in running]
        plan.admitted = [item for item in plan.admitted if item.sequence.wire_id in running]

    def _step_died(self, fault: Fault) -> list[Event]:
        """A launched step failed, and with it all that was derived from it: continue its rows from their tokens."""
        self._unread.clear()
        self._batches.clear()
        if fault.scope is Scope.SESSION:
            return self._session_died(fault)
        rows = list(self._running.values())
        named = [item for item in rows if item.wire_id in fault.request_ids]
        events = self._fail(named, GenerationFailed(fault.message))
        self._policy.max_step_tokens = max(1, self._policy.max_step_tokens // 2)
        return events + self._retry([item for item in rows if item not in named], fault)

    def _session_died(self, fault: Fault) -> list[Event]:
        self.lost = fault
        return self.fail_all(GenerationFailed(fault.message))

    def _retry(self, sequences: list[Sequence], fault: Fault) -> list[Event]:
        """Send rows back to the queue, those that fault after fault have failed excepted."""
        for sequence in sequences:
            sequence.retries += 1
        self._send_back([item for item in sequences if item.wire_id])
        tired = [item for item in sequences if item.retries > MAX_RETRIES]
        return self._fail(tired, GenerationFailed(fault.message))

    def _send_back(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._policy.evict(sequence)
        self._requeue(sequences)

    def _requeue(self, evicted: list[Sequence]) -> None:
        """Queue rows whose blocks were taken; their place in the queue is by age."""
        if evicted:
            self._running = {id: item for id, item in self._running.items() if item.wire_id == id}
        for sequence in evicted:
            self._queue.push_back(sequence)

    def _fail(self, sequences: list[Sequence], error: SchedulerError) -> list[Event]:
        for sequence in sequences:
            self.cancel(sequence.key)
        return [Event(sequence.key, error=error) for sequence in sequences]


def _shard_request(item: Take) -> ShardRequest:
    sequence, request = item.sequence, item.sequence.request
    return ShardRequest(
        id=sequence.wire_id,
        input_ids=tuple(sequence.tokens),
        prompt_len=len(request.input_ids),
        cached=0,
        blocks=item.blocks,
        take=item.take,
        sampling=request.sampling,
        want=request.want,
        stopping=request.stopping,
        adapter=request.adapter,
        grammar=request.grammar,
    )
