"""The scheduler: a state machine without I/O or torch, on an injected clock.

`plan` returns the next turn for the shard; `complete` takes the answer and returns what each request gets. Up to
`Capacity.in_flight` steps are launched and not yet read. A sequence is in exactly one place: waiting in the queue, running in a
row of the shard, paused without a row, or gone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from tgi_core.backend import BackendError, Capabilities, Capacity, DeviceLost, Feature, Scope
from tgi_core.scheduler.deadlines import Deadlines
from tgi_core.scheduler.drafting import Drafter, ObserveDrafts
from tgi_core.scheduler.events import Event, Snapshot, Started
from tgi_core.scheduler.fault_attribution import Verdict
from tgi_core.scheduler.memory import RowMemory
from tgi_core.scheduler.overload import QueueLimits
from tgi_core.scheduler.policy import Policy
from tgi_core.scheduler.prefix import PrefixIndex
from tgi_core.scheduler.queue import WaitingQueue
from tgi_core.scheduler.row_drafts import DraftSource
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.shard_state import ShardState
from tgi_core.scheduler.step_plan import StepPlan
from tgi_core.scheduler.step_times import StepTimes, Throughput
from tgi_core.scheduler.types import (
    DeadlineExceeded,
    GenerationRequest,
    Limits,
    Overloaded,
    RequestFailed,
    SchedulerError,
    SchedulerOptions,
)
from tgi_core.wire.types import Decode, Fault, Generation, Prefill, StepResult, StepVerb, Turn, TurnResult

Clock = Callable[[], float]
"""Returns monotonic seconds."""


class Scheduler:
    """Decides what runs next, within the backend's capabilities and capacity."""

    def __init__(
        self,
        capabilities: Capabilities,
        capacity: Capacity,
        options: SchedulerOptions | None = None,
        clock: Clock = time.monotonic,
        observe_drafts: ObserveDrafts | None = None,
        prefixes: PrefixIndex | None = None,
        queue_limits: QueueLimits | None = None,
    ) -> None:
        self._capacity = capacity
        self._options = options = options or SchedulerOptions()
        self._clock = clock
        reuse = options.prefix_caching and Feature.PREFIX_REUSE in capabilities.features
        self.memory = RowMemory(capacity.groups, reuse, prefixes, capacity.max_step_tokens)
        self.times = StepTimes()
        speculates = capacity.draft > 0 and Feature.SPECULATION in capabilities.features
        sources = options.earlier_answers, observe_drafts, capabilities.proposals > 0
        self._drafter = Drafter(capacity.draft, self.times, *sources) if speculates else None
        self._policy = Policy(capabilities, capacity, self.memory, self.times, options, self._drafter)
        self.shard = ShardState(capacity.in_flight)
        self.queue = WaitingQueue()
        self._queue_limits = queue_limits or QueueLimits(options)
        self._queue_limits.join(self)
        self._deadlines = Deadlines()
        self.throughput = Throughput()
        self.sequences: dict[int, Sequence] = {}
        self.paused: dict[int, Sequence] = {}
        """By key, requests whose clients do not read: their rows generate nothing, or have been evicted."""
        self._displaced: list[Event] = []
        """Undelivered errors of queued requests that were rejected to make room for others."""
        self._launched: StepPlan | None = None
        """The step of the turn in progress."""
        self._keys = itertools.count(1)
        self._query_tokens = self._hit_tokens = 0
        self.lost: BackendError | None = None
        """Why the shard is unusable; set from `lose` to `restart`."""

    @property
    def limits(self) -> Limits:
        """Maximum length of a prompt, and of a prompt plus generated tokens, for one request."""
        policy, memory = self._policy, self.memory
        chunking = policy.chunking and not policy.whole_prompts
        return Limits.of(self._capacity, memory.longest, memory.longest_prompt, chunking, policy.whole_images)

    @property
    def snapshot(self) -> Snapshot:
        """Current load of the scheduler."""
        counts = self.memory.free, self.memory.total, self._query_tokens, self._hit_tokens, len(self.paused)
        return Snapshot(len(self.queue), len(self.shard.rows), *counts, window_usage=self.memory.window_usage)

    @property
    def prefix_caching(self) -> bool:
        """Whether prefix caching is enabled: the backend supports it and it is not switched off."""
        return self.memory.reusing

    @property
    def speculates(self) -> bool:
        """Whether rows get drafts."""
        return self._drafter is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send to the shard, nothing to read from it, and nothing to report."""
        return not self.sequences and self.shard.empty and not self._displaced

    def add(self, request: GenerationRequest) -> int:
        """Queue a request and return its key. Raises ValueError if it can never fit, Overloaded if too many wait."""
        self.limits.check(request)
        self._queue_limits.make_room(len(request.input_ids), request.scheduling.client)
        now, ageing_s = self._clock(), self._options.ageing_s
        wanted, total = request.scheduling, len(request.input_ids) + request.stopping.max_new_tokens
        sequence = Sequence(0, request, list(request.input_ids), total=total, end=total)
        sequence.rank = (now - wanted.priority * ageing_s, 0)
        if wanted.urgent or wanted.priority < 0:
            sequence.urgency = self.throughput.tokens_in(-wanted.priority * ageing_s)
        if self._drafter is not None:
            self._drafter.begin(sequence)
        if wanted.timeout_s is not None:
            sequence.deadline = now + wanted.timeout_s
        return self.adopt(sequence)

    def adopt(self, sequence: Sequence) -> int:
        """Queue a new request, or one that another scheduler of the same model has given up, and return its key here. It must fit
        within `limits`."""
        key = sequence.key = next(self._keys)
        sequence.rank = (sequence.rank[0], key)
        self.memory.clear(sequence)
        self.sequences[key] = sequence
        self.queue.enter(sequence)
        self._deadlines.add(key, sequence.deadline)
        if sequence.paused:
            self.paused[key] = sequence
            self.queue.pop(key)
        return key

    def give_up(self, key: int) -> Sequence | None:
        """Drop a request that has no row, for another scheduler to adopt; None if it is running or gone."""
        sequence = self.sequences.get(key)
        if sequence is None or sequence.wire_id:
            return None
        self.cancel(key)
        return sequence

    def displace(self, sequence: Sequence, error: Overloaded) -> None:
        """End a queued request to make room for another one."""
        self._displaced += self._fail([sequence], error)

    def cancel(self, key: int) -> None:
        """Drop a request: no step launched after this includes it, and its blocks are freed at once."""
        sequence = self.sequences.pop(key, None)
        self._deadlines.forget(key)
        if sequence is None:
            return
        self.paused.pop(key, None)
        if self.queue.pop(key) is None and sequence.wire_id:
            self.shard.remove(sequence.wire_id)
            self._policy.evict(sequence)
        self.queue.leave(sequence)

    def pause(self, key: int) -> None:
        """Pause a request whose client does not read: no step launched after this generates for it, and other requests may get its
        row."""
        sequence = self.sequences.get(key)
        if sequence is not None:
            sequence.pause()
            self.paused[key] = sequence
            self.queue.pop(key)

    def resume(self, key: int) -> None:
        """Resume a request whose client reads again: it continues from its tokens."""
        sequence = self.paused.pop(key, None)
        if sequence is not None:
            sequence.resume()
            if not sequence.wire_id:
                self.queue.push(sequence)

    def expire(self) -> list[Event]:
        """End requests whose deadline has passed, and report those that were rejected to make room. Call before each turn, and
        while there is no shard."""
        displaced, self._displaced = self._displaced, []
        late = [self.sequences[key] for key in self._deadlines.due(self._clock())]
        return displaced + self._fail(late, DeadlineExceeded("the request exceeded its time limit"))

    def plan(self) -> Turn:
        """Return the next turn. Its answer must be passed to `complete` before the next call."""
        step: StepVerb | None = None
        plan = StepPlan()
        if not self.shard.full:
            if self.paused and self.queue:
                paused = [item for item in self.paused.values() if item.wire_id]
                self._requeue(self._policy.evict_paused(paused, self.shard.rows, self.queue))
            plan = self._policy.plan(self.shard.rows, self.queue, may_admit=self._policy.mixing or self.shard.batches < 2)
            self._requeue(plan.preempted)
        bookkeeping = self.shard.filters()
        if not plan.empty:
            step = self._launch(plan)
        elif self.shard.oldest is None:
            self.throughput.pause()
        return Turn(bookkeeping, step, self.shard.oldest if step is None or self.shard.full else None)

    def complete(self, result: TurnResult) -> list[Event]:
        """Process the answer to the last turn. Return the events for each request, in order."""
        refused, read = result.refused, result.result
        events: list[Event] = []
        if refused is None:
            if self._launched is not None:
                self._policy.faults.accepted()
        elif _ends_all(refused) or (read is not None and read.fault is not None):
            self._undo()  # the batches on which it was based are lost
        else:
            events += self._refused(refused)
        self._launched = None
        if read is not None:
            written = self.shard.read()
            if self.memory.reusing and read.fault is None:
                for sequence, positions in written:
                    self.memory.enter(sequence, positions)
            self.times.read(self._clock())
            self._read(read, events)
        if refused is not None and _ends_all(refused) and self.lost is None:
            events += self._step_died(refused)
        if self.idle:
            self.throughput.pause()
        return events

    def started(self, turn: Turn) -> list[Started]:
        """Return the requests whose rows begin in the turn just planned."""
        admitted = turn.launch.requests if isinstance(turn.launch, Prefill) else ()
        return [Started(self.shard.rows[item.id].key, item.request.cached) for item in admitted if item.id in self.shard.rows]

    def lose(self, error: BackendError) -> None:
        """Mark the shard as unusable: `restart` or `fail_all` must follow before the next `plan`. The first reason is kept."""
        self.lost = self.lost or error

    def restart(self, reason: str) -> list[Event]:
        """After the shard was replaced by an empty one, continue every request from its tokens."""
        self.lost = self._launched = None
        self.shard.lose()
        events = self._carry_out(self._policy.faults.died(list(self.shard.rows.values())), reason)
        self.memory.forget()
        self.shard.forget()
        self.times.forget()
        return events

    def fail_all(self, error: SchedulerError) -> list[Event]:
        """End every request, since the shard is lost."""
        events = self._fail(list(self.sequences.values()), error)
        self.shard.forget()
        self.times.forget()
        return events

    # launching

    def _launch(self, plan: StepPlan) -> StepVerb:
        alone = bool(plan.admitted) and not self._policy.mixing
        for item in plan.admitted:
            self.shard.add(item.sequence)
            self._query_tokens += item.sequence.sent
            self._hit_tokens += item.sequence.cached
        step, merged = self.shard.launch((item.sequence.wire_id for item in plan.admitted), not alone)
        self._launched = plan
        now = self._clock()
        self.throughput.step(plan.tokens, now)
        padded, drafts = plan.padded_prompt_tokens(self._capacity.takes), sum(len(item.drafts) for item in plan.grown)
        self.times.launched(plan.tokens - plan.prompt_tokens - drafts, padded, now, drafts, plan.proposing)
        self._advance(plan, 1)
        if self.memory.windowed:
            self.shard.note_chunks(item.sequence for item in (*plan.grown, *plan.admitted) if item.sequence.prompt_left)
        if not plan.admitted:
            return Decode(step, merged, plan.grants)
        return Prefill(step, tuple(item.as_request() for item in plan.admitted), merged[0] if merged else None, plan.grants)

    @staticmethod
    def _advance(plan: StepPlan, sign: int) -> None:
        """Account for a launched step; with sign -1, revert this for a refused one."""
        for sequence in plan.decoding:
            sequence.computed += sign
            sequence.unread += sign
        for item in (*plan.grown, *plan.admitted):
            yields = item.sequence.prompt_left <= item.take if sign > 0 else item.sequence.prompt_left == 0
            item.sequence.computed += sign * item.take
            item.sequence.unread += sign * yields
            item.sequence.drafts = item.drafts if sign > 0 else ()

    # results

    def _read(self, result: StepResult, events: list[Event]) -> None:
        if result.fault is not None:
            events += self._step_died(result.fault)
            return
        self._policy.recover()
        rows = self.shard.rows
        for made in result.generations:
            sequence = rows.get(made.request_id)
            if sequence is None:  # a late row of a dropped request
                continue
            if made.fault is not None:
                if made.tokens:  # from drafts before the failure
                    events.append(Event(sequence.key, replace(made, fault=None)))
                events += self._fail([sequence], RequestFailed(made.fault.message, made.fault.kind))
                continue
            self._note(sequence, made)
            events.append(Event(sequence.key, made))
        if self._drafter is not None:
            self._drafter.report(DraftSource.GRAMMAR, rows, result.forced)
            self._drafter.report(DraftSource.MODEL, rows, result.proposed)

    def _note(self, sequence: Sequence, made: Generation) -> None:
        sequence.unread -= bool(made.tokens)
        for token in made.tokens:
            sequence.tokens.append(token.id)
        if sequence.drafts and made.tokens and self._drafter is not None:
            self._drafter.read(sequence, made.tokens)
        sequence.retries = 0
        if made.tokens and not sequence.proven:
            self._policy.faults.prove(sequence)
        if len(sequence.tokens) >= sequence.enter_at:
            self.memory.enter(sequence)
        if made.finished is not None:
            if self._drafter is not None:
                self._drafter.finish(sequence)
            self.cancel(sequence.key)

    # faults

    def _refused(self, fault: Fault) -> list[Event]:
        """Handle a step that was refused without other damage: undo it, then deal with the cause."""
        tokens = self._launched.tokens if self._launched is not None else 0
        named = [item for item in self.shard.rows.values() if item.wire_id in fault.request_ids]
        admitted = self._undo()
        if fault.scope is not Scope.REQUEST:
            self._policy.max_step_tokens = max(1, tokens // 2)
        verdict = self._policy.faults.refused(fault, tokens, named, admitted, list(self.shard.rows.values()))
        return self._carry_out(verdict, fault.message)

    def _undo(self) -> list[Sequence]:
        """Undo the step of the current turn, which was not launched. Return the sequences of its new rows, which wait again."""
        plan = self._launched
        if plan is None:
            return []
        plan.leave_out_all_but(self.shard.rows)
        self.shard.undo_launch()
        self.times.undo()
        self._advance(plan, -1)
        for item in plan.grown:
            self._policy.give_back(item)
        admitted = [item.sequence for item in plan.admitted]
        self._send_back(admitted)
        return admitted

    def _step_died(self, fault: Fault) -> list[Event]:
        """Handle the failure of a launched step, and of every batch derived from it: continue the rows from their tokens."""
        if fault.scope is Scope.SESSION:
            self.lose(DeviceLost(fault.message))
            return []
        named = [item for item in self.shard.rows.values() if item.wire_id in fault.request_ids]
        events = self._fail(named, RequestFailed(fault.message))
        self._policy.max_step_tokens = max(1, self._policy.max_step_tokens // 2)
        events += self._carry_out(
            self._policy.faults.died(list(self.shard.rows.values()), known=bool(fault.request_ids)), fault.message
        )
        self.shard.forget()
        self.times.forget()
        return events

    def _carry_out(self, verdict: Verdict, reason: str) -> list[Event]:
        self._send_back(verdict.requeued)
        return self._fail(verdict.failed, RequestFailed(reason))

    def _send_back(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._policy.evict(sequence)
        self._requeue(sequences)

    def _requeue(self, evicted: list[Sequence]) -> None:
        """Queue evicted sequences, each at its previous place; paused ones stay out of the queue until their clients read."""
        if evicted:
            self.shard.remove_evicted()
        for sequence in evicted:
            if not sequence.paused:
                self.queue.push(sequence)

    def _fail(self, sequences: list[Sequence], error: SchedulerError) -> list[Event]:
        for sequence in sequences:
            self.cancel(sequence.key)
        return [Event(sequence.key, error=error) for sequence in sequences]


def _ends_all(refused: Fault) -> bool:
    """Return whether a refusal means that all batches of the shard are lost."""
    return refused.lost or refused.scope is Scope.SESSION
