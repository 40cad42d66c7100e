"""Scheduling policy: which rows decode, which chunks of prompts run, which requests are admitted and which rows are preempted in
the next step.

Pure arithmetic over sequences, the queue and their memory. Decoding rows come first, since each costs one token; then prompts
that have begun; then the queue in order, while tokens, rows and blocks last. A device that cannot mix these runs only one kind
per step. When blocks run out, paused rows are preempted first, then the last-ranked row of the client that has the most rows, so
that the first-ranked row always progresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tgi_core.backend import Capabilities, Capacity, Feature, Mixing
from tgi_core.scheduler.drafting import Drafter
from tgi_core.scheduler.fault_attribution import FaultAttribution
from tgi_core.scheduler.memory import RowMemory
from tgi_core.scheduler.prefill_budget import PrefillBudget, image_left, images_begun, keep_images_whole
from tgi_core.scheduler.queue import WaitingQueue
from tgi_core.scheduler.sequence import Sequence
from tgi_core.scheduler.step_plan import ScheduledRow, StepPlan
from tgi_core.scheduler.step_times import StepTimes
from tgi_core.scheduler.types import SchedulerOptions

LOOK_AHEAD = 8
"""Maximum number of waiting requests that are skipped because they do not fit, in search of a smaller one."""
MAX_OVERTAKEN = 32
"""Number of later requests that may overtake one that does not fit; after that, none may until it fits."""
NEWCOMERS_SHARE = 4
"""One in this many tokens of a step is reserved for new requests while some wait to begin."""
CROWD = 4
"""When at least this many requests wait, and `waiting_served_ratio` per decoding row, prompts take the whole step: one pause
costs decoding rows no more time than many slower steps."""
LEAST_CHUNK = 16
"""Number of prompt tokens that always fit into a step, however slow they are."""
MOST_CHUNKS = 16
"""All waiting prompts should be computed within about this many steps: with a long queue, the waiting requests and a busy device
matter more than smooth streams."""
MOST_PAUSES = 4
"""Number of steps in a row that run chunks of prompts while rows wait to decode, on a device that cannot mix them."""


class Policy:
    """Plans steps within the backend's capacity."""

    def __init__(
        self,
        capabilities: Capabilities,
        capacity: Capacity,
        memory: RowMemory,
        times: StepTimes,
        options: SchedulerOptions,
        drafter: Drafter | None = None,
    ) -> None:
        self._capacity = capacity
        self._times = times
        self._memory = memory
        self._options = options
        self.chunking = Feature.CHUNKED_PREFILL in capabilities.features
        self.mixing = capabilities.mixing is not Mixing.NONE
        self.whole_prompts = capabilities.whole_prompts
        self.whole_images = capabilities.whole_images or self.whole_prompts
        self.max_step_tokens = capacity.max_step_tokens
        """Lowered after the device ran out of memory."""
        self.faults = FaultAttribution(capacity.max_rows)
        self._drafter = drafter
        self._since_admission = 0
        self._due = 0.0
        """Number of steps with chunks of prompts that are due before rows decode again, on a device that cannot mix."""

    def plan(self, running: dict[int, Sequence], queue: WaitingQueue, may_admit: bool = True) -> StepPlan:
        """Return the next step. Its blocks are allocated, and those of preempted rows are released."""
        plan = StepPlan()
        if self.mixing:
            self._plan_mixed(running, queue, may_admit, plan)
        else:
            self._plan_apart(running, queue, may_admit, plan)
        return plan

    def evict_paused(self, paused: Iterable[Sequence], running: dict[int, Sequence], queue: WaitingQueue) -> list[Sequence]:
        """Evict paused rows while waiting requests need their slots or blocks; all of them if the device cannot mix."""
        first, given = next(iter(queue)), list[Sequence]()
        wanted = min(len(queue), self._capacity.max_prefill_rows)
        for sequence in sorted(paused, key=_rank, reverse=True):
            live = len(running) - len(given)
            if self.mixing and self._capacity.max_rows - live >= wanted and self._has_room(first, live):
                break
            self.evict(sequence)
            given.append(sequence)
        return given

    def recover(self) -> None:
        """After a successful step, raise the step size again toward the backend's limit."""
        limit = self._capacity.max_step_tokens
        self.max_step_tokens = min(limit, self.max_step_tokens + max(1, limit // 64))

    def give_back(self, item: ScheduledRow) -> None:
        """Release the blocks of a running row whose step was not launched."""
        self._memory.shrink(item.sequence, item.blocks)

    def evict(self, sequence: Sequence) -> None:
        """Release all blocks of a row; the request can be continued from its tokens."""
        self._memory.release(sequence)
        sequence.rewind()

    def _plan_mixed(self, running: dict[int, Sequence], queue: WaitingQueue, may_admit: bool, plan: StepPlan) -> None:
        """Rows that decode, then chunks of prompts, then new requests."""
        self._decode(running, plan)
        self._add_drafts(plan)
        begun = _begun(running)
        room = self._prefill_budget(plan, begun, queue)
        if self.chunking and not plan.empty:
            room.images = 1  # a vision tower takes longer than many decoding steps: one image at a time
        if begun:
            self._continue_prompts(begun, room, running, queue, plan)
        if queue and may_admit and not plan.preempted:
            self._admit(running, queue, plan, room)

    def _plan_apart(self, running: dict[int, Sequence], queue: WaitingQueue, may_admit: bool, plan: StepPlan) -> None:
        """New requests; or chunks of prompts, while the decoding rows sit out; or the decoding rows."""
        self._since_admission += 1
        if queue and may_admit and self._worth_a_pause(running, queue):
            self._admit(running, queue, plan, self._room(self.max_step_tokens, self.max_step_tokens))
            if plan.admitted:
                self._since_admission = 0
                return
        begun = _begun(running)
        if self._chunks_are_due(begun, running):
            plan.skipped = [item for item in running.values() if item.sent <= item.computed]
            self._continue_prompts(begun, self._prefill_budget(plan, begun, queue), running, queue, plan)
            if plan.chunks:
                return
            plan.skipped = []  # the prompts were preempted
        self._decode(running, plan)
        self._add_drafts(plan)

    def _chunks_are_due(self, begun: list[Sequence], running: dict[int, Sequence]) -> bool:
        """Return whether chunks of prompts run next, on a device that cannot mix.

        Prompts and decoding rows take turns. The more prompts wait, relative to `waiting_served_ratio` times the decoding rows,
        the more steps they get per decode step: from one in `max_waiting_tokens` to `MOST_PAUSES`.
        """
        decoding = sum(item.sent <= item.computed and len(item.tokens) + item.unread < item.end for item in running.values())
        if not begun or not decoding:
            self._due = 0.0
            return bool(begun)
        if self._due >= 1.0:
            self._due -= 1.0
            return True
        least, served = 1.0 / max(1, self._options.max_waiting_tokens), self._options.waiting_served_ratio * decoding
        self._due += min(MOST_PAUSES, max(least, len(begun) / served if served else MOST_PAUSES))
        return False

    def _decode(self, running: dict[int, Sequence], plan: StepPlan) -> None:
        stride, room = self._memory.stride, self.max_step_tokens
        for sequence in running.values():  # the one loop over all rows: attributes, no calls
            computed = sequence.computed
            if sequence.sent > computed or not sequence.wire_id:  # wire_id 0: preempted while this loop ran
                continue
            if room <= 0 or sequence.drafts or len(sequence.tokens) + sequence.unread >= sequence.end:
                plan.skipped.append(sequence)
                continue
            if computed % stride:
                plan.decoding.append(sequence)
            elif self._make_room(sequence, 1, running, plan):
                self._decode_into_new_block(sequence, plan)
            room -= 1

    def _decode_into_new_block(self, sequence: Sequence, plan: StepPlan) -> None:
        blocks = self._memory.extend(sequence, sequence.computed + 1)
        if any(blocks):
            plan.grown.append(ScheduledRow(sequence, 1, blocks))
        else:
            plan.decoding.append(sequence)

    def _add_drafts(self, plan: StepPlan) -> None:
        """Give drafts to decoding rows, and decide which of them propose drafts for the next step."""
        if self._drafter is None:
            return
        decoding = [*plan.decoding, *(item.sequence for item in plan.grown)]
        if self._drafter.start_step(len(decoding)):
            self._draft(self._drafter, decoding, plan)
        plan.proposing, plan.silent = self._drafter.proposing(decoding)

    def _draft(self, drafter: Drafter, decoding: list[Sequence], plan: StepPlan) -> None:
        """Give drafts to rows while there is room in the step and in their memory."""
        room = self.max_step_tokens - plan.tokens
        grown = {item.sequence.key: item for item in plan.grown}
        moved, drafting = set[int](), list[ScheduledRow]()
        for sequence in decoding:
            if sequence.unread:
                if drafter.worth_waiting(sequence):
                    self._let_wait(sequence, grown.get(sequence.key), plan)
                    moved.add(sequence.key)
                continue
            drafts = drafter.drafts(sequence)[: max(0, room)]
            if drafts:
                self._memory.release_unseen(sequence)
            if drafts and self._memory.fits(sequence, sequence.computed + 1 + len(drafts)):
                drafting.append(self._with_drafts(sequence, grown.get(sequence.key), drafts))
                moved.add(sequence.key)
                room -= len(drafts)
        if moved:
            plan.decoding = [item for item in plan.decoding if item.key not in moved]
            plan.grown = [item for item in plan.grown if item.sequence.key not in moved] + drafting

    def _with_drafts(self, sequence: Sequence, alone: ScheduledRow | None, drafts: tuple[int, ...]) -> ScheduledRow:
        """Return a row's part of a step with drafts; `alone` is its part without drafts, if that needs a block."""
        more = self._memory.extend(sequence, sequence.computed + 1 + len(drafts))
        blocks = more if alone is None else tuple(old + new for old, new in zip(alone.blocks, more, strict=True))
        return ScheduledRow(sequence, 1 + len(drafts), blocks, drafts)

    def _let_wait(self, sequence: Sequence, alone: ScheduledRow | None, plan: StepPlan) -> None:
        if alone is not None:
            self.give_back(alone)
        plan.skipped.append(sequence)

    def _prefill_budget(self, plan: StepPlan, begun: list[Sequence], queue: WaitingQueue) -> PrefillBudget:
        """Return the budget for prompts: what fits or, next to decoding rows, few enough tokens to lengthen the step only
        slightly, but at least the smallest size that the device pads to."""
        room = self.max_step_tokens - plan.tokens
        if plan.empty or not (begun or queue) or not (self.mixing and self.chunking):
            return self._room(room, room)
        unseen, wait = self._times.prompt_tokens(plan.tokens), len(queue) + len(begun)
        if unseen is None or wait >= max(CROWD, self._options.waiting_served_ratio * plan.tokens):
            return self._room(room, room)
        waiting = queue.tokens + sum(item.prompt_left for item in begun)
        return self._room(room, min(room, max(unseen, LEAST_CHUNK, waiting // MOST_CHUNKS)))

    def _room(self, tokens: int, computed: int) -> PrefillBudget:
        sizes = self._capacity.takes
        return PrefillBudget(tokens, max(computed, sizes[0]) if sizes and tokens > 0 else computed, sizes)

    def _continue_prompts(
        self, begun: list[Sequence], room: PrefillBudget, running: dict[int, Sequence], queue: WaitingQueue, plan: StepPlan
    ) -> None:
        """Add the next chunks of prompts that have begun, in order of rank."""
        kept = self._kept_for_newcomers(room, running, queue)
        if self._memory.windowed:
            for sequence in begun:
                self._memory.release_unseen(sequence)
        ordered = sorted(begun, key=_rank)[: self._capacity.max_prefill_rows]
        if ordered and self.whole_images:
            self._make_room_for_image(ordered[0], room, plan)
        for sequence in ordered:
            take = self._chunk_size(sequence, sequence.computed, sequence.prompt_left, room, kept)
            if take <= 0 and room.images:
                break
            if take > 0 and sequence.wire_id and self._make_room(sequence, take, running, plan):
                plan.grown.append(ScheduledRow(sequence, take, self._memory.extend(sequence, sequence.computed + take)))
                plan.chunks += 1
                _spend(room, sequence, take)

    def _chunk_size(self, sequence: Sequence, start: int, left: int, room: PrefillBudget, kept: int = 0) -> int:
        """Return how many of the `left` tokens of a prompt to run from `start` on; see `PrefillBudget.chunk_size`. An image that must run
        whole may exceed what the device should compute, but not the step's tokens."""
        take = room.chunk_size(left, kept)
        if take and self.whole_images:
            take = keep_images_whole(start, take, room.tokens, sequence.request.image_spans)
        return room.before_images(start, take, sequence.request.image_spans) if sequence.request.image_spans else take

    def _make_room_for_image(self, sequence: Sequence, room: PrefillBudget, plan: StepPlan) -> None:
        """If the next part of a prompt is an image that does not fit beside the decoding rows, let the newest of those sit out."""
        missing = image_left(sequence.computed, sequence.request.image_spans) - room.tokens
        if missing <= 0:
            return
        kept = max(0, len(plan.decoding) - missing)
        plan.skipped += plan.decoding[kept:]
        del plan.decoding[kept:]
        more = self._capacity.max_step_tokens if plan.empty else self.max_step_tokens
        room.tokens = more - plan.tokens
        room.computed = max(room.computed, room.tokens)

    def _make_room_for_newcomer(
        self, running: dict[int, Sequence], queue: WaitingQueue, plan: StepPlan, room: PrefillBudget
    ) -> None:
        """The same for the first request that waits, if it would then begin."""
        first = next(iter(queue))
        missing = image_left(0, first.request.image_spans) - room.tokens
        if room.images and (plan.empty or missing <= len(plan.decoding)) and self._has_room(first, len(running)):
            self._make_room_for_image(first, room, plan)

    def _kept_for_newcomers(self, room: PrefillBudget, running: dict[int, Sequence], queue: WaitingQueue) -> int:
        """Return the tokens that long prompts leave to requests that have not begun, if the first of those fits."""
        first = next(iter(queue), None)
        if first is None or not self.mixing or len(running) >= self._capacity.max_rows or not self._has_room(first, len(running)):
            return 0
        return min(room.computed // NEWCOMERS_SHARE, room.computed - room.least)

    def _make_room(self, sequence: Sequence, take: int, running: dict[int, Sequence], plan: StepPlan) -> bool:
        """Free blocks for a row: its own that it no longer sees, then by preempting others. Return False if the row itself was
        preempted."""
        self._memory.release_unseen(sequence)
        while not self._memory.fits(sequence, sequence.computed + take):
            last = _last(item for item in running.values() if item.wire_id and not item.exhausted)
            self._preempt(last, plan)
            if last is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        plan.decoding = [item for item in plan.decoding if item is not sequence]
        plan.grown = [item for item in plan.grown if item.sequence is not sequence]
        plan.skipped = [item for item in plan.skipped if item is not sequence]
        self.evict(sequence)
        plan.preempted.append(sequence)

    def _worth_a_pause(self, running: dict[int, Sequence], queue: WaitingQueue) -> bool:
        """Return whether new rows may pause the running ones, on a device that cannot mix: as in TGI, only for enough of them, or
        after enough steps."""
        if len(queue) >= int(len(running) * self._options.waiting_served_ratio):
            return True
        return self._since_admission > self._options.max_waiting_tokens

    def _admit(self, running: dict[int, Sequence], queue: WaitingQueue, plan: StepPlan, room: PrefillBudget) -> None:
        rows = min(self._capacity.max_rows - len(running), self._capacity.max_prefill_rows - plan.chunks)
        rows = min(rows, self.faults.room(running.values()))
        if not running and not self.chunking:  # a prompt that cannot be chunked must not wait forever because the budget is small
            room = self._room(self._capacity.max_step_tokens, self._capacity.max_step_tokens)
        if self.whole_images and rows > 0 and queue:
            self._make_room_for_newcomer(running, queue, plan, room)
        waiting: list[Sequence] = []
        for sequence in queue.first(rows + LOOK_AHEAD):
            if rows <= 0 or room.full:
                return
            take = self._first_take(sequence, room, len(running) + len(plan.admitted), first=not plan.admitted)
            if take:
                queue.admit(sequence)
                plan.admitted.append(self._scheduled(sequence, take))
                _spend(room, sequence, take)
                rows -= 1
                for item in waiting:
                    item.overtaken += 1
            elif sequence.overtaken >= MAX_OVERTAKEN or len(waiting) >= LOOK_AHEAD:
                return
            else:
                waiting.append(sequence)

    def _first_take(self, sequence: Sequence, room: PrefillBudget, live: int, first: bool) -> int:
        """Return how many tokens of a waiting sequence can run in this step, after those found in the cache; 0 if it must wait.
        If prompts cannot be chunked, the first new one does not wait because of its padding."""
        sequence.cached = self._memory.reuse(sequence)
        left = len(sequence.tokens) - sequence.cached
        whole = left if left <= room.tokens and (first or room.holds(left)) else 0
        take = self._chunk_size(sequence, sequence.cached, left, room) if self.chunking else whole
        if take and (not live or self._has_room(sequence, live)):
            return take
        self.evict(sequence)
        return 0

    def _scheduled(self, sequence: Sequence, take: int) -> ScheduledRow:
        sequence.sent, sequence.computed, sequence.overtaken = len(sequence.tokens), sequence.cached, 0
        self._memory.extend(sequence, sequence.computed + take)
        return ScheduledRow(sequence, take, tuple(map(tuple, sequence.tables)))

    def _has_room(self, sequence: Sequence, live: int) -> bool:
        """Return whether there are blocks for all tokens of a row plus one, and a spare one for each running row if rows can
        grow."""
        positions = min(len(sequence.tokens) + 1, self._memory.longest)
        grows = self._memory.stride < self._capacity.max_row_tokens
        return self._memory.has_room(sequence, positions, spare=live if grows else 0)


def _begun(running: dict[int, Sequence]) -> list[Sequence]:
    """Return the rows whose prompts have not been computed completely."""
    return [item for item in running.values() if item.sent > item.computed]


def _spend(room: PrefillBudget, sequence: Sequence, take: int) -> None:
    """Spend the budget of the next `take` tokens of a prompt."""
    room.spend(take, len(images_begun(sequence.computed, take, sequence.request.image_spans)))


def _last(running: Iterable[Sequence]) -> Sequence:
    """Return the row to preempt: a paused one if there is any, else one of the client with the most rows; the last in rank."""
    rows = list(running)
    counts = Counter(item.request.scheduling.client for item in rows)
    return max(rows, key=lambda item: (item.paused, counts[item.request.scheduling.client], item.rank))


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank
