"""What the next step holds: which rows go on, which chunks of prompts run, who is admitted, who must yield its blocks.

Pure arithmetic over sequences, the queue and the block pools. Decoding rows come first, since each costs one token; then prompts that
have begun; then the queue, oldest first, while tokens, rows and blocks last. When blocks run out the newest row is preempted, so the
oldest always goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tgi_core.backend import Capabilities, Capacity, Feature, Grant, Mixing
from tgi_core.blocks import Blocks, CacheBlocks
from tgi_core.scheduler.queue import WaitingQueue
from tgi_core.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Take:
    """One row's part of a step: `take` tokens, with `blocks` newly allocated for it."""

    sequence: Sequence
    take: int
    blocks: Blocks


@dataclass(slots=True)
class StepPlan:
    """A step to launch. A running row that is in no list, since its prompt waits for budget, sits the step out by default."""

    decoding: list[Sequence] = field(default_factory=list)
    """Rows that run one token on the blocks they have."""
    grown: list[Take] = field(default_factory=list)
    """Rows that need to be told: a token with a new block, or the next chunk of a prompt."""
    seated: list[Sequence] = field(default_factory=list)
    """Rows that would decode but must not: launched steps make their last token, or the step is full."""
    admitted: list[Take] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether no row would run."""
        return not (self.admitted or self.decoding or self.grown)

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return len(self.decoding) + sum(item.take for item in self.grown) + sum(item.take for item in self.admitted)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What the running rows must be told."""
        taken = tuple(Grant(item.sequence.wire_id, item.take, item.blocks) for item in self.grown)
        return taken + tuple(Grant(sequence.wire_id, 0) for sequence in self.seated)


class Policy:
    """Plans steps within what the backend promised."""

    def __init__(self, capabilities: Capabilities, capacity: Capacity, blocks: CacheBlocks) -> None:
        self._capacity = capacity
        self._blocks = blocks
        self.chunking = Feature.CHUNKED_PREFILL in capabilities.features
        self.mixing = capabilities.mixing is not Mixing.NONE
        self.max_step_tokens = capacity.max_step_tokens
        """Lowered after the device ran out of memory."""

    def plan(self, running: dict[int, Sequence], queue: WaitingQueue, may_admit: bool = True) -> StepPlan:
        """The next step; its blocks are allocated, and preempted rows have given theirs back."""
        plan = StepPlan()
        self._decode(running, plan)
        self._go_on(running, plan)
        if may_admit and not plan.preempted:
            self._admit(running, queue, plan)
        return plan

    def recover(self) -> None:
        """A step went well: approach the promised size again."""
        limit = self._capacity.max_step_tokens
        self.max_step_tokens = min(limit, self.max_step_tokens + max(1, limit // 64))

    def give_back(self, item: Take) -> None:
        """Undo a take whose step was not launched."""
        for table, more in zip(item.sequence.tables, item.blocks, strict=True):
            del table[len(table) - len(more) :]
        self._blocks.release(item.blocks)

    def evict(self, sequence: Sequence) -> None:
        """Take all of a row's blocks; it can be continued from its tokens."""
        self._blocks.release(sequence.tables)
        sequence.rewind(len(self._capacity.groups))

    def _decode(self, running: dict[int, Sequence], plan: StepPlan) -> None:
        stride = self._blocks.stride
        for sequence in running.values():
            if sequence.prompt_left or not sequence.wire_id:  # wire_id 0: preempted while this loop ran
                continue
            if sequence.exhausted or len(plan.decoding) + len(plan.grown) >= self.max_step_tokens:
                plan.seated.append(sequence)
            elif sequence.computed % stride:
                plan.decoding.append(sequence)
            elif self._make_room(sequence, 1, running, plan):
                self._decode_into_new_block(sequence, plan)

    def _decode_into_new_block(self, sequence: Sequence, plan: StepPlan) -> None:
        blocks = self._extend(sequence, 1)
        if any(blocks):
            plan.grown.append(Take(sequence, 1, blocks))
        else:
            plan.decoding.append(sequence)

    def _go_on(self, running: dict[int, Sequence], plan: StepPlan) -> None:
        """Next chunks of prompts that have begun, oldest first."""
        begun = sorted((item for item in running.values() if item.prompt_left), key=lambda item: item.key)
        for sequence in begun[: self._capacity.max_prefill_rows]:
            take = min(sequence.prompt_left, self.max_step_tokens - plan.tokens)
            if take <= 0:
                return
            if sequence.wire_id and self._make_room(sequence, take, running, plan):
                plan.grown.append(Take(sequence, take, self._extend(sequence, take)))

    def _make_room(self, sequence: Sequence, take: int, running: dict[int, Sequence], plan: StepPlan) -> bool:
        """Free blocks for a row by preempting the newest; False if the row itself was the newest."""
        while not self._blocks.fits(self._blocks.missing(sequence.tables, sequence.computed + take)):
            rows = (item for item in running.values() if item.wire_id and not item.exhausted)
            newest = max(rows, key=lambda item: item.key)
            self._preempt(newest, plan)
            if newest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        plan.decoding = [item for item in plan.decoding if item is not sequence]
        plan.grown = [item for item in plan.grown if item.sequence is not sequence]
        plan.seated = [item for item in plan.seated if item is not sequence]
        self.evict(sequence)
        plan.preempted.append(sequence)

    def _admit(self, running: dict[int, Sequence], queue: WaitingQueue, plan: StepPlan) -> None:
        rows = min(self._capacity.max_rows - len(running), self._capacity.max_prefill_rows - len(plan.grown))
        budget = self.max_step_tokens - (plan.tokens if self.mixing else 0)
        if not running and not self.chunking:  # a prompt that cannot be cut must not wait for ever behind a small budget
            budget = self._capacity.max_step_tokens
        for sequence in list(queue):
            length = len(sequence.tokens)
            take = min(length, budget)
            if rows <= 0 or take <= 0 or (take < length and not self.chunking):
                return
            live = len(running) + len(plan.admitted)
            if live and not self._has_room(length, live):
                return
            queue.pop(sequence.key)
            sequence.sent = length
            plan.admitted.append(Take(sequence, take, self._extend(sequence, take)))
            budget, rows = budget - take, rows - 1

    def _has_room(self, length: int, live: int) -> bool:
        """Room for all tokens of a row and one more, and for the growth of each row that runs, where rows grow at all."""
        counts = self._blocks.missing(tuple([] for _ in self._capacity.groups), min(length + 1, self._longest))
        return self._blocks.fits(counts, spare=live if self._blocks.stride < self._capacity.max_row_tokens else 0)

    @property
    def _longest(self) -> int:
        return self._blocks.max_row_tokens

    def _extend(self, sequence: Sequence, take: int) -> Blocks:
        """Allocate what a row lacks to run `take` tokens more."""
        blocks = self._blocks.allocate(self._blocks.missing(sequence.tables, sequence.computed + take))
        for table, more in zip(sequence.tables, blocks, strict=True):
            table.extend(more)
        return blocks
